// Receivers of a trainer with several agents that take their parts while they are written: two real
// senders, of which each has half of the tensors. The bytes are compared with the trainer's memory.
#include <cstring>
#include <deque>
#include <optional>

#include "common/layout/chunks.h"
#include "tests/integration/early_offload.h"

namespace deltawire::testing::early_agents_test {
namespace {

/// A model that two senders and a receiver have at version 1, whose content then has changed. The
/// first sender has the first half of the tensors, the second the others.
struct Parts {
  explicit Parts(const std::string& number_of_buffers, uint64_t seed,
                 const std::vector<std::string>& of_second = {},
                 std::vector<std::string> of_receiver = {})
      : buffers(number_of_buffers), trainer("", kModel, 24, seed) {
    const ChunkTable chunks = *ChunkTable::Create(trainer.layout());
    const uint32_t cut = chunks.first_of_tensor(end(0));
    const ChunkRange owned[] = {{0, cut}, {cut, chunks.size()}};
    for (size_t i = 0; i < 2; ++i) {
      const auto dir = root.path() / fmt::format("node{}", i);
      std::filesystem::create_directories(dir);
      senders.push_back(
          std::make_unique<SenderProcess>(dir, i == 0 ? std::vector<std::string>{} : of_second));
      clients.push_back(std::make_unique<TrainerClient>(senders[i]->socket(), kModel));
      REQUIRE(clients[i]
                  ->Register(trainer.layout(), {{"config.json", "{}"}}, {.owned = {owned[i]}})
                  .ok());
    }
    of_receiver.insert(of_receiver.end(),
                       {"--sender", senders[1]->control(), "--buffers", buffers});
    receiver = std::make_unique<ReceiverProcess>(root.path(), "r", senders[0]->control(), kModel,
                                                 std::move(of_receiver));
    for (Part& part : Begin(1, 1)) PublishAll(part);
    REQUIRE(receiver->WaitCommitted(1));
    old = trainer.content();
    trainer.Step();
  }
  size_t end(size_t agent) const {
    return agent == 0 ? trainer.layout().size() / 2 : trainer.layout().size();
  }
  size_t begin(size_t agent) const { return agent == 0 ? 0 : end(0); }
  size_t middle(size_t agent) const { return (begin(agent) + end(agent)) / 2; }
  struct Part : Offload {
    Part(Parts& p, size_t number, uint64_t version, uint64_t attempt)
        : Offload(*p.senders[number], p.trainer, version, attempt), agent(number) {}
    size_t agent;
  };
  std::deque<Part> Begin(uint64_t version, uint64_t attempt) {
    std::deque<Part> parts;
    for (size_t i = 0; i < 2; ++i) parts.emplace_back(*this, i, version, attempt);
    return parts;
  }
  void WriteFirst(Part& part) {
    part.Write(trainer.content(), begin(part.agent), middle(part.agent));
  }
  void WriteRest(Part& part) { part.Write(trainer.content(), middle(part.agent), end(part.agent)); }
  void Publish(Part& part) {
    WriteRest(part);
    part.Ready();
  }
  void PublishAll(Part& part) {
    WriteFirst(part);
    Publish(part);
  }
  /// Chunks of the tensors written first at the agent that have changed since version 1.
  uint32_t changed(size_t agent) {
    const ChunkTable chunks = *ChunkTable::Create(trainer.layout());
    uint32_t n = 0;
    for (uint32_t c = chunks.first_of_tensor(begin(agent));
         c < chunks.first_of_tensor(middle(agent)); ++c) {
      n += std::memcmp(&old[chunks[c].offset], &trainer.content()[chunks[c].offset],
                       chunks[c].bytes) != 0;
    }
    return n;
  }
  /// Waits until the receiver has what was written first at these agents.
  void AwaitEarly(uint64_t version, const std::vector<size_t>& agents) {
    uint32_t chunks = 0;
    for (const size_t agent : agents) chunks += changed(agent);
    const bool came = Eventually([&] {
      const auto status = receiver->Status();
      return status.phase() == "pulling" && status.bytes_done() > 0 &&
             (buffers == "1" || Holding(*receiver, version) == chunks);
    });
    INFO(Logs());
    REQUIRE(came);
    CHECK(receiver->Status().committed().version() < version);
    ReadersSeeTheOld();
  }
  void ReadersSeeTheOld() {
    trainer.content().swap(old);
    CHECK(trainer.Compare(receiver->dir()) == "");
    trainer.content().swap(old);
  }
  void Follows(uint64_t version, uint64_t attempt) {
    const bool committed = Eventually([&] {
      const auto now = receiver->Status().committed();
      return now.version() == version && now.attempt() == attempt;
    });
    INFO(Logs());
    REQUIRE(committed);
    CHECK(trainer.Compare(receiver->dir()) == "");
  }
  bool Says(const std::string& text) {
    return ReadText(receiver->log()).find(text) != std::string::npos;
  }
  std::string Logs() const {
    return ReadText(senders[0]->log()) + ReadText(senders[1]->log()) + ReadText(receiver->log());
  }

