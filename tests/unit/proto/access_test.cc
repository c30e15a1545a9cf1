// The gate in front of the services: every method says who may call it, and callers are who they
// show to be, over TLS and over loopback without.
#include "proto/access.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>

#include "proto/control_server.h"
#include "proto/deltawire/v1/access.pb.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "proto/dial.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::access_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::Made;
using testing::TestAuthority;

constexpr const char* kAlice = "alice-has-a-token-of-her-own";
constexpr const char* kBob = "bob-also-has-a-token-of-his-own";

// Answers with who called, as the handlers see it.
class Orchestrated final : public v1::SenderService::Service {
 public:
  explicit Orchestrated(std::shared_ptr<const Access> access) : access_(std::move(access)) {}
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::RollbackResponse* response) override {
    const Status may = access_->MayTouch(*context, request->model());
    if (!may.ok()) return {static_cast<grpc::StatusCode>(may.code()), std::string(MessageOf(may))};
    const auto who = access_->CallerOf(*context);
    if (who.ok() && *who != nullptr)
      response->mutable_info()->mutable_id()->set_lineage((*who)->name);
    return grpc::Status::OK;
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SenderStatusRequest*,
                         v1::SenderStatusResponse*) override {
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<const Access> access_;
};

struct Server {
  Server(const std::string& credentials, const std::string& principals)
      : access(Made(Access::Load(credentials, principals))), service(access) {
    control = Made(ControlServer::Start("127.0.0.1:0", {&service}, *access));
  }
  /// The caller's name as the handler sees it, or "CODE: message".
  std::string Rollback(const std::string& credentials, const std::string& model = "m") const {
    const auto own = credentials.empty() ? security::Credentials::None()
                                         : Made(security::Credentials::Load(credentials));
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        Made(DialControl(fmt::format("127.0.0.1:{}", control->port()), *own, args));
    const auto stub = v1::SenderService::NewStub(channel);
    return Rollback(*stub, model);
  }
  static std::string Rollback(v1::SenderService::Stub& stub, const std::string& model) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::RollbackRequest request;
    request.set_model(model);
    v1::RollbackResponse response;
    const grpc::Status status = stub.Rollback(&context, request, &response);
    if (status.ok()) return response.info().id().lineage();
    return fmt::format("{}: {}", static_cast<int>(status.error_code()), status.error_message());
  }
  std::shared_ptr<Access> access;
  Orchestrated service;
  std::unique_ptr<ControlServer> control;
};

constexpr const char* kPrincipals = R"(
[[principal]]
name = "alice"
roles = ["operator"]
models = ["m"]
certificate = "alice"
token-file = "alice/token"

[[principal]]
name = "bob"
roles = ["receiver"]
token-file = "bob/token"
)";

}  // namespace

TEST_CASE("every method of every service names the roles that may call it") {
  size_t methods = 0;
  for (const google::protobuf::FileDescriptor* file :
       {v1::SenderStatusRequest::descriptor()->file(),
        v1::RegisterModelRequest::descriptor()->file(),
        v1::ReceiverStatusRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor* service = file->service(s);
      for (int i = 0; i < service->method_count(); ++i, ++methods) {
        CAPTURE(service->method(i)->full_name());
        CHECK(service->method(i)->options().ExtensionSize(v1::allow) > 0);
      }
    }
  }
  CHECK(methods >= 24);
}

TEST_CASE("over loopback without TLS an operator's call takes a token as soon as one is known") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const std::string alice = authority.TokenOnly("alice", kAlice, false);
  const std::string bob = authority.TokenOnly("bob", kBob, false);
  const std::string mallory =
      authority.TokenOnly("mallory", "a-token-that-nobody-has-given-out", false);
  const Server open("", "");
  CHECK(open.Rollback("") == "");  // nobody is asked
  const Server server("", authority.Principals(kPrincipals));
  CHECK(server.Rollback(alice) == "alice");
  CHECK_THAT(server.Rollback(alice, "other"), Contains("7: alice may not touch model"));
  CHECK_THAT(server.Rollback(bob), Contains("7: bob may not call") && Contains("operator"));
  CHECK_THAT(server.Rollback(mallory), Contains("16: the token is of no principal here"));
  CHECK_THAT(server.Rollback(""), Contains("7: anonymous may not call"));
  CHECK(open.access->calls_refused() == 0);
  CHECK(server.access->calls_refused() == 4);
}

