// Groups over real attachments, without sockets: what members are told and when, what is on disk by
// then, and what an orchestrator hears.
#include "sender/agent/fleet/groups.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <optional>
#include <set>

#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::sender::groups_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;

constexpr Hash128 kLineage{1, 2};
constexpr const char* kModel = "m";

Identity Version(uint64_t version, uint64_t epoch = 1) {
  return {kLineage, {epoch, version}, 1000 * epoch + version, 7};
}

// A sender's process: what goes with it at a crash.
struct Process {
  explicit Process(const std::filesystem::path& dir, GroupsOptions options = {})
      : groups(std::move(options), attachments) {
    groups.Adopt(kModel, dir, kLineage, true);
  }
  void Publish(uint64_t version, uint64_t epoch = 1) {
    VersionInfo info;
    info.identity = Version(version, epoch);
    attachments.feed().Publish(kModel, info);
    groups.Published(kModel, info.identity);
  }
  GroupView view(const std::string& name) const {
    for (const GroupView& view : groups.views(kModel)) {
      if (view.name == name) return view;
    }
    return {};
  }
  Attachments attachments;
  Groups groups;
};

// One receiver, which takes its events when the test asks it to.
class Member {
 public:
  Member(Process& process, std::string id, Identity committed = {})
      : process_(process), id_(std::move(id)), committed_(committed) {
    token_ = *process.attachments.Attach(kModel, id_, "peer-" + id_);
    Report();
  }
  void Report(bool prepared = false, const std::string& refusal = "") {
    ReceiverReport report{.committed = committed_, .event = number_};
    report.group = {word.round, prepared, refusal};
    process_.attachments.Report(token_, report);
  }
  /// The word of the newest event.
  const GroupWord& Hear() {
    while (true) {
      const auto due = process_.attachments.TakeEvent(token_);
      REQUIRE(due.ok());
      if (!due->event) return word;
      word = due->event->group;
      number_ = due->event->number;
    }
  }
  bool Hears(const std::function<bool(const GroupWord&)>& wanted) {
    return Eventually([&] { return wanted(Hear()); });
  }
  bool IsAskedFor(uint64_t version) {
    return Hears([&](const GroupWord& w) { return w.prepare == Version(version); });
  }
  bool IsToldToCommit(uint64_t version) {
    return Hears([&](const GroupWord& w) { return w.commit == Version(version); });
  }
  void Commit(uint64_t version) {
    committed_ = Version(version);
    Report();
  }
  void Leave() { process_.attachments.Detach(token_); }

  GroupWord word;

 private:
  Process& process_;
  const std::string id_;
  Identity committed_;
  uint64_t token_ = 0, number_ = 0;
};

/// An orchestrator that has a group sync.
class Caller {
 public:
  Caller(Process& process, const std::string& group, const std::vector<std::string>& ids = {}) {
    auto wait = process.groups.Sync(kModel, group, ids, [this] { ++told_; });
    REQUIRE(wait.ok());
    wait_ = *std::move(wait);
  }
  /// How the round ends. Looks only when it is told to.
  StatusOr<GroupOutcome> Ends() {
    std::optional<StatusOr<GroupOutcome>> end;
    CHECK(Eventually([&] {
      if (std::exchange(looked_, int{told_}) == told_) return false;
      while (!end) {
        const auto step = wait_->Poll();
        if (!step.ok()) end = step.status();
        if (!step.ok() || (!step->tell && !step->outcome)) break;
        if (step->tell) seen.emplace(step->tell->receiver_id, step->tell->state);
        if (step->outcome) end = *step->outcome;
      }
      return end.has_value();
    }));
    wait_.reset();
    return end ? *end : absl::DeadlineExceededError("the round has not ended");
  }
  std::set<std::pair<std::string, GroupMemberState>> seen;

 private:
  std::unique_ptr<Groups::Wait> wait_;
  std::atomic<int> told_{0};
  int looked_ = -1;
};

GroupsOptions OneGroup(bool every_version = false) {
  return {.groups = {{"", "g", {"a", "b"}}},
          .every_version = every_version,
          .timeout = milliseconds(60000)};
}

TEST_CASE("members of a group are told so with their first event, and others are not") {
  TempDir dir;
  Process p(dir.path(), OneGroup());
  Member a(p, "a"), c(p, "c");
  p.Publish(1);
  CHECK(a.Hear().name == "g");
  CHECK(a.word.commit.empty());
  CHECK(c.Hear().name.empty());
}

