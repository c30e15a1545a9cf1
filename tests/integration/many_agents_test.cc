// A trainer whose nodes share no memory: several real senders, each with a part of the model, and a
// receiver that commits a version only when it has all parts. Its bytes are compared with the
// trainer's own memory.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "common/base/attempt.h"
#include "common/layout/coverage.h"
#include "tests/support/http_get.h"
#include "tests/support/relays.h"

namespace deltawire::testing::many_agents_test {
namespace {

constexpr size_t kMegabytes = 24;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// One model and the agents that publish it. Runs of one to four chunks are dealt to the agents in
/// turn.
class Nodes {
 public:
  Nodes(const std::filesystem::path& root, size_t n, uint64_t seed,
        const std::vector<std::string>& of_senders = {})
      : root_(root), trainer_("", kModel, kMegabytes, seed) {
    const ChunkTable table = *ChunkTable::Create(trainer_.layout());
    owned_.resize(n);
    std::mt19937_64 random(seed);
    size_t agent = 0;
    for (uint32_t c = 0; c < table.size(); agent = (agent + 1) % n) {
      const auto last = std::min<uint32_t>(table.size(), c + 1 + random() % 4);
      owned_[agent].push_back({c, last});
      c = last;
    }
    for (size_t i = 0; i < n; ++i) {
      const auto dir = root / ("node" + std::to_string(i));
      std::filesystem::create_directories(dir);
      senders_.push_back(std::make_unique<SenderProcess>(dir, of_senders));
      clients_.push_back(std::make_unique<TrainerClient>(senders_[i]->socket(), kModel));
      bytes_.push_back(Coverage::Create(owned_[i], table.size())->bytes(table));
    }
  }

  Status Register(size_t i, const std::vector<ChunkRange>& owned, bool replace = false) {
    return clients_[i]
        ->Register(trainer_.layout(), {{"config.json", "{}"}}, {.replace = replace, .owned = owned})
        .status();
  }
  Status TryPublish(size_t i, uint64_t version) {
    DW_RETURN_IF_ERROR(Register(i, owned_[i]));
    // The attempt ties the parts of one offload together, at whatever time each node writes its
    // own. So the k-th offload of a version has the same attempt at every node.
    uint64_t& attempt = attempts_[{version, begun_[{i, version}]++}];
    if (attempt == 0) attempt = DrawAttempt();
    DW_ASSIGN_OR_RETURN(auto offload, clients_[i]->Begin(version, attempt));
    const ChunkTable table = *ChunkTable::Create(trainer_.layout());
    const Coverage mine = *Coverage::Create(owned_[i], table.size());
    for (size_t t = 0; t < trainer_.layout().size(); ++t) {
      if (!mine.Meets({table.first_of_tensor(t), table.end_of_tensor(t)})) continue;
      DW_RETURN_IF_ERROR(
          offload->Write(t, Bytes(trainer_.content())
                                .subspan(trainer_.layout().offset(t), trainer_.layout().bytes(t))));
    }
    DW_RETURN_IF_ERROR(offload->Ready());
    return clients_[i]->WaitPublished(version).status();
  }
  /// Publishes what the trainer holds now as `version`, at one node or at all of them.
  void Publish(size_t i, uint64_t version) {
    CAPTURE(i, version);
    kept_[version] = trainer_.content();
    REQUIRE(TryPublish(i, version) == absl::OkStatus());
  }
  void Publish(uint64_t version) {
    for (size_t i = 0; i < senders_.size(); ++i) Publish(i, version);
  }
  /// The node's rank dies before it begins this version: its next offload is the trainer's second.
  void Miss(size_t i, uint64_t version) { ++begun_[{i, version}]; }
  void Rollback(size_t i, uint64_t version) {
    REQUIRE(senders_[i]->Rollback(kModel, version).status() == absl::OkStatus());
  }

  std::unique_ptr<ReceiverProcess> Receiver(std::vector<std::string> extra = {}) {
    for (size_t i = 1; i < senders_.size(); ++i) {
      extra.push_back("--sender");
      extra.push_back(senders_[i]->control());
    }
    return std::make_unique<ReceiverProcess>(root_, "r1", senders_[0]->control(), kModel, extra);
  }
  /// Returns "" when the directory holds just what was published as `version`, else what differs.
  std::string Compare(const std::filesystem::path& directory, uint64_t version) {
    const std::vector<std::byte> now = std::exchange(trainer_.content(), kept_.at(version));
    std::string wrong = trainer_.Compare(directory);
    trainer_.content() = now;
    return wrong;
  }
  std::string Logs() const {
    std::string logs;
    for (const auto& s : senders_) logs += s->control() + ":\n" + ReadText(s->log());
    return logs + ReadText(root_ / "r1.log");
  }

