// Ranks of one trainer that die, hang, give up or disagree in the middle of an offload: the version
// is not published, the others are told at once, and the next version goes through.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "common/base/human.h"
#include "common/layout/model_dir.h"
#include "tests/support/daemons.h"
#include "tests/support/rank_model.h"

namespace deltawire::testing::rank_test {
namespace {

constexpr const char* kModel = "m";
constexpr const char* kJob = "job 1";
// The seconds in which ranks hear that another one has died.
constexpr double kAtOnce = 1;
// A call that fails within these seconds was not ended by a rank's timeout of 60 s.
constexpr double kPromptly = 10;

/// Runs tests/support/trainer_rank.cc as a child process, and reads what it prints.
class RankProcess {
 public:
  struct Start {
    std::string job = kJob;
    uint64_t content = 0;
  };
  RankProcess(const SenderProcess& sender, uint32_t rank, uint64_t first, uint64_t last,
              const std::vector<std::string>& hang = {}, const Start& start = {kJob, 0})
      : log_(sender.dir().parent_path() /
             fmt::format("rank{}-{}-{}.log", rank, first, start.content)) {
    std::vector<std::string> args = {
        sender.socket(),      kModel,    std::to_string(rank),         "2", std::to_string(first),
        std::to_string(last), start.job, std::to_string(start.content)};
    args.insert(args.end(), hang.begin(), hang.end());
    child_ = Spawn("trainer_rank", args, log_);
  }
  cli::ChildProcess& child() { return *child_; }
  /// Waits for a line that starts with `start`. If none comes, the check fails and it returns "".
  std::string Line(const std::string& start) {
    std::string found;
    Eventually([&] {
      std::istringstream lines(ReadText(log_));
      for (std::string line; std::getline(lines, line);) {
        // A line still being written has no line feed, so the stream ended within it.
        if (line.starts_with(start) && !lines.eof()) found = line;
      }
      return !found.empty();
    });
    INFO(ReadText(log_));
    CHECK(found != "");
    return found;
  }

 private:
  const std::filesystem::path log_;
  std::unique_ptr<cli::ChildProcess> child_;
};

struct FailedLine {
  double seconds = 0;
  int code = 0;
  std::string message;
};
FailedLine Failed(RankProcess& rank, uint64_t version) {
  FailedLine failed;
  std::istringstream line(rank.Line(fmt::format("failed {} ", version)));
  std::string word;
  uint64_t v = 0;
  line >> word >> v >> failed.seconds >> failed.code;
  std::getline(line, failed.message);
  return failed;
}

bool Has(const std::string& text, const std::string& part) {
  CAPTURE(text, part);
  const bool has = text.find(part) != std::string::npos;
  CHECK(has);
  return has;
}

/// Kills `dying`, and checks that `other`'s `version` fails at once, and why.
void CheckToldAtOnce(RankProcess& dying, RankProcess& other, uint64_t version) {
  const auto killed = std::chrono::steady_clock::now();
  dying.child().Kill();
  const FailedLine failed = Failed(other, version);
  CHECK(SecondsSince(killed) < kAtOnce);
  CHECK(failed.code == static_cast<int>(StatusCode::kAborted));
  Has(failed.message, "rank 1 of 2 has gone before it was ready");
  Has(failed.message, fmt::format("version {}", version));
}

/// Checks that every byte of the receiver's weights is that of `version`.
void CheckContent(const ReceiverProcess& receiver, uint64_t version) {
  const auto opened = ModelDir::Open(receiver.dir());
  REQUIRE(opened.ok());
  const Layout layout = RankLayout();
  REQUIRE(opened->layout().fingerprint() == layout.fingerprint());
  size_t wrong = 0;
  for (size_t t = 0; t < layout.size(); ++t) {
    for (uint64_t i = 0; i < layout.bytes(t); ++i) {
      wrong += opened->data(t)[i] != RankByte(version, layout.offset(t) + i);
    }
  }
  CHECK(wrong == 0);
}

std::unique_ptr<TrainerClient> Client(const SenderProcess& sender, uint32_t rank) {
  auto client = std::make_unique<TrainerClient>(sender.socket(), kModel, rank, 2);
  client->SetJob(kJob);
  REQUIRE(client->Register(RankLayout(), {}).ok());
  return client;
}

}  // namespace

TEST_CASE("a rank killed in the middle of an offload ends it for all at once") {
  const std::string point = GENERATE("granted", "begun", "half", "forked");
  CAPTURE(point);
  ShmDir root;
  SenderProcess sender(root.path());
  RankProcess zero(sender, 0, 1, 3);
  RankProcess one(sender, 1, 1, 2, {point, "2"});
  zero.Line("published 1");
  one.Line("hanging 2");
  zero.Line("ready 2");  // and waits for rank 1
  pid_t child = 0;       // it outlives the rank
  if (std::string(point) == "forked") child = std::stoi(one.Line("forked ").substr(7));
  CheckToldAtOnce(one, zero, 2);
  CHECK(sender.Status(kModel).newest().id().version() == 1);

  RankProcess again(sender, 1, 3, 3);
  zero.Line("published 3");
  again.Line("published 3");
  if (child != 0) {
    // Else the half would count as in use, and a fresh file would take its place.
    CHECK(ReadText(fmt::format("/proc/{}/maps", child)).find("half-") == std::string::npos);
    ::kill(child, SIGKILL);
  }
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(3));
  CheckContent(receiver, 3);
}