TEST_CASE("a group syncs: all prepare, the decision is on disk, then all are told") {
  TempDir dir;
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a"), b(p, "b");
  Caller caller(p, "g");
  REQUIRE(a.IsAskedFor(1));
  REQUIRE(b.IsAskedFor(1));
  a.Report(true);
  CHECK(ReadGroupFile(dir.path() / kGroupFileName)->groups.empty());
  CHECK(a.Hear().commit.empty());
  b.Report(true);
  REQUIRE(a.IsToldToCommit(1));
  REQUIRE(b.IsToldToCommit(1));
  const auto kept = ReadGroupFile(dir.path() / kGroupFileName);
  REQUIRE(kept.ok());
  REQUIRE(kept->groups.size() == 1);
  CHECK(kept->groups[0].decision.state == Version(1));
  a.Commit(1);
  b.Commit(1);
  const auto outcome = caller.Ends();
  REQUIRE(outcome.ok());
  CHECK(outcome->members == 2);
  CHECK(outcome->late == 0);
  CHECK(caller.seen.contains({"a", GroupMemberState::kCommitted}));
  CHECK(caller.seen.contains({"b", GroupMemberState::kCommitted}));
}

TEST_CASE("a decision that cannot be written is told to nobody, and the caller hears why") {
  TempDir dir;
  std::filesystem::create_directory(dir.path() / (std::string(kGroupFileName) + ".new"));
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a"), b(p, "b");
  Caller caller(p, "g");
  REQUIRE(a.IsAskedFor(1));
  REQUIRE(b.IsAskedFor(1));
  a.Report(true);
  b.Report(true);
  const auto outcome = caller.Ends();
  REQUIRE(outcome.ok());
  CHECK_FALSE(outcome->committed);
  CHECK(outcome->message.find("could not be written") != std::string::npos);
  CHECK(a.Hear().commit.empty());
  CHECK(a.word.prepare.empty());
}

TEST_CASE("a sender that was killed tells the same when it is back, wherever it was killed") {
  TempDir dir;
  const bool decided = GENERATE(true, false);
  {
    Process p(dir.path(), OneGroup(true));
    p.Publish(1);
    Member a(p, "a"), b(p, "b");
    REQUIRE(a.IsAskedFor(1));
    REQUIRE(b.IsAskedFor(1));
    a.Report(true);
    if (decided) b.Report(true);
    // Nobody has taken the word: it dies between the decision and the telling.
  }
  Process p(dir.path(), OneGroup());
  Member a(p, "a"), b(p, "b");
  p.Publish(1);
  CHECK(a.Hear().name == "g");
  CHECK(a.word.prepare.empty());
  CHECK(a.word.commit == (decided ? Version(1) : Identity{}));
  CHECK(b.Hear() == a.word);
}

TEST_CASE("decisions of another lineage are not this model's") {
  TempDir dir;
  REQUIRE(WriteGroupFile(dir.path() / kGroupFileName,
                         {{7, 7}, {{"g", true, {"a"}, {3, {{7, 7}, {1, 9}, 1, 1}}}}})
              .ok());
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a");
  CHECK(a.Hear().commit.empty());
}

TEST_CASE("a damaged file of decisions does not keep the model from being served") {
  TempDir dir;
  std::ofstream(dir.path() / kGroupFileName) << "deltawire groups 1\n";
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a");
  CHECK(a.Hear().name == "g");
  CHECK(a.word.commit.empty());
}

TEST_CASE("an orchestrator's group lasts until each member has committed, also over a restart") {
  TempDir dir;
  {
    Process p(dir.path());
    p.Publish(1);
    Member a(p, "a"), b(p, "b");
    Caller caller(p, "pair", {"a", "b"});
    REQUIRE(a.IsAskedFor(1));
    REQUIRE(b.IsAskedFor(1));
    a.Report(true);
    b.Report(true);
    REQUIRE(a.IsToldToCommit(1));
    a.Commit(1);
    b.Leave();  // died before it committed
    const auto outcome = caller.Ends();
    REQUIRE(outcome.ok());
    CHECK(outcome->late == 1);
    CHECK(outcome->message == "late: b");
    CHECK(a.Hear().name == "pair");
  }
  Process p(dir.path());
  p.Publish(2);
  Member a(p, "a", Version(1)), b(p, "b");
  CHECK(b.Hear().commit == Version(1));
  CHECK(b.word.name == "pair");
  b.Commit(1);
  // All have: both are on their own again, and the file says nothing of them.
  CHECK(a.Hears([](const GroupWord& w) { return w.name.empty(); }));
  CHECK(b.Hears([](const GroupWord& w) { return w.name.empty(); }));
  CHECK(Eventually([&] { return ReadGroupFile(dir.path() / kGroupFileName)->groups.empty(); }));
}

TEST_CASE("an orchestrator's group whose round is aborted is gone, and says because of whom") {
  TempDir dir;
  Process p(dir.path());
  p.Publish(1);
  Member a(p, "a");
  Caller caller(p, "one", {"a"});
  REQUIRE(a.IsAskedFor(1));
  a.Report(false, "it is paused");
  const auto outcome = caller.Ends();
  REQUIRE(outcome.ok());
  CHECK_FALSE(outcome->committed);
  CHECK(outcome->message == "a cannot prepare it: it is paused");
  CHECK(a.Hears([](const GroupWord& w) { return w.name.empty(); }));
  CHECK(p.groups.views(kModel).empty());
}

