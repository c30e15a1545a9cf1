// A fake of a sender, or of one agent of several, without sockets: Upstream and net::PullTransport
// over memory. The model has small tensors of one chunk each. Chunks go whole, or as deltas where
// the receiver has a version that is kept here. It beats every 20 ms; the test sets its faults.
// Owner: the test; it outlives the replica. Threads: all methods from any; one of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/layout/root.h"
#include "kernels/kernels.h"
#include "receiver/attach/upstream.h"
#include "receiver/pull/pull_round.h"

namespace deltawire::receiver {

inline Layout FakeLayout(size_t tensors = 6) {
  std::vector<TensorMeta> meta;
  for (size_t i = 0; i < tensors; ++i)
    meta.push_back({"t" + std::to_string(i), DType::kBF16, {500}});
  return *Layout::Create(std::move(meta));
}

class FakeAgent {
 public:
  using Chunks = std::vector<std::vector<std::byte>>;
  struct Faults {
    bool mute = false;               ///< sends no events, but keeps the connection
    int lose_events = 0;             ///< how many of the next events are lost
    std::optional<Identity> claims;  ///< what events say instead of the newest state
    IncomingNews coming;             ///< that events tell of; a pull of it is not granted
    int fail_opens = 0;
    std::map<uint32_t, int> flip;      ///< how often a whole chunk comes with a wrong byte
    std::set<uint32_t> leave_out;      ///< chunks that are never sent
    std::function<void()> before_end;  ///< runs in the transfer, after the chunks
    std::function<void(const ReceiverReport&)> sending;  ///< runs before a report arrives
  };
  struct Counts {
    int describes = 0, opens = 0, side_files = 0, attaches = 0, newest = 0;
    int cancels = 0;  // of pulls
    std::vector<std::vector<uint32_t>> corrupt;
    uint64_t chunks_full = 0, chunks_delta = 0;
  };

  FakeAgent(std::string name, Hash128 lineage, Layout layout, std::vector<ChunkRange> owned = {})
      : name_(std::move(name)),
        lineage_(lineage),
        layout_(std::move(layout)),
        table_(*ChunkTable::Create(layout_)),
        owned_(*Coverage::Create(owned, table_.size())),
        key_(layout_.fingerprint().lo) {
    beat_ = std::thread([this] { Beat(); });
  }
  ~FakeAgent() {
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
    }
    cv_.notify_all();
    beat_.join();
  }