  Trainer& trainer() { return trainer_; }
  SenderProcess& sender(size_t i) { return *senders_[i]; }
  uint64_t bytes(size_t i) const { return bytes_[i]; }
  std::vector<ChunkRange>& owned(size_t i) { return owned_[i]; }

 private:
  const std::filesystem::path root_;
  Trainer trainer_;
  std::vector<std::vector<ChunkRange>> owned_;
  std::vector<uint64_t> bytes_;
  std::vector<std::unique_ptr<SenderProcess>> senders_;
  std::vector<std::unique_ptr<TrainerClient>> clients_;
  std::map<uint64_t, std::vector<std::byte>> kept_;
  std::map<std::pair<size_t, uint64_t>, size_t> begun_;       // how often a node began a version
  std::map<std::pair<uint64_t, size_t>, uint64_t> attempts_;  // by version and number of offload
};

uint64_t Allocated(const std::filesystem::path& file) {
  struct stat info {};
  REQUIRE(stat(file.c_str(), &info) == 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

/// The version that a call of Sync has brought.
StatusOr<uint64_t> Sync(ReceiverProcess& receiver) {
  DW_ASSIGN_OR_RETURN(const auto updates, receiver.Sync());
  return updates.back().target().version();
}

}  // namespace

TEST_CASE("many agents: each holds and sends its own part alone, in full and then as deltas") {
  for (const size_t n : {size_t{2}, size_t{3}}) {
    CAPTURE(n);
    ShmDir root;
    Nodes nodes(root.path(), n, 40 + n);
    auto receiver = nodes.Receiver();
    nodes.Publish(1);
    const bool committed = receiver->WaitCommitted(1);
    INFO(nodes.Logs());
    REQUIRE(committed);
    CHECK(nodes.Compare(receiver->dir(), 1) == "");
    for (uint64_t v = 2; v <= 5; ++v) {
      nodes.trainer().Step();
      nodes.Publish(v);
      REQUIRE(receiver->WaitCommitted(v));
      CHECK(nodes.Compare(receiver->dir(), v) == "");
      CHECK(receiver->Status().last_pull().chunks_full() == 0);
    }
    const auto status = receiver->Status();
    CHECK(status.committed().version() == 5);
    CHECK(status.attached());
    REQUIRE(status.agents_size() == static_cast<int>(n));
    for (size_t i = 0; i < n; ++i) {
      CAPTURE(i);
      CHECK(status.agents(i).owned_bytes() == nodes.bytes(i));
      CHECK(status.agents(i).newest().version() == 5);
      const auto sender = nodes.sender(i).Status(kModel);
      CHECK(sender.owned_bytes() == nodes.bytes(i));
      CHECK(sender.newest().model_bytes() == nodes.bytes(i));
      CHECK(sender.newest().elements() > sender.newest().changed_elements());
      CHECK(sender.bytes_sent() >= nodes.bytes(i));
      CHECK(sender.bytes_sent() < nodes.bytes(i) + nodes.bytes(i) / 2);
      for (const char* half : {"half-0.safetensors", "half-1.safetensors"}) {
        // Each range may take a whole page more at either end, and the header takes some pages.
        CHECK(Allocated(nodes.sender(i).dir() / kModel / half) <=
              nodes.bytes(i) + (nodes.owned(i).size() + 2) * 2 * 4096);
      }
    }
  }
}

TEST_CASE("many agents: a version counts when the last agent has it, and earlier ones are served") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 7);
  nodes.Publish(1);
  auto receiver = nodes.Receiver();
  REQUIRE(receiver->WaitCommitted(1));
  nodes.trainer().Step();
  nodes.Publish(0, 2);
  REQUIRE(Eventually([&] { return receiver->Status().agents(0).newest().version() == 2; }));
  // Version 1 is the newest that both agents have published, and it stays loadable.
  CHECK(Sync(*receiver).value_or(0) == 1);
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
  const std::vector<std::byte> second = nodes.trainer().content();
  nodes.trainer().Step();
  const std::vector<std::byte> third = nodes.trainer().content();
  nodes.Publish(0, 3);
  nodes.trainer().content() = second;
  nodes.Publish(1, 2);
  REQUIRE(receiver->WaitCommitted(2));
  INFO(nodes.Logs());
  // The first agent is at 3 and has swapped its halves twice; its part of 2 comes from its log.
  CHECK(receiver->Status().committed().version() == 2);
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
  CHECK(receiver->Status().last_pull().chunks_full() == 0);
  nodes.trainer().content() = third;
  nodes.Publish(1, 3);
  REQUIRE(receiver->WaitCommitted(3));
  CHECK(nodes.Compare(receiver->dir(), 3) == "");
}

TEST_CASE("many agents: a receiver that joins while the agents are apart gets what all have") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 8);
  nodes.Publish(1);
  const std::vector<std::byte> first = nodes.trainer().content();
  nodes.trainer().Step();
  nodes.Publish(0, 2);
  auto receiver = nodes.Receiver();
  REQUIRE(receiver->WaitCommitted(1));
  INFO(nodes.Logs());
  CHECK(receiver->Status().committed().version() == 1);
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
  // After a restart the agent has no delta log any more, but its other half still holds version 1.
  nodes.sender(0).Restart();
  receiver.reset();
  std::filesystem::remove_all(root.path() / "r1");
  receiver = nodes.Receiver();
  REQUIRE(receiver->WaitCommitted(1));
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
  nodes.Publish(1, 2);
  REQUIRE(receiver->WaitCommitted(2));
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
}