TEST_CASE(
    "over TLS a certificate or a token says who calls, and one connection may carry several") {
  const TempDir dir, elsewhere;
  const TestAuthority authority(dir.path()), other(elsewhere.path());
  const std::string alice = authority.Node("alice", kAlice);
  const std::string bob = authority.TokenOnly("bob", kBob, true);
  const Server server(authority.Node("server"), authority.Principals(kPrincipals));
  CHECK(server.Rollback(alice) == "alice");
  testing::WriteFile(dir.path() / "alice" / "credentials.toml",
                     "ca = 'ca.pem'\ncertificate = 'certificate.pem'\nkey = 'key.pem'\n");
  CHECK(server.Rollback(alice) == "alice");  // by her certificate alone
  CHECK_THAT(server.Rollback(bob), Contains("7: bob may not call"));
  CHECK_THAT(server.Rollback(authority.Node("stranger")),
             Contains("16: the certificate of stranger is of no principal here"));
  testing::WriteFile(dir.path() / "server" / "seen.toml", "ca = 'ca.pem'\n");
  CHECK_THAT(server.Rollback(dir.path() / "server" / "seen.toml"), Contains("16: neither"));
  CHECK_THAT(server.Rollback(""), Contains("14: "));                           // plaintext to TLS
  CHECK_THAT(server.Rollback(other.Node("alice", kAlice)), Contains("14: "));  // another authority

  const auto material = Made(security::Credentials::Load(dir.path() / "server" / "seen.toml"));
  const auto channel =
      Made(DialControl(fmt::format("127.0.0.1:{}", server.control->port()), *material, {}));
  const auto stub = v1::SenderService::NewStub(channel);
  const auto call_with = [&](const std::string& token) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", "Bearer " + token);
    v1::RollbackRequest request;
    request.set_model("m");
    v1::RollbackResponse response;
    const grpc::Status status = stub->Rollback(&context, request, &response);
    return status.ok() ? response.info().id().lineage() : status.error_message();
  };
  for (int i = 0; i < 3; ++i) {
    CHECK(call_with(kAlice) == "alice");
    CHECK_THAT(call_with(kBob), Contains("bob may not call"));
  }
}

TEST_CASE("a principal that is taken out of the file may do nothing soon after") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const std::string alice = authority.TokenOnly("alice", kAlice, false);
  authority.TokenOnly("bob", kBob, false);
  const Server server("", authority.Principals(kPrincipals));
  REQUIRE(server.Rollback(alice) == "alice");
  authority.Principals("anonymous-roles = []\n");
  CHECK(testing::Eventually([&] { return server.Rollback(alice).starts_with("16: "); }));
}

TEST_CASE("a request over TCP that is larger than any of ours is refused") {
  const Server server("", "");
  CHECK(server.Rollback("", std::string(kMaxTcpRequest - 1024, 'm')) == "");
  CHECK_THAT(server.Rollback("", std::string(kMaxTcpRequest, 'm')),
             StartsWith(fmt::format("{}: ", int{grpc::StatusCode::RESOURCE_EXHAUSTED})));
}

TEST_CASE("a trainer's request over a Unix socket may be larger") {
  const TempDir dir;
  const std::string socket = "unix:" + (dir.path() / "trainer.sock").string();
  const std::shared_ptr<const Access> access = Made(Access::Load("", ""));
  Orchestrated service(access);
  const auto control = Made(ControlServer::Start(socket, {&service}, *access));
  const auto channel = grpc::CreateChannel(socket, grpc::InsecureChannelCredentials());
  const auto stub = v1::SenderService::NewStub(channel);
  CHECK(Server::Rollback(*stub, std::string(2 * kMaxTcpRequest, 'm')) == "");
}

TEST_CASE("tokens never travel in plaintext to another machine") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const auto own = Made(security::Credentials::Load(authority.TokenOnly("alice", kAlice, false)));
  const auto dialled = DialControl("10.0.0.1:7700", *own, {});
  REQUIRE_FALSE(dialled.ok());
  CHECK_THAT(std::string(MessageOf(dialled.status())),
             Contains("in plaintext") && !Contains(kAlice));
  CHECK_FALSE(DialControl("127.0.0.1.example.net:7700", *own, {}).ok());
  CHECK_FALSE(DialControl("localhost.example.net:7700", *own, {}).ok());
  CHECK(DialControl("127.0.0.5:7700", *own, {}).ok());
  authority.TokenOnly("bob", kBob, false);
  const auto access = Made(Access::Load("", authority.Principals(kPrincipals)));
  CHECK(access->ForServer(true).ok());
  CHECK_FALSE(access->ForServer(false).ok());
  CHECK_FALSE(access->CheckExposure(true, false).ok());
  CHECK(access->CheckExposure(false, false).ok());
}

}  // namespace deltawire::access_test
