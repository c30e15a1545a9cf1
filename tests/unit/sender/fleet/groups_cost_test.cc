// What one report costs in a large group: as much as in a small one, so that thousands of members
// can report every second. This program counts the memory that is asked for.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <optional>
#include <thread>

#include "sender/agent/fleet/groups.h"
#include "tests/support/temp_dir.h"

namespace {

std::atomic<uint64_t> g_asked{0};

void* Take(size_t bytes) {
  ++g_asked;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes); }
void* operator new[](size_t bytes) { return Take(bytes); }
// A sanitizer's own form of this would not use the one above, and then frees what it did not give.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return Take(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace deltawire::sender::groups_cost_test {
namespace {

constexpr const char* kModel = "m";
constexpr Hash128 kLineage{1, 2};
const Identity kOne{kLineage, {1, 1}, 11, 7};

/// A group of the sender's options whose members are all attached.
class Group {
 public:
  explicit Group(size_t members) {
    GroupsOptions options;
    GroupOptions group{.model = "", .name = "g", .members = {}};
    for (size_t i = 0; i < members; ++i) group.members.push_back(fmt::format("member-{}", i));
    options.groups = {group};
    groups_.emplace(options, attachments_);
    groups_->Adopt(kModel, dir_.path(), kLineage, true);
    VersionInfo info;
    info.identity = kOne;
    attachments_.feed().Publish(kModel, info);
    groups_->Published(kModel, kOne);
    for (const std::string& id : group.members) {
      tokens_.push_back(*attachments_.Attach(kModel, id, "peer-" + id));
      Report(tokens_.size() - 1);
    }
    wait_ = *groups_->Sync(kModel, "g", {}, [] {});
  }
  void Report(size_t member, bool prepared = false, const char* message = "") {
    ReceiverReport report;
    report.group = {prepared ? view().status.round : 0, prepared, ""};
    report.message = message;
    attachments_.Report(tokens_[member], report);
  }
  /// How often memory is asked for when one member reports news, and a waiter looks.
  uint64_t AskedFor(size_t member) {
    while (wait_->Poll()->tell) {
    }
    ReceiverReport report;
    report.message = "a message that is news";
    const uint64_t before = g_asked;
    attachments_.Report(tokens_[member], report);
    REQUIRE(wait_->Poll()->tell);
    CHECK(!wait_->Poll()->tell);
    return g_asked - before;
  }
  GroupView view() const { return groups_->views(kModel).front(); }
  size_t size() const { return tokens_.size(); }

 private:
  TempDir dir_;
  Attachments attachments_{{.most = 16384}};
  std::optional<Groups> groups_;
  std::vector<uint64_t> tokens_;
  std::unique_ptr<Groups::Wait> wait_;
};

TEST_CASE("a report costs no more in a group of 4,096 members than in one of 16") {
  Group small(16), large(4096);
  const uint64_t few = small.AskedFor(7), many = large.AskedFor(2000);
  CAPTURE(few, many);
  CHECK(many <= few + 16);
}

TEST_CASE("the reports of more than 4,096 members that come at once are all told") {
  Group group(5000);
  const uint64_t round = group.view().status.round;
  const uint64_t before = g_asked;
  std::vector<std::thread> threads;
  for (size_t n = 0; n < 4; ++n) {
    threads.emplace_back([&, n] {
      for (size_t i = n; i < group.size() - 1; i += 4) group.Report(i);
    });
  }
  // Each returns, also the one that tells what the others report.
  for (std::thread& thread : threads) thread.join();
  const uint64_t per_report = (g_asked - before) / group.size();
  CAPTURE(per_report);
  CHECK(per_report < 1000);
  const GroupView view = group.view();
  CHECK(view.status.round == round);
  CHECK(std::ranges::all_of(view.members, [](const GroupView::Member& m) {
    return m.state == GroupMemberState::kAsked;
  }));
}

}  // namespace
}  // namespace deltawire::sender::groups_cost_test
