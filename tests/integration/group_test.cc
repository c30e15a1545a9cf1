// Groups of real daemons: nothing that a reader sees changes before the word, and SIGKILLs of
// anybody at any point of preparing and committing end in one version everywhere.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/daemons.h"

namespace deltawire::testing::group_test {
namespace {

constexpr const char* kModel = "m";

/// "1", "2", "copy" (one, with a fresh file for what cannot be made ready beside it) or "small"
/// (one, beside which next to nothing can be made ready).
std::vector<std::string> Buffers(const std::string& text) {
  if (text == "small") return {"--buffers", "1", "--staging", "4096"};
  if (text != "copy") return {"--buffers", text};
  return {"--buffers", "1", "--on-busy-reader", "copy"};
}

struct Fleet {
  Fleet(std::vector<std::string> sender_options, std::vector<std::string> buffers,
        size_t megabytes = 4, uint64_t seed = 1)
      : sender(root.path(), std::move(sender_options)),
        trainer(sender.socket(), kModel, megabytes, seed) {
    REQUIRE(trainer.Publish(version).status() == absl::OkStatus());
    for (size_t i = 0; i < buffers.size(); ++i) {
      members.push_back(std::make_unique<ReceiverProcess>(
          root.path(), fmt::format("r{}", i), sender.control(), kModel, Buffers(buffers[i])));
    }
  }
  void Step() {
    trainer.Step();
    REQUIRE(trainer.Publish(++version).status() == absl::OkStatus());
  }
  std::string logs() const {
    std::string text = "sender:\n" + ReadText(sender.log());
    for (const auto& m : members) text += "receiver:\n" + ReadText(m->log());
    return text;
  }
  v1::GroupStatus group() {
    const v1::SenderModelStatus status = sender.Status(kModel);
    return status.groups_size() == 0 ? v1::GroupStatus() : status.groups(0);
  }
  bool AllAttached() {
    return Eventually([&] { return sender.Status(kModel).receivers() == members.size(); });
  }
  /// A round of the group; the outcome, or why there is none.
  StatusOr<v1::GroupOutcome> Sync(const std::string& name, std::vector<std::string> ids = {}) {
    v1::TriggerSyncRequest request;
    request.set_model(kModel);
    request.set_group(name);
    for (const std::string& id : ids) request.add_receiver_ids(id);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stream = sender.orchestrator().TriggerSync(&context, request);
    v1::SyncProgress update;
    v1::GroupOutcome outcome;
    while (stream->Read(&update)) {
      if (update.has_group()) outcome = update.group();
    }
    const grpc::Status ended = stream->Finish();
    if (ended.ok()) return outcome;
    return Status(static_cast<StatusCode>(ended.error_code()), ended.error_message());
  }

  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  uint64_t version = 1;
  std::vector<std::unique_ptr<ReceiverProcess>> members;
};

/// The version that the sender's file says was decided last; 0: none. Read without the daemon's
/// own code.
uint64_t DecidedVersion(const std::filesystem::path& model_dir) {
  std::ifstream in(model_dir / ".deltawire.groups");
  std::string word;
  while (in >> word) {
    if (word != "group") continue;
    std::string name, kind;
    uint64_t round = 0, epoch = 0, version = 0;
    in >> name >> kind >> round >> epoch >> version;
    return version;
  }
  return 0;
}

}  // namespace

TEST_CASE("members of a group stay until the word, and then have the newest version at once") {
  Fleet f({"--group", "g=r0,r1,r2"}, {"2", "2", "1"});
  REQUIRE(f.AllAttached());
  // Nothing was decided yet, so a member that has nothing waits.
  for (const auto& m : f.members) CHECK(m->Status().committed().epoch() == 0);
  const auto first = f.Sync("g");
  INFO(f.logs());
  REQUIRE(first.status() == absl::OkStatus());
  CHECK(first->members() == 3);
  CHECK(first->late() == 0);
  for (const auto& m : f.members) {
    CHECK(f.trainer.Compare(m->dir()) == "");
    CHECK(m->Status().group() == "g");
  }
  f.Step();
  f.Step();
  for (const auto& m : f.members) {
    REQUIRE(Eventually([&] { return m->Status().newest().version() == 3; }));
    CHECK(m->Status().committed().version() == 1);
  }
  const auto second = f.Sync("g");
  REQUIRE(second.status() == absl::OkStatus());
  CHECK(second->target().version() == 3);
  for (const auto& m : f.members) {
    CHECK(m->Status().committed().version() == 3);
    CHECK(f.trainer.Compare(m->dir()) == "");
  }
  CHECK(f.group().commits() == 2);
  CHECK(f.group().last().spread_seconds() >= 0);
  CHECK(DecidedVersion(f.sender.dir() / kModel) == 3);
}

TEST_CASE("an orchestrator's group of receivers that do not follow") {
  Fleet f({}, {"2", "2"});
  REQUIRE(f.AllAttached());
  for (const auto& m : f.members) REQUIRE(m->WaitCommitted(1));
  const auto synced = f.Sync("pair", {"r0", "r1"});
  INFO(f.logs());
  REQUIRE(synced.status() == absl::OkStatus());
  CHECK(synced->members() == 2);
  CHECK(Eventually([&] { return f.sender.Status(kModel).groups_size() == 0; }));
  // They follow by themselves again.
  f.Step();
  for (const auto& m : f.members) CHECK(m->WaitCommitted(2));
}

TEST_CASE(
    "a paused member, and one that has died, abort a round and are named, and nobody is stuck") {
  Fleet f({"--group", "g=r0,r1", "--group-timeout-ms", "1000"}, {"2", "2"});
  REQUIRE(f.AllAttached());
  REQUIRE(f.Sync("g").status() == absl::OkStatus());
  f.Step();
  REQUIRE(f.members[1]->SetPaused(true) == absl::OkStatus());
  const auto paused = f.Sync("g");
  INFO(f.logs());
  CHECK(paused.status().code() == StatusCode::kAborted);
  CHECK(MessageOf(paused.status()).find("r1 cannot prepare it: it is paused") != std::string::npos);
  for (const auto& m : f.members) CHECK(m->Status().committed().version() == 1);

  f.members[1]->child().Kill();
  const auto dead = f.Sync("g");
  CHECK(dead.status().code() == StatusCode::kAborted);
  CHECK(MessageOf(dead.status()).find("r1 (not attached") != std::string::npos);
  CHECK(f.members[0]->Status().committed().version() == 1);

  f.members[1]->Start();
  REQUIRE(f.AllAttached());
  REQUIRE(f.Sync("g").status() == absl::OkStatus());
  for (const auto& m : f.members) CHECK(f.trainer.Compare(m->dir()) == "");
}

TEST_CASE("a version that cannot be made ready beside the only file is refused by name") {
  Fleet f({"--group", "g=r0,r1"}, {"2", "small"});
  REQUIRE(f.AllAttached());
  REQUIRE(f.Sync("g").status() == absl::OkStatus());
  f.Step();  // its delta exceeds the staging bound
  const auto refused = f.Sync("g");
  INFO(f.logs());
  const bool leases = f.members[1]->Status().buffers_why().find("fresh file") == std::string::npos;
  if (!leases) return (void)std::puts("SKIPPED: no leases here");
  CHECK(refused.status().code() == StatusCode::kAborted);
  CHECK(MessageOf(refused.status()).find("r1 cannot prepare it") != std::string::npos);
  CHECK(MessageOf(refused.status()).find("buffers = 2") != std::string::npos);
  for (const auto& m : f.members) CHECK(m->Status().committed().version() == 1);
}

namespace {

// Looks at the members all the while: none of them may commit what is not decided.
void CheckDecided(Fleet& f) {
  for (const auto& m : f.members) {
    v1::ReceiverStatusRequest request;
    request.set_model(kModel);
    v1::ReceiverStatusResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    if (!m->stub().GetStatus(&context, request, &response).ok()) continue;
    const uint64_t committed = response.models(0).committed().version();
    // Asked after the member: it cannot have committed before.
    CHECK(committed <= DecidedVersion(f.sender.dir() / kModel));
  }
}

void KillInARound(uint64_t seed) {
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::string> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(random() % 3 == 0 ? "copy" : "2");
  Fleet f({"--group", "g=r0,r1,r2", "--group-commits", "--group-timeout-ms", "3000"}, buffers, 4,
          seed);
  INFO(f.logs());
  for (const auto& m : f.members) REQUIRE(m->WaitCommitted(1));
  for (int round = 0; round < 3; ++round) {
    f.trainer.Step();
    REQUIRE(f.trainer.Publish(++f.version).status() == absl::OkStatus());
    // The kill comes when the round is this far, or some looks later.
    const char* const phases[] = {"preparing", "committing", "idle"};
    const std::string at = phases[random() % 3];
    const auto looks = static_cast<int>(random() % 4);
    const size_t victim = random() % 4;
    CAPTURE(round, at, looks, victim);
    for (int look = 0; look < 50 && f.group().phase() != at; ++look) CheckDecided(f);
    for (int look = 0; look < looks; ++look) CheckDecided(f);
    if (victim == 3) {
      f.sender.Restart();
    } else {
      f.members[victim]->Restart();
    }
    if (random() % 3 == 0) f.sender.Restart();  // both
    for (const auto& m : f.members) {
      INFO(f.logs());
      REQUIRE(Eventually(
          [&] {
            CheckDecided(f);
            return m->Status().committed().version() == f.version;
          },
          std::chrono::seconds(60)));
      CHECK(f.trainer.Compare(m->dir()) == "");
    }
  }
}

}  // namespace

TEST_CASE("seeded SIGKILLs over prepare and commit end in one version, without a hand") {
  // DELTAWIRE_SEED repeats one of them; DELTAWIRE_SEEDS runs so many.
  if (const char* one = std::getenv("DELTAWIRE_SEED")) return KillInARound(std::stoull(one));
  const char* many = std::getenv("DELTAWIRE_SEEDS");
  const uint64_t last = many == nullptr ? 12 : std::stoull(many);
  for (uint64_t seed = 1; seed <= last; ++seed) KillInARound(seed);
}

}  // namespace deltawire::testing::group_test