TEST_CASE("many agents: bytes that an agent has overwritten are made again from its log") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 14);
  nodes.Publish(1);
  for (uint64_t v = 2; v <= 4; ++v) {
    nodes.trainer().Step(0.05);
    nodes.Publish(0, v);
  }
  auto receiver = nodes.Receiver();
  const bool committed = receiver->WaitCommitted(1);
  INFO(nodes.Logs());
  REQUIRE(committed);
  CHECK(receiver->Status().committed().version() == 1);
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
}

TEST_CASE("many agents: bytes that an agent no longer has are waited for in a newer version") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 14);
  nodes.Publish(1);
  std::vector<std::vector<std::byte>> later;
  for (uint64_t v = 2; v <= 4; ++v) {
    nodes.trainer().Step(0.05);
    later.push_back(nodes.trainer().content());
    nodes.Publish(0, v);
  }
  // Version 1 is all that both agents have published. The first agent has overwritten both halves
  // since, and its restart empties the delta log.
  nodes.sender(0).Restart();
  auto receiver = nodes.Receiver();
  CHECK(Eventually(
      [&] { return Has(receiver->Status().message(), "version 1 is not kept any more"); }));
  CHECK(Has(receiver->Status().message(), nodes.sender(0).control()));
  CHECK(receiver->Status().committed().epoch() == 0);
  for (uint64_t v = 2; v <= 4; ++v) {
    nodes.trainer().content() = later[v - 2];
    nodes.Publish(1, v);
  }
  const bool committed = receiver->WaitCommitted(4);
  INFO(nodes.Logs());
  REQUIRE(committed);
  CHECK(nodes.Compare(receiver->dir(), 4) == "");
}

TEST_CASE("many agents: a rollback counts when all have rolled back") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 9);
  auto receiver = nodes.Receiver();
  for (uint64_t v = 1; v <= 3; ++v) {
    nodes.Publish(v);
    REQUIRE(receiver->WaitCommitted(v));
    nodes.trainer().Step();
  }
  nodes.Rollback(0, 2);
  REQUIRE(Eventually([&] { return receiver->Status().agents(0).newest().epoch() == 2; }));
  CHECK(nodes.Compare(receiver->dir(), 3) == "");
  const auto refused = Sync(*receiver);
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(Has(std::string(MessageOf(refused.status())), nodes.sender(0).control() + " at version 2"));
  nodes.Rollback(1, 2);
  REQUIRE(Eventually([&] { return receiver->Status().committed().epoch() == 2; }));
  INFO(nodes.Logs());
  CHECK(receiver->Status().committed().version() == 2);
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
  nodes.Publish(3);
  REQUIRE(Eventually([&] { return receiver->Status().committed().version() == 3; }));
  CHECK(nodes.Compare(receiver->dir(), 3) == "");
}