  const std::string buffers;
  ShmDir root;
  Trainer trainer;
  std::vector<std::unique_ptr<SenderProcess>> senders;
  std::vector<std::unique_ptr<TrainerClient>> clients;
  std::unique_ptr<ReceiverProcess> receiver;
  std::vector<std::byte> old;
};

}  // namespace

TEST_CASE("the parts of several agents come while the trainer writes, and make one version") {
  const std::string buffers = GENERATE("1", "2");
  CAPTURE(buffers);
  Parts s(buffers, 311);
  auto parts = s.Begin(2, 20);
  for (auto& part : parts) s.WriteFirst(part);
  s.AwaitEarly(2, {0, 1});
  for (auto& part : parts) s.Publish(part);
  s.Follows(2, 20);
  const auto pull = s.receiver->Status().last_pull();
  CHECK(pull.ahead_bytes() > 0);
  CHECK(pull.ahead_bytes() <= pull.payload_bytes());
  CHECK(pull.chunks_full() == 0);
  CHECK(s.receiver->Status().commits() == 2);
  CHECK_FALSE(s.Says("discarding the chunks of"));
  // The next one begins at the parts' new states.
  s.old = s.trainer.content();
  s.trainer.Step();
  auto next = s.Begin(3, 30);
  for (auto& part : next) s.WriteFirst(part);
  s.AwaitEarly(3, {0, 1});
  for (auto& part : next) s.Publish(part);
  s.Follows(3, 30);
  CHECK(s.receiver->Status().last_pull().chunks_full() == 0);
}

TEST_CASE(
    "a version that one of several agents gives up is dropped, and never mixed with another") {
  const std::string buffers = GENERATE("1", "2");
  const std::string how = GENERATE("abandon", "kill", "begin again");
  CAPTURE(buffers, how);
  Parts s(buffers, 312);
  auto parts = s.Begin(2, 20);
  for (auto& part : parts) s.WriteFirst(part);
  s.AwaitEarly(2, {0, 1});
  if (how == "abandon") parts[1].Abandon();
  if (how == "kill") s.senders[1]->Restart();
  std::optional<Parts::Part> other;
  if (how == "begin again") {
    other.emplace(s, 1, 2, 21);
    s.WriteFirst(*other);
  }
  const bool dropped = Eventually([&] { return s.Says("which is not published"); });
  INFO(s.Logs());
  REQUIRE(dropped);
  CHECK(Eventually([&] { return Holding(*s.receiver, 2) == 0; }));
  // The other agent goes on, and publishes its part of what is nowhere whole.
  s.Publish(parts[0]);
  REQUIRE(Eventually([&] { return s.receiver->Status().agents(0).newest().version() == 2; }));
  if (other) {
    s.Publish(*other);
    REQUIRE(Eventually([&] { return s.receiver->Status().agents(1).newest().version() == 2; }));
  }
  CHECK(s.receiver->Status().committed().version() == 1);
  s.ReadersSeeTheOld();
  s.trainer.Step();
  for (auto& part : s.Begin(2, 22)) s.PublishAll(part);
  s.Follows(2, 22);
  CHECK(s.receiver->Status().commits() == 2);
}

TEST_CASE("of several agents one sends early, and the other when it has published") {
  const std::string buffers = GENERATE("1", "2");
  const size_t first = GENERATE(size_t{0}, size_t{1});
  // For the second one to publish the pull of the first waits so long. Then it ends, and what came
  // stays.
  const bool patient = GENERATE(true, false);
  CAPTURE(buffers, first, patient);
  Parts s(buffers, 313, {"--early", "diff"}, {"--stream-timeout-ms", patient ? "30000" : "1000"});
  auto parts = s.Begin(2, 20);
  for (auto& part : parts) s.WriteFirst(part);
  s.AwaitEarly(2, {0});
  s.Publish(parts[first]);
  const bool waits = Eventually([&] {
    const auto at = static_cast<int>(first);
    return s.receiver->Status().agents(at).newest().version() == 2 &&
           (patient || first == 1 || s.Says("has not published its part of version 2 yet"));
  });
  INFO(s.Logs());
  REQUIRE(waits);
  CHECK(s.receiver->Status().committed().version() == 1);
  s.ReadersSeeTheOld();
  s.Publish(parts[1 - first]);
  s.Follows(2, 20);
  CHECK_FALSE(s.Says("discarding the chunks of"));
  CHECK(s.receiver->Status().message().empty());
  CHECK(s.receiver->Status().last_pull().chunks_full() == 0);
  CHECK(s.receiver->Status().commits() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const auto sender = s.senders[i]->Status(kModel);
    CHECK(sender.bytes_sent() == sender.owned_bytes() + sender.newest().delta_bytes());
  }
}

TEST_CASE("the only file keeps its name until the last of several agents has published") {
  Parts s("1", 314);
  // The first agent's second half changes everywhere, so it comes whole, and not before it is
  // published.
  const Layout& layout = s.trainer.layout();
  for (uint64_t at = layout.offset(s.middle(0)); at < layout.offset(s.end(0)); ++at) {
    s.trainer.content()[at] ^= static_cast<std::byte>(1 + at % 127);
  }
  auto parts = s.Begin(2, 20);
  for (auto& part : parts) s.WriteFirst(part);
  s.AwaitEarly(2, {0, 1});
  s.Publish(parts[0]);
  const bool refused =
      Eventually([&] { return s.Says("is pulled when all agents have published"); });
  INFO(s.Logs());
  REQUIRE(refused);
  CHECK(s.receiver->Status().committed().version() == 1);
  CHECK(s.receiver->Status().message().empty());
  s.ReadersSeeTheOld();
  SECTION("which it does") {
    s.Publish(parts[1]);
    s.Follows(2, 20);
  }
  SECTION("and forever if it does not") {
    parts[1].Abandon();
    REQUIRE(Eventually([&] { return s.Says("which is not published"); }));
    s.ReadersSeeTheOld();
    s.trainer.Step();
    for (auto& part : s.Begin(2, 22)) s.PublishAll(part);
    s.Follows(2, 22);
  }
}

}  // namespace deltawire::testing::early_agents_test
