// The Agent: who may pull, whose pull replaces whose, what ends after a time, and how a model is
// replaced.
#include "sender/agent/agent.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "common/serving/commit_wait.h"
#include "tests/support/next_event.h"
#include "tests/support/snapshot.h"
#include "tests/unit/sender/published_model.h"

namespace deltawire::sender::agent_test {
namespace {

using std::chrono::milliseconds;

class Host {
 public:
  explicit Host(const AgentLimits& limits = {}, size_t tensors = 4, StageObserver stages = nullptr)
      : agent_(Options(), pool_, limits, std::move(stages)) {
    auto model = Register(tensors, false);
    REQUIRE(model.status() == absl::OkStatus());
    Publish(1);
  }

  SenderOptions Options() const {
    SenderOptions options;
    options.data_dir = (dir_.path() / "data").string();
    options.huge_pages = false;
    options.scrub_bytes_per_s = 0;
    std::filesystem::create_directories(options.data_dir);
    return options;
  }

  StatusOr<std::shared_ptr<Model>> Register(size_t tensors, bool replace,
                                            std::vector<SideFile> side_files = {}) {
    std::vector<TensorMeta> meta;
    for (size_t t = 0; t < tensors; ++t) {
      meta.push_back({"t" + std::to_string(t), DType::kBF16, {64}});
    }
    return agent_.Register("m", meta, {}, std::move(side_files), replace);
  }
  void Publish(uint64_t version, const std::string& name = "m") {
    const auto model = *agent_.models().Find(name);
    const auto grant = model->offloads().Begin({.version = version}, [] { return false; });
    REQUIRE(grant.status() == absl::OkStatus());
    REQUIRE(model->offloads()
                .MarkReady({.version = version, .lease = grant->lease, .wrote_all = true})
                .status() == absl::OkStatus());
    REQUIRE(WaitPublished(model->offloads(), version, grant->lease, [] { return false; }).ok());
  }

  PullRequest Request(const std::string& id, uint32_t streams = 1) {
    return {.model = "m",
            .receiver_id = id,
            .fingerprint = (*agent_.models().Find("m"))->layout().fingerprint(),
            .streams = streams};
  }
  /// Opens a pull and one of its streams; `cut` becomes true when the stream is cut.
  std::shared_ptr<net::PullSession> Open(const PullRequest& request, std::atomic<bool>& cut,
                                         uint16_t stream = 0, const std::string& peer = "p") {
    const auto ticket = agent_.OpenPull(request, {.peer = peer});
    REQUIRE(ticket.status() == absl::OkStatus());
    wire::Hello hello;
    hello.ticket = ticket->ticket;
    hello.fingerprint = (*agent_.models().Find("m"))->layout().fingerprint();
    hello.stream = stream;
    hello.streams = static_cast<uint16_t>(request.streams);
    auto session = agent_.Join(hello, {.address = "bulk"});
    REQUIRE(session.status() == absl::OkStatus());
    (*session)->StreamOpened(stream, [&cut] { cut = true; });
    return *session;
  }