  /// Bytes that follow from a seed, so that two agents can publish parts of one state.
  static Chunks Make(const Layout& layout, uint64_t seed) {
    std::mt19937_64 random(seed);
    Chunks chunks;
    for (size_t i = 0; i < layout.size(); ++i) {
      auto& chunk = chunks.emplace_back(layout.bytes(i));
      for (std::byte& b : chunk) b = static_cast<std::byte>(random());
    }
    return chunks;
  }
  /// The same with a few elements of some chunks changed.
  static Chunks Step(Chunks chunks, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t n = 0; n < 3; ++n) {
      auto& chunk = chunks[random() % chunks.size()];
      chunk[random() % chunk.size()] ^= std::byte{1};
    }
    return chunks;
  }

  void Publish(StateId id, Chunks chunks, uint64_t attempt = 1, uint64_t side_files = 0) {
    std::lock_guard lock(mu_);
    state_ = {.id = {lineage_, id, 0, attempt}, .chunks = std::move(chunks), .side = side_files};
    state_.digests.clear();
    for (const auto& c : state_.chunks) {
      state_.digests.push_back(kernels::Best().digest(key_, c));
    }
    state_.id.root = RootOf(state_.digests, owned_);
    kept_[id] = state_;
    told_ = false;
    cv_.notify_all();
  }
  /// As if wiped and made anew: nothing from before is known.
  void Wipe(Hash128 lineage) {
    std::lock_guard lock(mu_);
    lineage_ = lineage;
    state_ = {};
    kept_.clear();
    told_ = false;
    cv_.notify_all();
  }
  /// What a member of a group is told from now on.
  void Tell(const GroupWord& word) {
    std::lock_guard lock(mu_);
    word_ = word;
    told_ = false;
    cv_.notify_all();
  }
  /// The state can no longer be pulled.
  void Forget(StateId id) {
    std::lock_guard lock(mu_);
    kept_.erase(id);
  }
  void Ask(uint64_t sync_request) {
    std::lock_guard lock(mu_);
    request_ = sync_request;
    told_ = false;
    cv_.notify_all();
  }
  /// Ends the attachment, as a broken connection does.
  void Disconnect() {
    std::unique_lock lock(mu_);
    End(lock, absl::UnavailableError("disconnected"));
  }
  void Set(const std::function<void(Faults&)>& set) {
    std::lock_guard lock(mu_);
    set(faults_);
    told_ = false;
    cv_.notify_all();
  }
  Counts counts() const {
    std::lock_guard lock(mu_);
    return counts_;
  }
  std::vector<ReceiverReport> reports() const {
    std::lock_guard lock(mu_);
    return reports_;
  }
  Identity identity() const {
    std::lock_guard lock(mu_);
    return state_.id;
  }
  const Layout& layout() const { return layout_; }

  std::unique_ptr<Upstream> MakeUpstream();
  /// Serves all agents of a test. The target's host is the agent's name.
  static TransportFactory Transports(std::vector<FakeAgent*> agents);

 private:
  class Up;
  class Transport;
  struct State {
    Identity id;
    Chunks chunks;
    std::vector<uint64_t> digests;
    uint64_t side = 0;
  };

  static std::vector<SideFile> SideFilesOf(uint64_t seed) {
    return {{"config.json", "{\"side\": " + std::to_string(seed) + "}"}};
  }

  void Beat() {
    std::unique_lock lock(mu_);
    while (!stopping_) {
      cv_.wait_for(lock, told_ ? std::chrono::milliseconds(20) : std::chrono::milliseconds(0));
      if (stopping_ || !event_ || faults_.mute) continue;
      told_ = true;
      SenderEvent e{.number = ++number_,
                    .newest = faults_.claims.value_or(state_.id),
                    .sync_request = std::exchange(request_, 0),
                    .group = word_,
                    .incoming = faults_.coming};
      if (faults_.lose_events > 0) {
        --faults_.lose_events;
        continue;
      }
      const auto event = event_;
      calling_ = true;
      lock.unlock();
      event(e);
      lock.lock();
      calling_ = false;
      cv_.notify_all();
    }
  }

  void End(std::unique_lock<std::mutex>& lock, const Status& why) {
    cv_.wait(lock, [this] { return !calling_; });
    const auto ended = std::exchange(ended_, nullptr);
    event_ = nullptr;
    lock.unlock();
    if (ended) ended(why);
    lock.lock();
  }

  const std::string name_;
  Hash128 lineage_;
  const Layout layout_;
  const ChunkTable table_;
  const Coverage owned_;
  const kernels::DigestKey key_;
  mutable std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false, told_ = false, calling_ = false;
  State state_;
  std::map<StateId, State> kept_;
  Faults faults_;
  Counts counts_;
  uint64_t number_ = 0, request_ = 0;
  GroupWord word_;
  std::function<void(const SenderEvent&)> event_;
  std::function<void(const Status&)> ended_;
  std::vector<ReceiverReport> reports_;
  std::map<uint64_t, StateId> pinned_;  // by ticket
  uint64_t tickets_ = 0;
  std::thread beat_;
};

class FakeAgent::Up : public Upstream {
 public:
  explicit Up(FakeAgent& agent) : a_(agent) {}
  ~Up() override { Detach(); }
  const std::string& address() const override { return a_.name_; }
  StatusOr<ModelDescription> Describe(const std::string&) override {
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.describes;
    const auto side = SideFilesOf(a_.state_.side);
    return ModelDescription{.layout = a_.layout_,
                            .digest_seed = a_.layout_.fingerprint().lo,
                            .side_files = side,
                            .side_files_hash = SideFilesHash(side),
                            .owned = a_.owned_,
                            .lineage = a_.state_.id.lineage};
  }
  StatusOr<Identity> Newest(const std::string&) override {
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.newest;
    return a_.state_.id;
  }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string&, uint64_t hash) override {
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.side_files;
    for (const auto& [id, state] : a_.kept_) {
      if (SideFilesHash(SideFilesOf(state.side)) == hash) return SideFilesOf(state.side);
    }
    return absl::NotFoundError("no such side files");
  }
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.opens;
    a_.counts_.corrupt.push_back(request.corrupt);
    if (a_.faults_.fail_opens > 0) {
      --a_.faults_.fail_opens;
      return absl::UnavailableError(a_.name_ + ": not now");
    }
    if (!a_.faults_.coming.version.empty() && !request.incoming.empty()) {
      return absl::AbortedError(a_.name_ + ": not coming");
    }
    if (request.owned_hash != a_.owned_.hash())
      return absl::FailedPreconditionError("another part");
    StateId id = a_.state_.id.id;
    if (!request.at.empty()) {
      const auto it = a_.kept_.find(request.at.id);
      if (it == a_.kept_.end() || it->second.id.attempt != request.at.attempt ||
          !(it->second.id.lineage == request.at.lineage)) {
        return absl::AbortedError(a_.name_ + ": not that state");
      }
      id = request.at.id;
    }
    PullGrant grant;
    const uint64_t number = ++a_.tickets_;
    a_.pinned_[number] = id;
    std::memcpy(grant.ticket.data(), &number, sizeof number);
    grant.host = a_.name_;
    grant.port = 1;
    return grant;
  }
  Status Attach(const std::string&, const ReceiverReport& first,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.attaches;
    a_.reports_.push_back(first);
    a_.number_ = 0;
    a_.event_ = std::move(event);
    a_.ended_ = std::move(ended);
    a_.told_ = false;
    a_.cv_.notify_all();
    return absl::OkStatus();
  }
  void Send(const ReceiverReport& report) override {
    std::unique_lock lock(a_.mu_);
    if (const auto sending = a_.faults_.sending) {
      lock.unlock();
      sending(report);
      lock.lock();
    }
    a_.reports_.push_back(report);
  }
  void Detach() override {
    std::unique_lock lock(a_.mu_);
    a_.End(lock, absl::CancelledError("detached"));
  }
  void Cancel() override {}

 private:
  FakeAgent& a_;
};

