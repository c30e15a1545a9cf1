// Daemons with TLS and principals: they sync, and strangers get nowhere: no certificate, the wrong
// role or model, another's ticket or name, plaintext, rubbish, connections that never speak.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <thread>

#include "common/net/pull_client.h"
#include "common/net/tls.h"
#include "tests/support/certificates.h"
#include "tests/support/daemons.h"
#include "tests/support/tcp.h"

namespace deltawire::testing::security_test {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kPrincipals = R"(
[[principal]]
name = "rollout-1"
roles = ["receiver"]
models = ["m"]
certificate = "rollout-1"

[[principal]]
name = "rollout-2"
roles = ["receiver"]
certificate = "rollout-2"

[[principal]]
name = "elsewhere"
roles = ["receiver"]
models = ["other"]
certificate = "elsewhere"

[[principal]]
name = "cloud"
roles = ["receiver"]
token-file = "cloud/token"

[[principal]]
name = "operator"
roles = ["operator"]
certificate = "operator"
)";
constexpr const char* kCloudToken = "the-token-of-receivers-in-the-cloud";

// One sender and one receiver that trust one authority; the test itself is the operator.
struct Secured {
  Secured()
      : authority(root.path() / "keys"),
        cloud(authority.TokenOnly("cloud", kCloudToken, true)),
        principals(authority.Principals(kPrincipals)) {
    ShowAs(authority.Node("operator"));
    sender = std::make_unique<SenderProcess>(root.path(), With(authority.Node("sender")));
  }
  ~Secured() { ShowAs(""); }

  std::vector<std::string> With(const std::string& credentials) const {
    return {"--credentials", credentials, "--principals", principals};
  }
  std::unique_ptr<ReceiverProcess> Receiver(const std::string& id, const std::string& credentials) {
    auto args = With(credentials);
    if (!security::Credentials::Load(credentials).value()->serves_tls()) args.resize(2);
    return std::make_unique<ReceiverProcess>(root.path(), id, sender->control(), "m", args);
  }
  std::unique_ptr<v1::PullService::Stub> PullsAs(const std::string& credentials) const {
    ShowAs(credentials);
    auto stub = v1::PullService::NewStub(Channel(sender->control()));
    ShowAs(authority.root() / "operator" / "credentials.toml");
    return stub;
  }

  ShmDir root;
  TestAuthority authority;
  const std::string cloud, principals;
  std::unique_ptr<SenderProcess> sender;
};

void Prepare(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  context.set_wait_for_ready(true);
}

struct Opened {
  grpc::Status status;
  v1::OpenPullResponse response;
};

Opened Open(v1::PullService::Stub& stub, const Layout& layout, const std::string& id) {
  grpc::ClientContext context;
  Prepare(context);
  v1::OpenPullRequest request;
  request.set_model("m");
  request.set_receiver_id(id);
  request.set_fingerprint(layout.fingerprint().Hex());
  request.set_streams(1);
  Opened opened;
  opened.status = stub.OpenPull(&context, request, &opened.response);
  return opened;
}

// Takes nothing; what counts is whether the sender lets the stream begin.
class NoSink : public net::ChunkSink {
 public:
  StatusOr<MutableBytes> Begin(const wire::FrameHeader&) override {
    return absl::CancelledError("the stream began");
  }
  Status Finish(const wire::FrameHeader&) override { return {}; }
  void Abandon(const wire::FrameHeader&) override {}
};

std::string StreamWith(const Opened& opened, const Layout& layout, uint16_t port,
                       const std::string& credentials) {
  const auto own = Made(security::Credentials::Load(credentials));
  net::PullTarget target;
  target.host = "127.0.0.1";
  target.port = port;
  std::memcpy(target.ticket.data(), opened.response.ticket().data(), target.ticket.size());
  target.fingerprint = layout.fingerprint();
  target.streams = 1;
  target.tls = Made(net::Tls::Create(own, net::Tls::Side::kClient));
  target.token = own->Now()->token;
  net::IoThreads io(1);
  net::PullClient client(io, target);
  wire::Have have;
  have.chunks.resize(ChunkTable::Create(layout)->size());
  NoSink sink;
  return std::string(MessageOf(client.Run(have, sink).status()));
}

}  // namespace

