#include "sender/agent/offload/offload_ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace deltawire::sender {
namespace {

// A rank opens its attendance right after its grant. After this time it is not expected any more.
constexpr std::chrono::seconds kAttendGrace{5};
constexpr size_t kMaxPublisher = 256;
constexpr size_t kNamedRanks = 5;  // ranks that a message names

}  // namespace

void OffloadRanks::Add(const OffloadRequest& request, Time now) {
  ranks_.emplace(request.rank, Rank{.publisher = request.publisher.substr(0, kMaxPublisher),
                                    .client = request.client,
                                    .begun = now});
}

const OffloadRanks::Rank* OffloadRanks::Find(uint32_t rank) const {
  const auto it = ranks_.find(rank);
  return it == ranks_.end() ? nullptr : &it->second;
}

OffloadRanks::Rank* OffloadRanks::Find(uint32_t rank) {
  const auto it = ranks_.find(rank);
  return it == ranks_.end() ? nullptr : &it->second;
}

const OffloadRanks::Entry* OffloadRanks::Grant(Time now) {
  for (auto& [rank, state] : ranks_) state.begun = now;
  const auto gone = std::ranges::find_if(ranks_, [](const Entry& e) { return e.second.gone; });
  return gone == ranks_.end() ? nullptr : &*gone;
}

bool OffloadRanks::MarkReady(Rank& rank) {
  rank.ready = true;
  return ++ready_ == world_;
}

std::set<uint32_t> OffloadRanks::begun() const {
  std::set<uint32_t> begun;
  for (const auto& entry : ranks_) begun.insert(entry.first);
  return begun;
}

const OffloadRanks::Entry* OffloadRanks::MarkDead(uint64_t client, uint64_t moment) {
  const Entry* never_ready = nullptr;
  for (auto& entry : ranks_) {
    Rank& rank = entry.second;
    if (rank.client != client) continue;
    rank.gone = true;
    if (rank.ready && died_ == 0) died_ = moment;
    if (!rank.ready && rank.attending == 0 && never_ready == nullptr) never_ready = &entry;
  }
  return never_ready;
}

const OffloadRanks::Entry* OffloadRanks::Holder(Time now) const {
  for (const auto& entry : ranks_) {
    const Rank& rank = entry.second;
    const bool coming = !rank.attended && !rank.ready && now - rank.begun < kAttendGrace;
    if (rank.attending > 0 || coming || (rank.ready && waiting_ > 0)) return &entry;
  }
  return nullptr;
}

std::string OffloadRanks::Describe(uint32_t rank) const {
  const Rank* known = Find(rank);
  const bool named = known != nullptr && !known->publisher.empty();
  return fmt::format("rank {} of {}{}", rank, world_,
                     named ? fmt::format(" ({})", known->publisher) : "");
}

std::string OffloadRanks::DescribeLate() const {
  std::string text;
  size_t late = 0;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    const Rank* known = Find(rank);
    if (known != nullptr && known->ready) continue;
    if (late++ >= kNamedRanks) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", rank,
                        known != nullptr ? "is not ready" : "has not begun");
  }
  return late > kNamedRanks ? fmt::format("{}, and {} more", text, late - kNamedRanks) : text;
}

}  // namespace deltawire::sender
