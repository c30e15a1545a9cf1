// Calls that have others do something and wait for them: hundreds hold no thread, each ends with
// what it waits for, with its caller or with the daemon, and one caller has a limit.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <deque>

#include "common/base/unique_fd.h"
#include "tests/support/daemons.h"

namespace deltawire::testing::wait_test {
namespace {

using Catch::Matchers::Contains;

constexpr size_t kMost = 512;  // waiting calls of one caller

/// A call that streams, read by callbacks, so that it holds no thread in the test either. Its
/// destructor cancels it, and waits for its end.
template <typename Message>
class Call : public grpc::ClientReadReactor<Message> {
 public:
  template <typename Start>
  explicit Call(const Start& start) {
    context_.set_wait_for_ready(true);
    start(&context_, this);
    this->StartRead(&message_);
    this->StartCall();
  }
  ~Call() override {
    Cancel();
    Eventually([&] { return ended().has_value(); });
  }
  void Cancel() { context_.TryCancel(); }
  bool heard() {
    std::lock_guard lock(mu_);
    return !last_.phase().empty();
  }
  Message last() {
    std::lock_guard lock(mu_);
    return last_;
  }
  std::optional<grpc::Status> ended() {
    std::lock_guard lock(mu_);
    return ended_;
  }
  /// Waits until the call has ended; returns how.
  grpc::Status End() {
    REQUIRE(Eventually([&] { return ended().has_value(); }));
    return *ended();
  }
  bool Hears() {
    return Eventually([&] { return heard() || ended(); }) && heard();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mu_);
      last_ = message_;
    }
    this->StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mu_);
    ended_ = status;
  }

 private:
  grpc::ClientContext context_;
  Message message_;
  std::mutex mu_;
  Message last_;
  std::optional<grpc::Status> ended_;
};