TEST_CASE(
    "a secured pair syncs by certificate and by token, and a restart renews nothing by hand") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 4, 1);
  REQUIRE(trainer.Publish(1).ok());
  const auto by_certificate = s.Receiver("r1", s.authority.Node("rollout-1"));
  REQUIRE(by_certificate->WaitCommitted(1));
  ShowAs("");  // a receiver without a certificate serves plaintext on loopback
  const auto by_token = s.Receiver("r2", s.cloud);
  REQUIRE(by_token->WaitCommitted(1));
  ShowAs(s.authority.root() / "operator" / "credentials.toml");
  // New keys for the sender, under way: attachments and pulls go on, new connections see them.
  s.authority.Node("sender");
  ::kill(s.sender->child().pid(), SIGHUP);
  for (uint64_t version = 2; version < 5; ++version) {
    trainer.Step();
    REQUIRE(trainer.Publish(version).ok());
    REQUIRE(by_certificate->WaitCommitted(version));
    REQUIRE(by_token->WaitCommitted(version));
  }
  // A new token at both ends: the attachment goes on, and the next pull shows the new one.
  const auto old_token = s.PullsAs(s.authority.TokenOnly("old", kCloudToken, true));
  WriteFile(s.authority.root() / "cloud" / "token", "another-token-of-receivers-in-the-cloud\n");
  REQUIRE(Eventually([&] {
    return Open(*old_token, trainer.layout(), "old").status.error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;
  }));
  for (uint64_t version = 5; version < 8; ++version) {
    trainer.Step();
    REQUIRE(trainer.Publish(version).ok());
    REQUIRE(by_token->WaitCommitted(version));
    REQUIRE(by_certificate->WaitCommitted(version));
  }
  CHECK(trainer.Compare(by_certificate->dir()) == "");
  CHECK(trainer.Compare(by_token->dir()) == "");
  CHECK(Eventually([&] { return Contains("were read again").match(ReadText(s.sender->log())); }));
  CHECK_FALSE(Contains(kCloudToken).match(ReadText(s.sender->log())));
}

TEST_CASE(
    "strangers are refused one by one, each with its reason, and a sync goes on beside them") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 4, 2);
  REQUIRE(trainer.Publish(1).ok());
  const std::string one = s.authority.Node("rollout-1"), two = s.authority.Node("rollout-2");
  const auto receiver = s.Receiver("r1", one);
  REQUIRE(receiver->WaitCommitted(1));
  const Layout& layout = trainer.layout();
  const uint16_t port = s.sender->bulk_port();

  const auto stub_one = s.PullsAs(one), stub_two = s.PullsAs(two);
  const auto wrong_role = s.PullsAs(s.authority.root() / "operator" / "credentials.toml");
  const auto wrong_model = s.PullsAs(s.authority.Node("elsewhere"));
  CHECK(Open(*wrong_role, layout, "x").status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(Open(*wrong_model, layout, "x").status.error_code() == grpc::StatusCode::PERMISSION_DENIED);
  // Another's name.
  CHECK(Open(*stub_two, layout, "r1").status.error_code() == grpc::StatusCode::PERMISSION_DENIED);

  // Another's ticket, which a thief found in a log: its owner may use it, the thief may not.
  const Opened granted = Open(*stub_one, layout, "r3");
  REQUIRE(granted.status.ok());
  CHECK_THAT(StreamWith(granted, layout, port, two), Contains("was granted to rollout-1"));
  CHECK_THAT(StreamWith(granted, layout, port, one), Contains("the stream began"));
  const auto stub_cloud = s.PullsAs(s.cloud);
  const Opened cloud = Open(*stub_cloud, layout, "r4");
  REQUIRE(cloud.status.ok());
  CHECK_THAT(StreamWith(cloud, layout, port, one), Contains("was granted to cloud"));
  CHECK_THAT(StreamWith(cloud, layout, port, s.cloud), Contains("the stream began"));
  Opened made_up = granted;
  made_up.response.set_ticket(std::string(16, 'x'));
  CHECK_THAT(StreamWith(made_up, layout, port, one), Contains("unknown or has expired"));

  // Connections that never speak, and one that speaks rubbish, on both ports.
  std::vector<int> silent;
  const auto control_port = static_cast<uint16_t>(
      std::stoi(s.sender->control().substr(s.sender->control().find(':') + 1)));
  for (const uint16_t at : {port, control_port}) {
    for (int i = 0; i < 200; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (!ConnectHere(fd, at)) break;
      if (i % 2 == 0) (void)!send(fd, "\x16\x03\x01rubbish", 10, MSG_NOSIGNAL);
      silent.push_back(fd);
    }
  }
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  CHECK(receiver->WaitCommitted(2));
  CHECK(trainer.Compare(receiver->dir()) == "");
  for (const int fd : silent) close(fd);
}