  Agent& agent() { return agent_; }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
  ThreadPool pool_{2};
  Agent agent_;
};

bool Soon(const std::function<bool()>& condition) {
  const auto deadline = SteadyClock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (SteadyClock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("agent: a pull is cut by its receiver's next one, not by somebody with the same name") {
  Host host;
  const bool attached = GENERATE(false, true);
  CAPTURE(attached);
  if (attached) REQUIRE(host.agent().attachments().Attach("m", "r", "peer1").ok());
  std::atomic<bool> cut{false}, cut2{false};
  const auto first = host.Open(host.Request("r"), cut, 0, "peer1");
  const Status other = host.agent().OpenPull(host.Request("r"), {.peer = "peer2"}).status();
  CHECK(absl::IsAlreadyExists(other));
  CHECK(other.message().find("peer1") != std::string::npos);
  CHECK(!cut);
  CHECK(host.agent().desk().CountsOf("m").refused == 1);
  const auto second = host.Open(host.Request("r"), cut2, 0, "peer1");
  CHECK(cut);
  CHECK(!cut2);
  CHECK(absl::IsAborted(first->Next(0, [] {}).status()));
}

TEST_CASE("agent: no beat says that a version comes no more before one says that it is published") {
  // The next version may be on its way before the receivers were told of this one.
  const bool next = GENERATE(false, true);
  CAPTURE(next);
  const auto no = [] { return false; };
  constexpr size_t kTensors = 4;
  std::atomic<int> published{0};
  std::function<void()> while_published;  // of version 2
  Host host({.pulls = {.attachments = {.beat = milliseconds(0)}}}, kTensors,
            [&](const StageEnd& end) {
              if (end.stage == Stage::kPublish && ++published == 2) while_published();
            });
  const auto model = *host.agent().models().Find("m");
  const auto token = host.agent().attachments().Attach("m", "r", "peer");
  REQUIRE(token.ok());
  // A version of which one tensor is written, and has come to the agent.
  const auto begin = [&](uint64_t version) {
    const auto grant = model->offloads().Begin({.version = version}, no);
    if (!grant.ok()) return uint64_t{0};
    const UniqueFd half(open(grant->half_path.c_str(), O_RDWR | O_CLOEXEC));
    const auto change = static_cast<std::byte>(version);
    const bool wrote = pwrite(half.get(), &change, 1, static_cast<off_t>(grant->data_offset)) == 1;
    const WrittenNotice marked{.rank = 0, .tensors = {0}};
    const bool came = wrote && model->offloads().MarkWritten(grant->lease, marked).ok() &&
                      Soon([&] { return model->offloads().incoming() != nullptr; });
    return came ? grant->lease : 0;
  };
  const auto told = [&] { return testing::NextEvent(host.agent().attachments(), *token); };
  const uint64_t lease = begin(2);
  REQUIRE(lease != 0);
  REQUIRE(Soon([&] { return told()->incoming.version.id.version == 2; }));
  std::optional<SenderEvent> between;
  std::atomic<bool> asked{false};
  while_published = [&] {
    if (next) begin(3);
    (void)Soon([&] {
      const auto event = told();
      if (event.ok()) between = *event;
      return !event.ok() || event->incoming.version.id.version == (next ? 3 : 0);
    });
    asked = true;
  };
  REQUIRE(model->offloads().MarkReady({.version = 2, .lease = lease, .wrote_all = true}).ok());
  REQUIRE(WaitPublished(model->offloads(), 2, lease, no).ok());
  REQUIRE(Soon([&] { return asked.load(); }));
  REQUIRE(between.has_value());
  CHECK(between->incoming.version.id.version == (next ? 3 : 0));
  CHECK(between->newest.identity.id.version == 2);
}

TEST_CASE("agent: a pull whose first stream never comes ends by itself") {
  Host host({.pulls = {.ticket_life = milliseconds(50)}});
  std::atomic<bool> cut{false};
  const auto session = host.Open(host.Request("r", 2), cut, 1);
  CHECK(Soon([&] { return cut.load(); }));
  CHECK(absl::IsDeadlineExceeded(session->Next(1, [] {}).status()));
  session->StreamClosed(1, absl::CancelledError("closed"));
  // A ticket that nobody uses expires by itself as well.
  REQUIRE(host.agent().OpenPull(host.Request("r2"), {.peer = "p"}).ok());
  CHECK(Soon([&] { return host.agent().desk().CountsOf("m").active == 0; }));
}

TEST_CASE("agent: pulls are limited, in all and of one peer") {
  Host host({.pulls = {.pulls = 3, .pulls_per_peer = 2}});
  const auto open = [&](const std::string& id, const std::string& peer) {
    return host.agent().OpenPull(host.Request(id), {.peer = peer}).status();
  };
  CHECK(open("1", "p1").ok());
  CHECK(open("2", "p1").ok());
  CHECK(absl::IsResourceExhausted(open("3", "p1")));
  CHECK(open("3", "p2").ok());
  CHECK(absl::IsResourceExhausted(open("4", "p3")));
  CHECK(absl::IsInvalidArgument(open(std::string(129, 'x'), "p")));
  CHECK(absl::IsInvalidArgument(open("", "p")));
}

TEST_CASE("agent: a pull's end is named in full, and another state of that number is refused") {
  Host host;
  const Identity here = (*host.agent().models().Find("m"))->published()->info.identity;
  PullRequest request = host.Request("r");
  request.at = here;
  CHECK(host.agent().OpenPull(request, {.peer = "p"}).ok());
  request.at.root ^= 1;
  CHECK(absl::IsAborted(host.agent().OpenPull(request, {.peer = "p"}).status()));
  request.at = here;
  request.at.lineage.lo ^= 1;
  CHECK(absl::IsAborted(host.agent().OpenPull(request, {.peer = "p"}).status()));
  request.at = here;
  request.at.attempt ^= 1;
  CHECK(absl::IsAborted(host.agent().OpenPull(request, {.peer = "p"}).status()));
  request.at.attempt = 0;
  CHECK(host.agent().OpenPull(request, {.peer = "p"}).ok());
}

TEST_CASE("agent: a model that is pulled from is replaced when the pull has let go") {
  Host host;
  const auto token = host.agent().attachments().Attach("m", "r", "p");
  REQUIRE(token.ok());
  std::atomic<bool> cut{false};
  auto session = host.Open(host.Request("r"), cut);
  // The stream lets the session go some time after it was cut, as a socket does.
  Thread stream([&] {
    CHECK(Soon([&] { return cut.load(); }));
    session->StreamClosed(0, absl::CancelledError("cut"));
    session.reset();
  });
  const auto model = host.Register(5, true);
  stream.join();
  REQUIRE(model.status() == absl::OkStatus());
  CHECK((*model)->layout().size() == 5);
  CHECK(*host.agent().models().Find("m") == *model);
  host.Publish(1);
}

TEST_CASE("agent: what cannot be replaced is said, and taken up again when it can") {
  Host host({.letting_go = milliseconds(50)});
  std::atomic<bool> cut{false};
  auto session = host.Open(host.Request("r"), cut);
  const Status stuck = host.Register(5, true).status();
  CHECK(absl::IsDeadlineExceeded(stuck));
  CHECK(stuck.message().find("register again") != std::string::npos);
  CHECK(absl::IsDeadlineExceeded(host.Register(4, false).status()));
  session.reset();
  CHECK(Soon([&] { return host.Register(5, true).ok(); }));
}

TEST_CASE("agent: a registration that has to wait holds up no other model") {
  Host host({.letting_go = std::chrono::seconds(20)});
  std::atomic<bool> cut{false}, replaced{false};
  auto session = host.Open(host.Request("r"), cut);
  Thread replaces([&] {
    (void)host.Register(5, true);
    replaced = true;
  });
  REQUIRE(Soon([&] { return !host.agent().models().Find("m").ok(); }));  // it waits for the session
  const auto other = host.agent().Register("n", {{"t", DType::kBF16, {64}}}, {}, {}, false);
  REQUIRE(other.status() == absl::OkStatus());
  const auto token = host.agent().attachments().Attach("n", "r", "p");
  REQUIRE(token.ok());
  host.Publish(1, "n");
  CHECK(testing::NextEvent(host.agent().attachments(), *token).ok());
  CHECK_FALSE(replaced);
  session.reset();
  replaces.join();
}

TEST_CASE("agent: a model stays when the one in its place cannot be made") {
  Host host;
  const Identity before = (*host.agent().models().Find("m"))->published()->info.identity;
  const Status refused = host.Register(5, true, {{"../evil", "x"}}).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(refused.message().find("stays as it was") != std::string::npos);
  const auto model = host.agent().models().Find("m");
  REQUIRE(model.ok());
  CHECK((*model)->layout().size() == 4);
  CHECK((*model)->published()->info.identity == before);
}

TEST_CASE("agent: a receiver's directory in the data directory is not made a model's") {
  Host host;
  const std::filesystem::path dir = std::filesystem::path(host.Options().data_dir) / "n";
  std::filesystem::create_directories(dir / ".deltawire.receiver");
  for (const char* name : {".deltawire.state", ".deltawire.lock", "model.safetensors"}) {
    std::ofstream(dir / name) << "a receiver's";
  }
  const auto before = testing::SnapshotOf(dir);
  const bool replace = GENERATE(false, true);
  const Status refused =
      host.agent().Register("n", {{"t", DType::kBF16, {64}}}, {}, {}, replace).status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(refused.message().find("is a receiver's directory") != std::string::npos);
  CHECK(absl::IsNotFound(host.agent().Unregister("n").status()));
  ThreadPool pool(1);
  Agent next(host.Options(), pool);
  CHECK(absl::IsAlreadyExists(next.RecoverModels()));  // the other model's owner lives
  CHECK(testing::SnapshotOf(dir) == before);
}

TEST_CASE("agent: unregistering removes the sender's files, tells receivers, and nothing else") {
  Host host;
  Agent& agent = host.agent();
  const std::filesystem::path data = host.Options().data_dir, dir = data / "m";
  REQUIRE(host.Register(4, false, {{"config.json", "{}"}}).ok());
  REQUIRE(agent.Register("n", {{"t", DType::kBF16, {64}}}, {}, {}, false).ok());
  const bool foreign = GENERATE(false, true);
  CAPTURE(foreign);
  if (foreign) std::ofstream(dir / "notes") << "not the sender's";
  const auto token = agent.attachments().Attach("m", "r", "p");
  REQUIRE(token.ok());
  REQUIRE(testing::NextEvent(agent.attachments(), *token).ok());
  std::atomic<bool> cut{false};
  auto session = host.Open(host.Request("r"), cut);
  Thread stream([&] {
    CHECK(Soon([&] { return cut.load(); }));
    CHECK(session->Next(0, [] {}).status().message().find("unregistered") != std::string::npos);
    session->StreamClosed(0, absl::CancelledError("cut"));
    session.reset();
  });
  const auto done = agent.Unregister("m");
  stream.join();
  REQUIRE(done.status() == absl::OkStatus());
  CHECK(done->directory == dir);
  CHECK(done->files.freed_bytes > 0);
  if (foreign) {
    CHECK(done->files.left == std::vector<std::string>{"notes"});
    CHECK(std::distance(std::filesystem::directory_iterator(dir), {}) == 2);  // and the lock's file
  } else {
    CHECK(done->files.left.empty());
    CHECK_FALSE(std::filesystem::exists(dir));
  }
  CHECK(std::filesystem::exists(data / "n"));
  const Status told = testing::NextEvent(agent.attachments(), *token).status();
  CHECK(told.message() == "model \"m\" was unregistered from this sender");
  CHECK(absl::IsNotFound(agent.attachments().feed().ChangeAfter("m", 0).status()));
  CHECK(absl::IsNotFound(CommitWait(agent.attachments(), "m", {}).Poll().status()));
  CHECK(absl::IsNotFound(agent.models().Find("m").status()));
  CHECK(absl::IsNotFound(agent.Unregister("m").status()));
  CHECK(absl::IsInvalidArgument(agent.Unregister("..").status()));
  // The name is free for another model, which receivers may attach to.
  REQUIRE(host.Register(5, false).ok());
  host.Publish(1);
  CHECK(testing::NextEvent(agent.attachments(), *token).ok());
}

TEST_CASE("agent: a model that is offloaded or used by a trainer is not unregistered") {
  Host host;
  Agent& agent = host.agent();
  const auto model = *agent.models().Find("m");
  const auto no = [] { return false; };
  auto use = agent.users().Enter("m", 3, "python train.py, process 4711 on node7");
  const auto other = agent.users().Enter("n", 0, "of another model");
  const Status used = agent.Unregister("m").status();
  CHECK(absl::IsFailedPrecondition(used));
  CHECK(used.message().find("rank 3 (python train.py, process 4711 on node7)") !=
        std::string::npos);
  use.reset();
  const auto grant = model->offloads().Begin({.version = 2, .publisher = "tester"}, no);
  REQUIRE(grant.ok());
  const Status busy = agent.Unregister("m").status();
  CHECK(absl::IsFailedPrecondition(busy));
  CHECK(busy.message().find("version 2 is under way by rank 0 of 1 (tester)") != std::string::npos);
  // A refused request has changed nothing.
  REQUIRE(
      model->offloads().MarkReady({.version = 2, .lease = grant->lease, .wrote_all = true}).ok());
  REQUIRE(WaitPublished(model->offloads(), 2, grant->lease, no).ok());
}

TEST_CASE("agent: a model that takes another's place hears when a trainer of that one dies") {
  Host host;
  Agent& agent = host.agent();
  const auto no = [] { return false; };
  auto use = agent.users().Enter("m", 1, "trainer", 42);
  const bool replaced = GENERATE(true, false);
  CAPTURE(replaced);
  if (replaced) {
    REQUIRE(host.Register(5, true).ok());
  } else {
    std::filesystem::remove_all(std::filesystem::path(host.Options().data_dir) / "m");
  }
  const auto model = agent.FindInPlace("m");
  REQUIRE(model.ok());
  const auto zero = (*model)->offloads().Begin(
      {.version = 1, .rank = 0, .world = 2, .client = 41, .job = "j"}, no);
  REQUIRE(zero.ok());
  REQUIRE((*model)->offloads().Attend(zero->lease, 0).ok());
  REQUIRE((*model)
              ->offloads()
              .Begin({.version = 1, .rank = 1, .world = 2, .client = 42, .job = "j"}, no)
              .ok());
  REQUIRE((*model)->offloads().IsReady(zero->lease, 0).ok());
  use.reset();  // rank 1 dies before it attends
  CHECK(absl::IsAborted((*model)->offloads().IsReady(zero->lease, 0).status()));
}

TEST_CASE("agent: what is still in use when it is unregistered is removed by the next call") {
  Host host({.letting_go = milliseconds(50)});
  Agent& agent = host.agent();
  const std::filesystem::path dir = std::filesystem::path(host.Options().data_dir) / "m";
  std::atomic<bool> cut{false};
  auto session = host.Open(host.Request("r"), cut);
  const Status stuck = agent.Unregister("m").status();
  CHECK(absl::IsDeadlineExceeded(stuck));
  CHECK(stuck.message().find("unregister again") != std::string::npos);
  CHECK(absl::IsNotFound(agent.models().Find("m").status()));
  CHECK(std::filesystem::exists(dir));
  session.reset();
  CHECK(Soon([&] { return agent.Unregister("m").ok(); }));
  CHECK_FALSE(std::filesystem::exists(dir));
}

TEST_CASE("agent: an offload that races with unregistering is told of that") {
  Host host({.letting_go = milliseconds(50)});
  const auto model = *host.agent().models().Find("m");  // as a call that found it before
  CHECK(absl::IsDeadlineExceeded(host.agent().Unregister("m").status()));
  const Status told = model->offloads().Begin({.version = 2}, [] { return false; }).status();
  CHECK(absl::IsNotFound(told));
  CHECK(told.message().find("was unregistered from this sender") != std::string::npos);
}

TEST_CASE("agent: a trainer that comes meanwhile is seen by unregistering, or sees it") {
  Host host;
  Agent& agent = host.agent();
  for (int round = 0; round < 300; ++round) {
    REQUIRE(host.Register(1, true).ok());
    ModelUsers::Use use;
    Status stays;
    Thread trainer([&] {
      use = agent.users().Enter("m", 0, "trainer");
      stays = agent.models().CheckStays("m");
    });
    const bool unregistered = agent.Unregister("m").ok();
    trainer.join();
    if (!unregistered) continue;
    // It has come after the model was gone, or is refused.
    if (stays.ok()) CHECK(absl::IsNotFound(agent.models().Find("m").status()));
  }
}

TEST_CASE("agent: a crash while a model is unregistered leaves no model and no memory") {
  Host host({.letting_go = milliseconds(50)});
  const std::filesystem::path dir = std::filesystem::path(host.Options().data_dir) / "m";
  std::atomic<bool> cut{false};
  auto session = host.Open(host.Request("r"), cut);
  REQUIRE(absl::IsDeadlineExceeded(host.agent().Unregister("m").status()));
  session.reset();
  ThreadPool pool(1);
  Agent next(host.Options(), pool);
  // The first one's model goes on a thread of its own.
  REQUIRE(Soon([&] {
    REQUIRE(next.RecoverModels().ok());
    return !std::filesystem::exists(dir);
  }));
  CHECK(absl::IsNotFound(next.models().Find("m").status()));
}

TEST_CASE("agent: stopping ends pulls and waits, whatever they do") {
  auto host = std::make_unique<Host>();
  std::atomic<bool> cut{false};
  auto session = host->Open(host->Request("r"), cut);
  const auto token = host->agent().attachments().Attach("m", "r", "p");
  REQUIRE(token.ok());
  Thread waits([&] {
    while (testing::NextEvent(host->agent().attachments(), *token).ok()) continue;
  });
  host->agent().Stop();
  waits.join();
  CHECK(cut);
  CHECK(absl::IsUnavailable(session->Next(0, [] {}).status()));
  session.reset();
}

}  // namespace
}  // namespace deltawire::sender::agent_test