TEST_CASE("what cannot be a group is refused") {
  TempDir dir;
  Process p(dir.path(), OneGroup());
  const auto sync = [&](const std::string& model, const std::string& group,
                        const std::vector<std::string>& ids) {
    return p.groups.Sync(model, group, ids, [] {}).status();
  };
  CHECK(sync(kModel, "g", {}).code() == StatusCode::kFailedPrecondition);  // nothing published
  p.Publish(1);
  CHECK(sync("other", "g", {}).code() == StatusCode::kNotFound);
  CHECK(MessageOf(sync(kModel, "x", {})).find("there are: g") != std::string::npos);
  CHECK(sync(kModel, "x", {"a"}).code() == StatusCode::kFailedPrecondition);  // a is of g
  CHECK(sync(kModel, "g", {"a", "c"}).code() == StatusCode::kFailedPrecondition);
  CHECK(sync(kModel, "a/b", {"c"}).code() == StatusCode::kInvalidArgument);
  CHECK(sync(kModel, "x", {"c\n"}).code() == StatusCode::kInvalidArgument);
  p.groups.Adopt("part", dir.path() / "part", kLineage, false);
  CHECK(sync("part", "g", {}).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a caller that has gone does not end its round") {
  TempDir dir;
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a"), b(p, "b");
  CHECK(p.groups.Sync(kModel, "g", {}, [] {}).ok());
  REQUIRE(a.IsAskedFor(1));
  REQUIRE(b.IsAskedFor(1));
  a.Report(true);
  b.Report(true);
  CHECK(a.IsToldToCommit(1));
}

TEST_CASE("with every version a round, each published version is one") {
  TempDir dir;
  Process p(dir.path(), OneGroup(true));
  Member a(p, "a"), b(p, "b");
  for (uint64_t version = 1; version <= 5; ++version) {
    p.Publish(version);
    for (Member* m : {&a, &b}) REQUIRE(m->IsAskedFor(version));
    for (Member* m : {&a, &b}) m->Report(true);
    for (Member* m : {&a, &b}) {
      REQUIRE(m->IsToldToCommit(version));
      m->Commit(version);
    }
  }
  CHECK(Eventually([&] { return p.view("g").status.commits == 5; }));
  // One that is away keeps the others where they are, and is named.
  b.Leave();
  p.Publish(6);
  REQUIRE(a.IsAskedFor(6));
  a.Report(true);
  CHECK(p.view("g").members[1].state == GroupMemberState::kAway);
  Member again(p, "b", Version(5));
  REQUIRE(again.IsAskedFor(6));
  again.Report(true);
  CHECK(a.IsToldToCommit(6));
}

TEST_CASE("a receiver that goes before it is told of an orchestrator's group counts as away") {
  TempDir dir;
  Process p(dir.path());
  p.Publish(1);
  Member a(p, "a"), b(p, "b");
  // Callers hear of their group before its members do.
  bool left = false;
  const auto wait = p.groups.Sync(kModel, "pair", {"a", "b"}, [&] {
    if (!std::exchange(left, true)) b.Leave();
  });
  REQUIRE(wait.ok());
  REQUIRE(left);
  REQUIRE(a.IsAskedFor(1));
  const GroupView view = p.view("pair");
  REQUIRE(view.members.size() == 2);
  CHECK(view.members[0].state == GroupMemberState::kAsked);
  CHECK(view.members[1].state == GroupMemberState::kAway);
}

TEST_CASE("a caller that reads nothing hears that the end of its round is not known any more") {
  TempDir dir;
  Process p(dir.path(), OneGroup());
  p.Publish(1);
  Member a(p, "a"), b(p, "b");
  auto reads_nothing = p.groups.Sync(kModel, "g", {}, [] {});
  REQUIRE(reads_nothing.ok());
  uint64_t round = 0;
  for (int n = 0; n < 70; ++n) {
    Caller caller(p, "g");
    REQUIRE(a.Hears([&](const GroupWord& w) { return w.round != round && !w.prepare.empty(); }));
    round = a.word.round;
    a.Report(false, "it is paused");
    CHECK(caller.Ends().ok());
  }
  Status end;
  for (size_t looks = 0; looks < 10 && end.ok(); ++looks) {
    const auto step = (*reads_nothing)->Poll();
    if (step.ok()) CHECK_FALSE(step->outcome);
    end = step.status();
  }
  CHECK(absl::IsAborted(end));
  CHECK(MessageOf(end).find("is not kept any more") != std::string_view::npos);
}

TEST_CASE("a model that is let go has no groups any more") {
  TempDir dir;
  Process p(dir.path(), OneGroup(true));
  p.Publish(1);
  Member a(p, "a");
  REQUIRE(a.IsAskedFor(1));
  p.groups.Forget(kModel);
  CHECK(a.Hears([](const GroupWord& w) { return w.name.empty(); }));
  CHECK(p.groups.views(kModel).empty());
}

}  // namespace
}  // namespace deltawire::sender::groups_test