TEST_CASE("a rank that hangs is named after the offload's timeout") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--offload-timeout-ms", "1500"});
  RankProcess zero(sender, 0, 1, 3);
  RankProcess one(sender, 1, 1, 2, {"half", "2"});
  one.Line("hanging 2");
  one.child().Signal(SIGSTOP);
  const FailedLine failed = Failed(zero, 2);
  CHECK(failed.seconds < kPromptly);
  CHECK(failed.code == static_cast<int>(StatusCode::kAborted));
  Has(failed.message, "rank 1 is not ready");
  CHECK(sender.Status(kModel).newest().id().version() == 1);
  one.child().Kill();
  RankProcess again(sender, 1, 3, 3);
  zero.Line("published 3");
}

TEST_CASE("a rank that never begins is named after the offload's timeout") {
  ShmDir root;
  SenderProcess sender(root.path(), {"--offload-timeout-ms", "200"});
  const auto zero = Client(sender, 0);
  const auto offload = zero->Begin(1);
  REQUIRE(offload.ok());
  REQUIRE((*offload)->Ready().ok());
  const auto published = zero->WaitPublished(1);
  CHECK(absl::IsAborted(published.status()));
  Has(std::string(MessageOf(published.status())), "rank 1 has not begun");
}

TEST_CASE("a restarted job does not complete what a rank of the dead one has left") {
  // The same name is a mistake, and the dead rank does not count all the same.
  const std::string job = GENERATE(as<std::string>{}, "job 2", kJob);
  CAPTURE(job);
  ShmDir root;
  SenderProcess sender(root.path());
  RankProcess zero(sender, 0, 1, 2, {"before", "2"});
  RankProcess one(sender, 1, 1, 2, {"ready", "2"});
  zero.Line("hanging 2");
  one.Line("hanging 2");
  zero.child().Kill();
  one.child().Kill();
  RankProcess first(sender, 0, 2, 2, {}, {job, 100});
  first.Line("ready 2");
  RankProcess second(sender, 1, 2, 2, {}, {job, 100});
  second.Line("published 2");
  first.Line("published 2");
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(2));
  CheckContent(receiver, 102);
}

TEST_CASE("what a rank declares unchanged is not carried over from a version before its last") {
  ShmDir root;
  SenderProcess sender(root.path());
  const Layout layout = *Layout::Create({{"a", DType::kU8, {64}}, {"b", DType::kU8, {64}}});
  TrainerClient one(sender.socket(), kModel), other(sender.socket(), kModel);
  const auto offload = [&](uint64_t version, std::byte a, std::optional<std::byte> b) -> Status {
    DW_ASSIGN_OR_RETURN(auto begun, one.Begin(version));
    DW_RETURN_IF_ERROR(begun->Write(0, std::vector<std::byte>(64, a)));
    if (b) DW_RETURN_IF_ERROR(begun->Write(1, std::vector<std::byte>(64, *b)));
    if (!b) begun->Unchanged(1);
    return begun->Ready();
  };
  REQUIRE(one.Register(layout, {}).ok());
  REQUIRE(offload(1, std::byte{1}, std::byte{1}).ok());
  REQUIRE(one.WaitPublished(1).ok());
  // Version 2 is lost, here by a rollback, and the rank does not wait for it.
  REQUIRE(offload(2, std::byte{2}, std::byte{2}).ok());
  REQUIRE(other.WaitPublished(2).ok());
  REQUIRE(sender.Rollback(kModel, 1).status() == absl::OkStatus());
  const Status refused = offload(3, std::byte{3}, {});
  CHECK(absl::IsFailedPrecondition(refused));
  Has(std::string(refused.message()), "declared unchanged since version 2");
  REQUIRE(offload(3, std::byte{3}, std::byte{2}).ok());
  REQUIRE(one.WaitPublished(3).ok());
  // The rank has been told of the loss, so what it declares now is about version 3.
  REQUIRE(offload(4, std::byte{4}, {}).ok());
  CHECK(one.WaitPublished(4).ok());
}

TEST_CASE("ranks that name no job and no attempt are refused") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  zero->SetJob("");
  one->SetJob("");
  const Status refused = zero->Begin(1).status();
  CHECK(absl::IsInvalidArgument(refused));
  Has(std::string(MessageOf(refused)), "rank 0 of 2 names neither its job nor an attempt");
  const auto first = zero->Begin(1, 7);
  REQUIRE(first.ok());
  CHECK(one->Begin(1, 7).ok());
}