/// A receiver whose only file is open elsewhere, so that version 2 comes only when that ends.
struct Scene {
  Scene()
      : sender(root.path()),
        trainer(sender.socket(), "m", 1, 1),
        receiver(root.path(), "r", sender.control(), "m", {"--buffers", "1"}),
        syncs(v1::SenderService::NewStub(Channel(sender.control()))) {
    REQUIRE(trainer.Publish(1).ok());
    REQUIRE(receiver.WaitCommitted(1));
    trigger.set_model("m");
    sync.set_model("m");
    verify.set_model("m");
  }
  /// Without leases an update would not wait: says so, and returns false.
  bool Hold() {
    if (receiver.Status().buffers_why().find("fresh file") != std::string::npos) {
      std::puts("SKIPPED: no leases here");
      return false;
    }
    open = UniqueFd(::open((receiver.dir() / "model.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(open.get() >= 0);
    trainer.Step();
    REQUIRE(trainer.Publish(2).ok());
    REQUIRE(Eventually([&] { return receiver.Status().phase() == "waiting for reader"; }));
    return true;
  }
  auto Trigger() {
    return [this](grpc::ClientContext* context, auto* reactor) {
      syncs->async()->TriggerSync(context, &trigger, reactor);
    };
  }
  auto Sync() {
    return [this](grpc::ClientContext* context, auto* reactor) {
      receiver.stub().async()->Sync(context, &sync, reactor);
    };
  }
  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess receiver;
  std::unique_ptr<v1::SenderService::Stub> syncs;
  UniqueFd open;
  v1::TriggerSyncRequest trigger;
  v1::SyncRequest sync;
  v1::VerifyRequest verify;
};

using Trigger = Call<v1::SyncProgress>;
using Sync = Call<v1::SyncUpdate>;

/// One call of Verify.
struct Check {
  explicit Check(Scene& s) {
    context.set_wait_for_ready(true);
    s.receiver.stub().async()->Verify(&context, &s.verify, &found, [this](const grpc::Status& end) {
      std::lock_guard lock(mu);
      ended = end;
    });
  }
  ~Check() {
    context.TryCancel();
    Eventually([&] { return End().has_value(); });
  }
  std::optional<grpc::Status> End() {
    std::lock_guard lock(mu);
    return ended;
  }
  grpc::ClientContext context;
  v1::VerifyResponse found;
  std::mutex mu;
  std::optional<grpc::Status> ended;
};

}  // namespace

TEST_CASE("waits: hundreds of triggered syncs hold no thread of the sender, and all end") {
  Scene s;
  if (!s.Hold()) return;
  Trigger first(s.Trigger());
  REQUIRE(first.Hears());
  const pid_t sender = s.sender.child().pid(), receiver = s.receiver.child().pid();
  const size_t before = ThreadsOf(sender), before_receiver = ThreadsOf(receiver);
  std::deque<Trigger> calls;
  for (int i = 0; i < 500; ++i) calls.emplace_back(s.Trigger());
  for (Trigger& call : calls) REQUIRE(call.Hears());
  // gRPC's own threads may be more or fewer by a few, whatever there is to do.
  CHECK(ThreadsOf(sender) < before + 20);
  CHECK(ThreadsOf(receiver) < before_receiver + 20);
  UNSCOPED_INFO("threads of the sender: " << before << ", then " << ThreadsOf(sender));
  for (int i = 0; i < 100; ++i) {
    calls.front().Cancel();
    CHECK(calls.front().End().error_code() == grpc::StatusCode::CANCELLED);
    calls.pop_front();
  }
  CHECK_FALSE(first.ended());
  s.open.Reset();
  for (Trigger& call : calls) {
    const grpc::Status end = call.End();
    INFO(end.error_message());
    CHECK(end.ok());
    CHECK(call.last().phase() == "committed");
    CHECK(call.last().target().version() == 2);
  }
  CHECK(first.End().ok());
}

TEST_CASE("waits: hundreds of syncs and checks hold no thread of the receiver, and all end") {
  Scene s;
  if (!s.Hold()) return;
  Sync first(s.Sync());
  REQUIRE(first.Hears());
  const pid_t receiver = s.receiver.child().pid();
  const size_t before = ThreadsOf(receiver);
  std::deque<Sync> syncs;
  std::deque<Check> checks;
  for (int i = 0; i < 300; ++i) syncs.emplace_back(s.Sync());
  for (int i = 0; i < 200; ++i) checks.emplace_back(s);
  for (Sync& sync : syncs) REQUIRE(sync.Hears());
  CHECK(syncs.front().last().phase() == "waiting for reader");
  CHECK(ThreadsOf(receiver) < before + 20);
  UNSCOPED_INFO("threads of the receiver: " << before << ", then " << ThreadsOf(receiver));
  for (int i = 0; i < 50; ++i) {
    syncs.pop_front();  // cancels
    checks.pop_front();
  }
  s.open.Reset();
  for (Sync& sync : syncs) {
    const grpc::Status end = sync.End();
    INFO(end.error_message());
    CHECK(end.ok());
    CHECK(sync.last().phase() == "committed");
    CHECK(sync.last().target().version() == 2);
  }
  CHECK(first.End().ok());
  for (Check& check : checks) {
    REQUIRE(Eventually([&] { return check.End().has_value(); }));
    CHECK(check.End()->ok());
    CHECK(check.found.bad_chunks() == 0);
    CHECK(check.found.committed().version() == 2);
  }
}

TEST_CASE("waits: one caller has a limit, which the tool tells, and one that ends makes place") {
  Scene s;
  if (!s.Hold()) return;
  std::deque<Trigger> calls;
  for (size_t i = 0; i < kMost; ++i) calls.emplace_back(s.Trigger());
  for (Trigger& call : calls) REQUIRE(call.Hears());
  const auto sync = [&](const std::string& log) {
    const auto tool =
        Spawn("deltawire", {"sync", "--via-sender", "--sender", s.sender.control(), "--model", "m"},
              s.root.path() / log);
    const int code = tool->Wait(std::chrono::seconds(120));
    return std::pair(code, ReadText(s.root.path() / log));
  };
  const auto [refused, said] = sync("refused.log");
  INFO(said);
  CHECK(refused == 1);
  CHECK_THAT(said, Contains("has 512 waiting calls open, which is the most; end some of them"));
  // Log lines are written by a thread of their own.
  CHECK(Eventually(
      [&] { return ReadText(s.sender.log()).find("a call was refused") != std::string::npos; }));
  calls.pop_back();
  s.open.Reset();
  for (Trigger& call : calls) CHECK(call.End().ok());
  CHECK(sync("fine.log").first == 0);
}

TEST_CASE("waits: a deadline ends a call, and a daemon that stops says so to those who wait") {
  Scene s;
  if (!s.Hold()) return;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto late = s.syncs->TriggerSync(&context, s.trigger);
  for (v1::SyncProgress p; late->Read(&p);) continue;
  CHECK(late->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  Sync sync(s.Sync());
  REQUIRE(sync.Hears());
  Check check(s);
  Trigger trigger(s.Trigger());
  REQUIRE(trigger.Hears());
  s.sender.child().Signal(SIGTERM);
  const grpc::Status of_sender = trigger.End();
  CHECK(of_sender.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(of_sender.error_message(), Contains("the sender is stopping"));
  s.receiver.child().Signal(SIGTERM);
  const grpc::Status of_receiver = sync.End();
  CHECK(of_receiver.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(of_receiver.error_message(), Contains("the receiver is stopping"));
  REQUIRE(Eventually([&] { return check.End().has_value(); }));
  CHECK(check.End()->error_code() == grpc::StatusCode::UNAVAILABLE);
}

}  // namespace deltawire::testing::wait_test
