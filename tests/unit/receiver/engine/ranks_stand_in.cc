#include "tests/unit/receiver/engine/ranks_stand_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace deltawire::receiver {

using What = RanksStandIn::Trouble::What;

void RanksStandIn::Start() {
  ++process_;
  for (Rank& rank : ranks_) rank = {.weights = directory, .replies = {}};
  paused = asleep = dropped = drifted = spoiled = blocked_ = heals_ = false;
  named = "default";
}

uint64_t RanksStandIn::whole() const {
  const uint64_t first = ranks_.front().weights;
  const bool same =
      std::ranges::all_of(ranks_, [first](const Rank& r) { return r.weights == first; });
  return same && !drifted && !heals_ ? first : kNothing;
}

bool RanksStandIn::unread() const {
  return std::ranges::any_of(ranks_, [](const Rank& r) { return !r.replies.empty(); });
}

void RanksStandIn::Resume() {
  Forbid(paused && whole() == kNothing && !drifted && !heals_,
         "resumed with weights of no version");
  paused = false;
}

void RanksStandIn::Sleep(int level) {
  asleep = paused = true;
  if (level < 2) return;
  dropped = true;
  drifted = heals_ = false;
  for (Rank& rank : ranks_) rank.weights = kNothing;
}

void RanksStandIn::WakeUp() { asleep = paused = dropped = false; }

void RanksStandIn::FlipBit() {
  if (whole() != kNothing && ranks_.front().held != kNothing) drifted = true;
}

/// Replies go into the rings, and are read in the ranks' order up to the first that has raised.
std::optional<RanksStandIn::Reply> RanksStandIn::Collect(const std::vector<Json>& replies,
                                                         const std::vector<bool>& raised) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].replies.size() >= kRing) blocked_ = true;
    if (blocked_) return std::nullopt;
    ranks_[i].replies.push_back(raised[i] ? Json("raised") : replies[i]);
  }
  Reply reply{.raised = false, .results = Json::array()};
  for (Rank& rank : ranks_) {
    Json next = std::move(rank.replies.front());
    rank.replies.pop_front();
    if (next == "raised") return Reply{.raised = true, .results = {}};
    reply.results.push_back(std::move(next));
  }
  return reply;
}

void RanksStandIn::FailForeignCall(bool last_alone) {
  if (blocked_) return;
  std::vector<bool> raised(ranks_.size(), !last_alone);
  raised.back() = true;
  (void)Collect(std::vector<Json>(ranks_.size(), Json("of theirs")), raised);
}

void RanksStandIn::Load(const Trouble& trouble) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const bool tears = trouble.what == What::kTears && trouble.rank == i;
    ranks_[i].weights = spoiled || tears ? kNothing : directory;
    ranks_[i].held = ranks_[i].prepared = ranks_[i].before = kNothing;
  }
  drifted = heals_ = dropped = false;
  spoiled = spoiled || trouble.what == What::kTears;
}

std::optional<RanksStandIn::Reply> RanksStandIn::ReloadWeights(const Trouble& trouble) {
  if (blocked_) return std::nullopt;
  Forbid(!paused, "reload_weights while it computes");
  Forbid(asleep, "reload_weights on memory that was given back");
  std::vector<bool> raised(ranks_.size(), false);
  if (trouble.what == What::kTears) raised[trouble.rank] = true;
  Load(trouble);
  return Collect(std::vector<Json>(ranks_.size(), Json(nullptr)), raised);
}

RanksStandIn::Word RanksStandIn::Compare() {
  if (std::exchange(drifted, false)) {
    heals_ = true;
    return {"the engine's memory has drifted in norm", true};
  }
  const uint64_t held = ranks_.front().held;
  const bool differs =
      std::ranges::any_of(ranks_, [held](const Rank& r) { return r.weights != held; });
  if (differs || heals_) {
    heals_ = true;
    return {"the engine's memory has drifted in head", true};
  }
  return {};
}