TEST_CASE("a rank that cannot map its half ends the offload for all") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  const auto offload = zero->Begin(1);
  REQUIRE(offload.ok());
  if (::geteuid() != 0) return;
  const auto half = sender.dir() / kModel / "half-0.safetensors";
  REQUIRE(::chown(half.c_str(), 65534, 65534) == 0);
  CHECK(absl::IsPermissionDenied(one->Begin(1).status()));
  REQUIRE(Eventually([&] { return !(*offload)->Check().ok(); }));
  Has(std::string(MessageOf((*offload)->Check())), "abandoned by rank 1 of 2: ");
}

TEST_CASE("a rank that dies after it was ready does not end the offload") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0);
  RankProcess one(sender, 1, 1, 1, {"ready", "1"});
  one.Line("hanging 1");
  one.child().Kill();
  const auto offload = zero->Begin(1);
  REQUIRE(offload.ok());
  const Layout layout = RankLayout();
  std::vector<uint32_t> all(layout.size());
  for (uint32_t t = 0; t < layout.size(); ++t) {
    all[t] = t;
    const uint64_t end = ShareBegin(layout.bytes(t), 1, 2);
    for (uint64_t i = 0; i < end; ++i) {
      (*offload)->data()[layout.offset(t) + i] = RankByte(1, layout.offset(t) + i);
    }
  }
  REQUIRE((*offload)->Written(all).ok());
  REQUIRE((*offload)->Ready().ok());
  REQUIRE(zero->WaitPublished(1).ok());
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(1));
  CheckContent(receiver, 1);
}

TEST_CASE("a rank that writes sees that another has given up, and why") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  const auto first = zero->Begin(7);
  const auto second = one->Begin(7);
  REQUIRE((first.ok() && second.ok()));
  CHECK((*first)->Check().ok());
  (*second)->Abandon("loss is not a number");
  REQUIRE(Eventually([&] { return !(*first)->Check().ok(); }));
  for (const Status& told : {(*first)->Check(), (*first)->Ready(), zero->WaitPublished(7).status(),
                             one->WaitPublished(7).status()}) {
    CHECK(absl::IsAborted(told));
    Has(std::string(MessageOf(told)), "abandoned by rank 1 of 2: loss is not a number");
  }
  // The offload that was given up does not stand in the way of the same version.
  const auto third = zero->Begin(7);
  const auto fourth = one->Begin(7);
  REQUIRE((third.ok() && fourth.ok()));
  CHECK((*third)->Check().ok());
}

TEST_CASE("a rank that is late with an older version does not end the newer one") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  const auto newer = zero->Begin(5);
  REQUIRE(newer.ok());
  const auto older = one->Begin(4);
  CHECK(absl::IsAborted(older.status()));
  Has(std::string(MessageOf(older.status())), "begun version 5");
  CHECK(one->Begin(5).ok());
}

TEST_CASE("two ranks that write a tensor which one claimed for itself are refused") {
  const bool claim_first = GENERATE(true, false);
  CAPTURE(claim_first);
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  const auto first = zero->Begin(1);
  const auto second = one->Begin(1);
  REQUIRE((first.ok() && second.ok()));
  const std::vector<uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const auto claim = [&]() -> Status {
    DW_RETURN_IF_ERROR((*first)->Written(all, Share::kWhole));
    return (*first)->Ready();
  };
  const auto write = [&]() -> Status {
    DW_RETURN_IF_ERROR((*second)->Written(std::vector<uint32_t>{3}));
    return (*second)->Ready();
  };
  CHECK((claim_first ? claim() : write()).ok());
  const Status refused = claim_first ? write() : claim();
  CHECK(absl::IsFailedPrecondition(refused));
  Has(std::string(MessageOf(refused)), "layers.3.weight");
  CHECK(absl::IsFailedPrecondition(zero->WaitPublished(1).status()));
}

TEST_CASE("tensors that one rank writes alone are published with the others' shares") {
  ShmDir root;
  SenderProcess sender(root.path());
  const auto zero = Client(sender, 0), one = Client(sender, 1);
  const Layout layout = RankLayout();
  for (uint64_t v = 1; v <= 3; ++v) {
    const auto first = zero->Begin(v);
    const auto second = one->Begin(v);
    REQUIRE((first.ok() && second.ok()));
    for (uint32_t t = 0; t < layout.size(); ++t) {
      const auto& writer = t % 2 == 0 ? *first : *second;
      std::vector<std::byte> content(layout.bytes(t));
      for (size_t i = 0; i < content.size(); ++i) content[i] = RankByte(v, layout.offset(t) + i);
      REQUIRE(writer->Write(t, content, Share::kWhole).ok());
    }
    REQUIRE((*first)->Ready().ok());
    REQUIRE((*second)->Ready().ok());
    REQUIRE(one->WaitPublished(v).ok());
  }
  ReceiverProcess receiver(root.path(), "r", sender.control(), kModel);
  REQUIRE(receiver.WaitCommitted(3));
  CheckContent(receiver, 3);
}

TEST_CASE("ranks that register at the same time get one model") {
  ShmDir root;
  SenderProcess sender(root.path());
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>(sender, rank, 1, 1));
  }
  for (const auto& rank : ranks) rank->Line("published 1");
}

}  // namespace deltawire::testing::rank_test