TEST_CASE("many agents: a version that was redone is never mixed with what was published before") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 19);
  auto receiver = nodes.Receiver();
  for (uint64_t v = 1; v <= 2; ++v) {
    nodes.Publish(v);
    REQUIRE(receiver->WaitCommitted(v));
    nodes.trainer().Step();
  }
  nodes.Publish(0, 3);
  nodes.Miss(1, 3);
  // The trainer resumes and comes to another version 3, which one node publishes before the other.
  nodes.trainer().Step();
  nodes.Publish(1, 3);
  REQUIRE(Eventually([&] { return receiver->Status().agents(1).newest().version() == 3; }));
  INFO(nodes.Logs());
  CHECK(Eventually(
      [&] { return Has(receiver->Status().message(), "no version of one attempt above"); }));
  const auto synced = Sync(*receiver);  // even then no part of either version 3 is used
  INFO(synced.status());
  CHECK(*synced == 2);
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
  nodes.Publish(0, 3);
  REQUIRE(receiver->WaitCommitted(3));
  CHECK(nodes.Compare(receiver->dir(), 3) == "");
}

TEST_CASE("many agents: gaps and overlaps are named, and waited for") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 10);
  const auto says = [&](ReceiverProcess& receiver, const std::string& part) {
    return Eventually([&] { return Has(receiver.Status().message(), part); });
  };
  // Both agents are registered as owners of the whole model.
  REQUIRE(nodes.Register(0, {}) == absl::OkStatus());
  REQUIRE(nodes.Register(1, {}) == absl::OkStatus());
  auto receiver = nodes.Receiver();
  CHECK(says(*receiver, "two agents have chunks [0, "));
  CHECK(says(*receiver, nodes.sender(0).control() + " and " + nodes.sender(1).control()));
  CHECK_FALSE(std::filesystem::exists(receiver->dir() / "model.safetensors"));
  // Registering another part of a registered model is refused unless `replace` asks for it.
  const Status other = nodes.Register(0, nodes.owned(0));
  CHECK(absl::IsFailedPrecondition(other));
  CHECK(Has(std::string(MessageOf(other)), "another part"));
  CHECK(absl::IsInvalidArgument(nodes.Register(0, {{3, 4}, {0, 1}})));
  // Now no agent owns chunk 0.
  REQUIRE(nodes.owned(0).front() == ChunkRange{0, nodes.owned(0).front().last});
  std::vector<ChunkRange> without = nodes.owned(0);
  without.front().first = without.front().last > 1 ? 1 : 0;
  if (without.front().first == 0) without.erase(without.begin());
  REQUIRE(nodes.Register(0, without, true) == absl::OkStatus());
  REQUIRE(nodes.Register(1, nodes.owned(1), true) == absl::OkStatus());
  CHECK(says(*receiver, "no agent has chunks [0, 1)"));
  CHECK(receiver->child().Running());
  REQUIRE(nodes.Register(0, nodes.owned(0), true) == absl::OkStatus());
  nodes.Publish(1);
  REQUIRE(receiver->WaitCommitted(1));
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
}

TEST_CASE("many agents: a receiver of one of them refuses to take its part for the model") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 11);
  nodes.Publish(1);
  ReceiverProcess alone(root.path(), "alone", nodes.sender(0).control(), kModel);
  CHECK(Eventually([&] { return Has(alone.Status().message(), "no agent has chunks"); }));
  CHECK_FALSE(std::filesystem::exists(alone.dir() / "model.safetensors"));
  // The agent also refuses a pull that names no part, as a receiver of a single sender asks.
  v1::OpenPullRequest request;
  request.set_model(kModel);
  request.set_receiver_id("old");
  request.set_fingerprint(nodes.trainer().layout().fingerprint().Hex());
  request.set_streams(1);
  v1::OpenPullResponse response;
  grpc::ClientContext context;
  const auto status = nodes.sender(0).pulls().OpenPull(&context, request, &response);
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(Has(status.error_message(), "expects others"));
}