/// What all ranks have agreed on.
RanksStandIn::Word RanksStandIn::Step(const Json& kwargs, const Trouble& trouble) {
  const std::string call = kwargs.value("call", "");
  const uint64_t version = kwargs.value("version", uint64_t{0});
  Rank& first = ranks_.front();
  if (call == "held") return {};
  if (call == "discard") {
    for (Rank& rank : ranks_) rank.prepared = rank.before = kNothing;
    return {};
  }
  Forbid(asleep, call + " on memory that was given back");
  if (call == "reload" && corrupts) {
    return {.reason = "it would leave wrong weights; else start the engine anew", .corrupts = true};
  }
  if (trouble.what == What::kRefuses) return {"out of memory", false};
  if (call == "attach") {
    // After a refusal, weights that are unchanged are followed on.
    const uint64_t before = whole() == first.held ? first.held : kNothing;
    for (Rank& rank : ranks_) {
      rank.held = before;
      rank.prepared = rank.before = kNothing;
    }
    heals_ = false;
    if (spoiled) return {"start the engine anew: parameters have no memory", false};
    if (whole() != directory) return {"it loaded another version", false};
    for (Rank& rank : ranks_) rank.held = directory;
    return {};
  }
  if (call == "reload") {
    Forbid(!paused, "reload while it computes");
    // The plug-in remembers it, since vLLM's own next reload would say that it is done.
    if (spoiled)
      return {"start the engine anew: an earlier reload of vLLM's own has raised", false};
    Load(trouble);
    return {trouble.what == What::kTears ? "it raised" : "", false};
  }
  if (first.held == kNothing) {
    ++refused_order;
    return {"attach comes first", false};
  }
  if (call == "check") return Compare();
  if (call == "prove") {
    if (VersionOf(first.held).root != std::stoull(kwargs.value("root", "0"), nullptr, 16)) {
      return {"the memory is another version", false};
    }
    return Compare();
  }
  if (call == "prepare") {
    for (Rank& rank : ranks_) rank.prepared = rank.before = kNothing;
    // Drift that was told of is what this update heals.
    if (Word found = heals_ ? Word{} : Compare(); found.drifted) return found;
    if (version != directory % kNumbers) return {"another version is committed", false};
    for (Rank& rank : ranks_) rank.prepared = directory;
    return {};
  }
  Forbid(!paused, call + " while it computes");
  if (call == "apply") {
    const uint64_t to = first.prepared;
    if (to == kNothing || to % kNumbers != version) {
      ++refused_order;
      return {"no update is prepared", false};
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      const bool lies = trouble.what == What::kLies && trouble.rank == i && rank.held != to;
      rank.before = rank.held;
      if (!lies) rank.weights = to;
      rank.held = to;
      rank.prepared = kNothing;
    }
    heals_ = false;
    return {};
  }
  if (call != "rollback") return {"no such call", false};
  if (first.before == kNothing || first.before % kNumbers != version)
    return {"no update was applied that could be undone", false};
  for (Rank& rank : ranks_) rank.weights = rank.held = std::exchange(rank.before, kNothing);
  return {};
}

std::optional<RanksStandIn::Reply> RanksStandIn::CallPlugin(const Json& kwargs,
                                                            const Trouble& trouble) {
  if (blocked_) return std::nullopt;
  const Word word = Step(kwargs, trouble);
  Json held = nullptr;
  if (ranks_.front().held != kNothing) {
    const Identity id = VersionOf(ranks_.front().held);
    held = {{"version", id.id.version},
            {"epoch", id.id.epoch},
            {"lineage", id.lineage.Hex()},
            {"root", fmt::format("{:016x}", id.root)}};
  }
  std::vector<Json> replies;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    replies.push_back({{"nonce", kwargs.value("nonce", "")},
                       {"rank", i},
                       {"ranks", ranks_.size()},
                       {"replicas", 1},
                       {"engine", fmt::format("{:016x}", process_)},
                       {"ok", word.reason.empty()},
                       {"reason", word.reason},
                       {"drifted", word.drifted},
                       {"anew", word.reason.find("start the engine anew") != std::string::npos},
                       {"corrupts", word.corrupts},
                       {"held", held},
                       {"untaken", Json::array()}});
  }
  return Collect(replies, std::vector<bool>(ranks_.size(), false));
}

}  // namespace deltawire::receiver