class FakeAgent::Transport : public net::PullTransport {
 public:
  Transport(FakeAgent& agent, net::PullTarget target) : a_(agent), target_(std::move(target)) {}

  StatusOr<net::PullEnd> Run(const wire::Have& have, net::ChunkSink& sink) override {
    State state;
    std::function<void()> before_end;
    {
      std::lock_guard lock(a_.mu_);
      uint64_t number = 0;
      std::memcpy(&number, target_.ticket.data(), sizeof number);
      state = a_.kept_.at(a_.pinned_.at(number));
      before_end = a_.faults_.before_end;
    }
    for (uint32_t c = 0; c < state.chunks.size(); ++c) {
      if (!a_.owned_.contains(c) || have.chunks[c].digest == state.digests[c]) continue;
      DW_RETURN_IF_ERROR(SendChunk(state, c, have.chunks[c], sink));
    }
    if (before_end) before_end();
    if (cancelled_) return absl::CancelledError("cancelled");
    return net::PullEnd{state.id, SideFilesHash(SideFilesOf(state.side))};
  }
  void Cancel() override {
    cancelled_ = true;
    std::lock_guard lock(a_.mu_);
    ++a_.counts_.cancels;
  }

 private:
  Status SendChunk(const State& state, uint32_t c, const wire::Have::Entry& held,
                   net::ChunkSink& sink) {
    const std::vector<std::byte>& to = state.chunks[c];
    wire::FrameHeader h;
    h.type = wire::FrameType::kChunkFull;
    h.chunk = c;
    h.epoch = state.id.id.epoch;
    h.version = state.id.id.version;
    h.digest_after = state.digests[c];
    std::vector<std::byte> payload = to;
    {
      std::lock_guard lock(a_.mu_);
      if (a_.faults_.leave_out.contains(c)) return absl::OkStatus();
      for (const auto& [id, kept] : a_.kept_) {
        if (held.version != id.version || held.digest != kept.digests[c]) continue;
        payload.resize(kernels::MaxEncodedBytes(to.size(), 2));
        const auto r =
            kernels::Best().diff_encode(a_.key_, kept.chunks[c], to, 2, held.digest, payload);
        if (r.bytes >= to.size()) break;
        payload.resize(r.bytes);
        h.type = wire::FrameType::kChunkDelta;
        h.digest_before = held.digest;
      }
      if (h.type == wire::FrameType::kChunkFull) {
        payload = to;
        ++a_.counts_.chunks_full;
        if (a_.faults_.flip[c] > 0) {
          --a_.faults_.flip[c];
          payload[7] ^= std::byte{4};
        }
      } else {
        ++a_.counts_.chunks_delta;
      }
    }
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    if (h.type == wire::FrameType::kChunkDelta) h.payload_xxh3 = Xxh3(payload);
    DW_ASSIGN_OR_RETURN(const MutableBytes place, sink.Begin(h));
    std::memcpy(place.data(), payload.data(), payload.size());
    sink.Arrived(h, payload.size());
    return sink.Finish(h);
  }

  FakeAgent& a_;
  const net::PullTarget target_;
  std::atomic<bool> cancelled_{false};
};

inline std::unique_ptr<Upstream> FakeAgent::MakeUpstream() { return std::make_unique<Up>(*this); }

inline TransportFactory FakeAgent::Transports(std::vector<FakeAgent*> agents) {
  return [agents](net::PullTarget target) -> std::unique_ptr<net::PullTransport> {
    for (FakeAgent* a : agents) {
      if (a->name_ == target.host) return std::make_unique<Transport>(*a, std::move(target));
    }
    return nullptr;
  };
}

inline std::string ReadText(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// True if the file exists and ends in these chunks.
inline bool EndsIn(const std::filesystem::path& file, const FakeAgent::Chunks& chunks) {
  std::string want;
  for (const auto& c : chunks) want.append(reinterpret_cast<const char*>(c.data()), c.size());
  const std::string text = ReadText(file);
  return text.size() > want.size() &&
         text.compare(text.size() - want.size(), want.size(), want) == 0;
}

}  // namespace deltawire::receiver