TEST_CASE(
    "many agents: whatever is committed while they publish at their own pace is one version") {
  ShmDir root;
  Nodes nodes(root.path(), 3, 12);
  // With one file: with two, the name may be the other slot's by the time that it is opened.
  auto receiver = nodes.Receiver({"--buffers", "1"});
  nodes.Publish(1);
  REQUIRE(receiver->WaitCommitted(1));
  std::mt19937_64 random(12);
  constexpr uint64_t kLast = 12;
  for (uint64_t v = 2; v <= kLast; ++v) {
    nodes.trainer().Step(0.02);
    std::vector<size_t> order = {0, 1, 2};
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) nodes.Publish(i, v);
    // Reads as an engine does: a result counts only if the file was wholly one version from before
    // the read until after it.
    auto state = StateReader::Open(receiver->dir() / ".deltawire.state");
    REQUIRE(state.ok());
    const auto before = state->slot(0);
    if (before.phase != SlotPhase::kWhole || before.sequence % 2 != 0) continue;
    const std::string wrong = nodes.Compare(receiver->dir(), before.id().version);
    if (state->StillHolds(0, before)) CHECK(wrong == "");
  }
  REQUIRE(receiver->WaitCommitted(kLast));
  INFO(nodes.Logs());
  CHECK(nodes.Compare(receiver->dir(), kLast) == "");
}

namespace {

void KillOne(uint64_t seed) {
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  ShmDir root;
  Nodes nodes(root.path(), 3, seed);
  const bool full = random() % 2 == 0;
  const size_t victim = random() % 4;  // 3: the receiver
  const auto threshold = static_cast<uint32_t>(random() % 30);
  CAPTURE(full, victim, threshold);
  uint64_t version = 1;
  std::unique_ptr<ReceiverProcess> receiver;
  nodes.Publish(version);
  if (!full) {
    receiver = nodes.Receiver();
    REQUIRE(receiver->WaitCommitted(version));
    nodes.trainer().Step();
    nodes.Publish(++version);
  } else {
    receiver = nodes.Receiver();
  }
  REQUIRE(Eventually([&] { return Arrived(*receiver, version) >= threshold; }));
  victim == 3 ? receiver->Restart() : nodes.sender(victim).Restart();
  const bool committed = receiver->WaitCommitted(version);
  INFO(nodes.Logs());
  REQUIRE(committed);
  CHECK(nodes.Compare(receiver->dir(), version) == "");
  for (size_t i = 0; full && victim < 3 && i < 3; ++i) {
    // The receiver does not ask the agents that stayed alive for their chunks again.
    if (i != victim) CHECK(nodes.sender(i).Status(kModel).bytes_sent() == nodes.bytes(i));
  }
  nodes.trainer().Step();
  nodes.Publish(++version);
  REQUIRE(receiver->WaitCommitted(version));
  CHECK(nodes.Compare(receiver->dir(), version) == "");
}

}  // namespace

TEST_CASE("many agents: seeded SIGKILLs of agents and receiver end in one verified version") {
  // The environment variable DELTAWIRE_SEED repeats a single one of them.
  if (const char* one = std::getenv("DELTAWIRE_SEED")) return KillOne(std::stoull(one));
  for (uint64_t seed = 1; seed <= 16; ++seed) KillOne(seed);
}

TEST_CASE("many agents: a dead agent leaves the last version loadable until it is back") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 13);
  auto receiver = nodes.Receiver();
  nodes.Publish(1);
  REQUIRE(receiver->WaitCommitted(1));
  nodes.sender(1).child().Kill();
  REQUIRE(Eventually([&] { return !receiver->Status().attached(); }));
  nodes.trainer().Step();
  nodes.Publish(0, 2);
  CHECK(Eventually([&] { return Has(receiver->Status().message(), nodes.sender(1).control()); }));
  CHECK(receiver->Status().committed().version() == 1);
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
  nodes.sender(1).Start();
  nodes.Publish(1, 2);
  const bool committed = receiver->WaitCommitted(2);
  INFO(nodes.Logs());
  REQUIRE(committed);
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
}