TEST_CASE("who sends giants is cut in bounded memory, known or not, and a sync goes on beside") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 4, 5);
  REQUIRE(trainer.Publish(1).ok());
  const auto receiver = s.Receiver("r1", s.authority.Node("rollout-1"));
  REQUIRE(receiver->WaitCommitted(1));
  const pid_t pid = s.sender->child().pid();
  const uint64_t before = AnonymousBytes(pid);
  const auto stranger = s.PullsAs(s.authority.TokenOnly("x", "a-token-that-nobody-gave-out", true));
  const auto greedy = v1::SenderService::NewStub(Channel(s.sender->control()));
  std::atomic<bool> over{false};
  std::atomic<int> strangers{0}, giants{0};
  std::atomic<uint64_t> peak{0};
  const std::string giant(size_t{256} << 20, 'x');
  std::thread sends([&] {
    while (!over) {
      grpc::ClientContext context, of_stranger;
      Prepare(context);
      Prepare(of_stranger);
      v1::OpenPullRequest open;
      open.set_fingerprint(giant);
      v1::OpenPullResponse opened;
      const auto code = stranger->OpenPull(&of_stranger, open, &opened).error_code();
      strangers += code == grpc::StatusCode::UNAUTHENTICATED;
      v1::TriggerSyncRequest sync;
      sync.set_model("m");
      sync.add_receiver_ids(giant);
      const auto reader = greedy->TriggerSync(&context, sync);
      giants += reader->Finish().error_code() == grpc::StatusCode::UNAVAILABLE;
    }
  });
  std::thread looks([&] {
    while (!over) peak = std::max(peak.load(), AnonymousBytes(pid));
  });
  bool committed = true;
  for (uint64_t version = 2; committed && (version < 8 || (giants < 3 && version < 500));
       ++version) {
    trainer.Step();
    committed = trainer.Publish(version).ok() && receiver->WaitCommitted(version);
  }
  over = true;
  sends.join();
  looks.join();
  CHECK(committed);
  CHECK(strangers > 0);
  CHECK(giants >= 3);
  WARN("MiB of the sender before " << (before >> 20) << ", at most " << (peak.load() >> 20));
  CHECK(peak.load() < before + (uint64_t{160} << 20));
  CHECK(trainer.Compare(receiver->dir()) == "");
  const std::string log = ReadText(s.sender->log());
  CHECK_THAT(log, Contains("a connection of 127.0.0.1 was cut: ") && Contains("is the most"));
}

TEST_CASE("requests of calls that last have a limit of memory, which is a principal's own") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 1, 6);
  REQUIRE(trainer.Publish(1).ok());
  struct Call {
    Call(v1::SenderService::Stub& stub, const v1::WatchSenderVersionsRequest& request) {
      Prepare(context);
      reader = stub.WatchVersions(&context, request);
      v1::VersionInfo info;
      if (!reader->Read(&info)) status = reader->Finish();
    }
    ~Call() { context.TryCancel(); }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::VersionInfo>> reader;
    grpc::Status status;
  };
  // A field that nobody knows is kept with the request.
  v1::WatchSenderVersionsRequest padded;
  padded.set_model("m");
  padded.GetReflection()->MutableUnknownFields(&padded)->AddLengthDelimited(
      999, std::string(1'000'000, 'x'));
  const auto greedy = v1::SenderService::NewStub(Channel(s.sender->control()));
  ShowAs(s.authority.Node("rollout-1"));
  const auto other = v1::SenderService::NewStub(Channel(s.sender->control()));
  std::deque<Call> calls;
  while (calls.size() < 100 && (calls.empty() || calls.back().status.ok())) {
    calls.emplace_back(*greedy, padded);
  }
  const grpc::Status refused = calls.back().status;
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(refused.error_message(),
             Contains("requests of calls that last of operator would hold") &&
                 Contains("is the most of one caller; send smaller requests, or end some"));
  CHECK(calls.size() > 32);
  CHECK(Call(*other, padded).status.ok());
  calls.pop_front();
  CHECK(Eventually([&] { return Call(*greedy, padded).status.ok(); }));
}