TEST_CASE("many agents: what one agent brought stays in memory while another cannot be reached") {
  ShmDir root;
  // What an early pull brings is counted, too, and may be dropped and sent again.
  Nodes nodes(root.path(), 2, 15, {"--early", "diff"});
  auto receiver = nodes.Receiver();
  nodes.Publish(1);
  REQUIRE(receiver->WaitCommitted(1));
  // The second agent answers calls, but tells receivers to dial an address where nobody listens.
  nodes.sender(1).Restart({"--advertise-host", "127.0.0.2", "--early", "diff"});
  nodes.trainer().Step();
  nodes.Publish(2);
  int refused = 0;
  REQUIRE(Eventually([&] {
    const auto synced = Sync(*receiver);
    refused += Has(std::string(MessageOf(synced.status())), "127.0.0.2");
    return refused == 3;
  }));
  INFO(nodes.Logs());
  CHECK(Has(receiver->Status().message(), "agent " + nodes.sender(1).control()));
  CHECK(nodes.Compare(receiver->dir(), 1) == "");
  const auto sent = [&] { return nodes.sender(0).Status(kModel).bytes_sent(); };
  const uint64_t once = nodes.bytes(0) + nodes.sender(0).Status(kModel).newest().delta_bytes();
  CHECK(sent() == once);
  nodes.sender(1).Restart({"--early", "diff"});
  const bool committed = receiver->WaitCommitted(2);
  REQUIRE(committed);
  CHECK(nodes.Compare(receiver->dir(), 2) == "");
  CHECK(sent() == once);
  nodes.trainer().Step();
  nodes.Publish(3);
  REQUIRE(receiver->WaitCommitted(3));
  CHECK(nodes.Compare(receiver->dir(), 3) == "");
}

TEST_CASE("many agents: a relay puts the parts together, and its leaf follows it alone") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 17);
  auto relay = nodes.Receiver(Serving({"--buffers", "2"}));
  ReceiverProcess leaf(root.path(), "leaf", relay->control(), kModel);
  for (uint64_t v = 1; v <= 3; ++v) {
    nodes.trainer().Step();
    nodes.Publish(v);
    const bool committed = leaf.WaitCommitted(v);
    INFO(nodes.Logs() << ReadText(leaf.log()));
    REQUIRE(committed);
    CHECK(nodes.Compare(leaf.dir(), v) == "");
    const auto here = leaf.Status().committed(), there = relay->Status().committed();
    CHECK(here.lineage() == there.lineage());
    CHECK(here.root() == there.root());
    CHECK((v == 1 || leaf.Status().last_pull().chunks_full() == 0));
  }
}

TEST_CASE("many agents: a relay passes their parts on while they come, as one version") {
  ShmDir root;
  Nodes nodes(root.path(), 2, 52, {"--rate-limit", "5MB"});
  const uint16_t metrics = FreePort();
  auto relay =
      nodes.Receiver({"--buffers", "2", "--bulk-listen", fmt::format("127.0.0.1:{}", FreePort()),
                      "--metrics-listen", fmt::format("127.0.0.1:{}", metrics)});
  ReceiverProcess leaf(root.path(), "leaf", relay->control(), kModel);
  const auto ahead = [&] {
    const std::string name = "\ndeltawire_receiver_relay_bytes_ahead_total{model=\"m\"} ";
    const std::string all = HttpGet(metrics, "/metrics");
    const size_t at = all.find(name);
    return at == std::string::npos ? 0.0 : std::stod(all.substr(at + name.size()));
  };
  const auto follow = [&](uint64_t version) {
    nodes.Publish(version);
    const bool followed = relay->WaitCommitted(version) && leaf.WaitCommitted(version);
    INFO(nodes.Logs() << ReadText(leaf.log()));
    REQUIRE(followed);
    CHECK(nodes.Compare(relay->dir(), version) == "");
    CHECK(nodes.Compare(leaf.dir(), version) == "");
    const auto here = leaf.Status().committed(), there = relay->Status().committed();
    CHECK(here.lineage() == there.lineage());
    CHECK(here.epoch() == there.epoch());
    CHECK(here.root() == there.root());
    CHECK(ReadText(leaf.dir() / "config.json") == ReadText(relay->dir() / "config.json"));
  };
  follow(1);
  const double whole = ahead();
  CHECK(whole > 0);
  nodes.trainer().Step(0.05);
  follow(2);
  // All of the delta went on as it came, from either agent.
  CHECK(ahead() - whole == static_cast<double>(relay->Status().last_pull().payload_bytes()));
  // A rollback of one agent gives it an epoch of its own. The next whole has that epoch, and the
  // other agent's frames have not.
  nodes.Rollback(0, 1);
  const double before = ahead();
  nodes.trainer().Step(0.05);
  follow(3);
  // Chunks that look back to deltas which the leaf names differently go on in the codec fast.
  CHECK(ahead() - before >= static_cast<double>(relay->Status().last_pull().payload_bytes()));
  CHECK(leaf.Status().last_pull().chunks_full() == 0);
  CHECK(ReadText(leaf.log()).find("did not come") == std::string::npos);
}

}  // namespace deltawire::testing::many_agents_test