TEST_CASE("a ticket is of no use any more when its principal is taken out of the file") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 4, 2);
  REQUIRE(trainer.Publish(1).ok());
  const std::string one = s.authority.Node("rollout-1"), two = s.authority.Node("rollout-2");
  const auto stub_one = s.PullsAs(one), stub_two = s.PullsAs(two);
  const Opened granted = Open(*stub_one, trainer.layout(), "r1");
  const Opened other = Open(*stub_two, trainer.layout(), "r2");
  REQUIRE(granted.status.ok());
  REQUIRE(other.status.ok());
  std::string left = kPrincipals;
  left.replace(left.find("\"rollout-1\"\nroles"), 11, "\"somebody\"");
  left.replace(left.find("certificate = \"rollout-1\""), 25, "certificate = \"somebody\"");
  // One is taken out; the other may touch another model from now on.
  const size_t at = left.find("[[principal]]\nname = \"rollout-2\"");
  left.insert(left.find("certificate", at), "models = [\"other\"]\n");
  s.authority.Principals(left);
  REQUIRE(Eventually([&] {
    return Open(*stub_one, trainer.layout(), "r3").status.error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;
  }));
  const uint16_t port = s.sender->bulk_port();
  CHECK_THAT(StreamWith(granted, trainer.layout(), port, one),
             Contains("rollout-1 may not fetch model \"m\" any more"));
  CHECK_THAT(StreamWith(other, trainer.layout(), port, two),
             Contains("rollout-2 may not fetch model \"m\" any more"));
}

TEST_CASE("a ticket is of no use to who has the token that its principal had before") {
  Secured s;
  Trainer trainer(s.sender->socket(), "m", 4, 2);
  REQUIRE(trainer.Publish(1).ok());
  const std::string thief = s.authority.TokenOnly("thief", kCloudToken, true);
  const auto stub = s.PullsAs(thief);
  const Opened granted = Open(*stub, trainer.layout(), "r1");
  REQUIRE(granted.status.ok());
  s.authority.TokenOnly("cloud", "the-next-token-of-receivers-there", true);
  REQUIRE(Eventually([&] {
    return Open(*stub, trainer.layout(), "r2").status.error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;
  }));
  const uint16_t port = s.sender->bulk_port();
  CHECK_THAT(StreamWith(granted, trainer.layout(), port, thief),
             Contains("neither its certificate nor its token"));
  CHECK_THAT(StreamWith(granted, trainer.layout(), port, s.cloud), Contains("the stream began"));
}

TEST_CASE("side files that an engine may execute travel only where both ends allow it") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), "m", 1, 3);
  REQUIRE(trainer.Publish(1).ok());
  const std::vector<SideFile> code = {{"modeling_m.py", "print()"}};
  TrainerClient client(sender.socket(), "m");
  CHECK_THAT(std::string(MessageOf(client.Register(trainer.layout(), code).status())),
             Contains("modeling_m.py") && Contains("--allow-code-files"));
  sender.Restart({"--allow-code-files"});
  REQUIRE(Eventually([&] { return client.Register(trainer.layout(), code).ok(); }));
  auto offload = client.Begin(2);
  REQUIRE(offload.ok());
  for (size_t t = 0; t < trainer.layout().size(); ++t) {
    const Bytes tensor =
        Bytes(trainer.content()).subspan(trainer.layout().offset(t), trainer.layout().bytes(t));
    REQUIRE((*offload)->Write(t, tensor).ok());
  }
  REQUIRE((*offload)->Ready().ok());
  offload->reset();
  REQUIRE(client.WaitPublished(2).ok());
  ReceiverProcess closed(root.path(), "closed", sender.control(), "m");
  ReceiverProcess open(root.path(), "open", sender.control(), "m", {"--allow-code-files"});
  CHECK(open.WaitCommitted(2));
  CHECK(ReadText(open.dir() / "modeling_m.py") == "print()");
  CHECK(Eventually([&] { return Contains("modeling_m.py").match(closed.Status().message()); }));
  CHECK_FALSE(std::filesystem::exists(closed.dir() / "modeling_m.py"));
}

TEST_CASE("daemons beyond loopback without TLS and principals do not start") {
  ShmDir root;
  const TestAuthority authority(root.path() / "keys");
  const std::string principals = authority.Principals("anonymous-roles = []\n");
  const std::string token_only = authority.TokenOnly("cloud", kCloudToken, true);
  const auto fails_with = [&](std::vector<std::string> args, const std::string& why) {
    args.insert(args.begin(), {"--data-dir", (root.path() / "s").string(), "--bulk-listen",
                               "0.0.0.0:0", "--control-listen", "0.0.0.0:0"});
    const auto log = root.path() / "log";
    const auto child = Spawn("deltawire-sender", args, log);
    CHECK(Eventually([&] { return !child->Running(); }));
    CHECK_THAT(ReadText(log), Contains(why));
  };
  fails_with({}, "--insecure-plaintext");
  fails_with({"--credentials", authority.Node("sender")}, "--principals");
  fails_with({"--principals", principals}, "--credentials");
  fails_with({"--credentials", token_only, "--principals", principals}, "certificate");
}

}  // namespace deltawire::testing::security_test
