// Calls by a method's name and in JSON, to a server of the test's own.
#include "proto/client/control_client.h"

#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <thread>

#include "proto/client/json.h"
#include "proto/control_server.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::control_client_test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using testing::Made;
using Turn = ControlCall::Turn;

constexpr milliseconds kForEver(-1), kLong(20000);

// Watches get two versions and stay open; a rollback is refused.
class Stub final : public v1::SenderService::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::SenderStatusRequest* request,
                         v1::SenderStatusResponse* response) override {
    const auto shown = context->client_metadata().find("authorization");
    if (shown != context->client_metadata().end()) {
      response->set_security(std::string(shown->second.data(), shown->second.size()));
    }
    response->set_kernels(context->peer());
    response->add_models()->set_model(request->model());
    return grpc::Status::OK;
  }
  grpc::Status WatchVersions(grpc::ServerContext* context, const v1::WatchSenderVersionsRequest*,
                             grpc::ServerWriter<v1::VersionInfo>* out) override {
    for (const uint64_t version : {uint64_t{7}, std::numeric_limits<uint64_t>::max()}) {
      v1::VersionInfo info;
      info.mutable_id()->set_version(version);
      out->Write(info);
    }
    testing::Eventually([&] { return context->IsCancelled(); });
    return grpc::Status::OK;
  }
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                        v1::RollbackResponse*) override {
    return {grpc::StatusCode::NOT_FOUND, fmt::format("no version {}", request->version())};
  }
};

struct Server {
  explicit Server(const std::string& address = "127.0.0.1:0")
      : access(Access::Open()), control(Made(ControlServer::Start(address, {&service}, *access))) {}
  std::string address() const { return fmt::format("127.0.0.1:{}", control->port()); }
  Stub service;
  std::shared_ptr<Access> access;
  std::unique_ptr<ControlServer> control;
};

std::unique_ptr<ControlClient> ClientOf(const std::string& address,
                                        const std::string& credentials = "") {
  return Made(ControlClient::Create({.address = address, .credentials = credentials}));
}

// The only answer of a call.
StatusOr<Json> Ask(ControlClient& client, const std::string& method, const std::string& request) {
  DW_ASSIGN_OR_RETURN(const auto call, client.Start(method, request, kLong));
  std::string answer;
  DW_ASSIGN_OR_RETURN(const Turn first, call->Next(kForEver, &answer));
  CHECK(first == Turn::kAnswer);
  std::string none;
  DW_ASSIGN_OR_RETURN(const Turn second, call->Next(kForEver, &none));
  CHECK(second == Turn::kEnd);
  return Json::parse(answer);
}

std::string Refusal(const Status& status) {
  return fmt::format("{}: {}", static_cast<int>(status.code()), MessageOf(status));
}

TEST_CASE("a call has its request's fields and one answer") {
  const Server server;
  const auto client = ClientOf(server.address());
  const Json answer = Made(Ask(*client, "GetStatus", R"({"model": "policy"})"));
  CHECK(answer["models"][0]["model"] == "policy");
  CHECK(answer["security"] == "");
  // The second call goes over the connection of the first.
  CHECK(Made(Ask(*client, "GetStatus", "{}"))["kernels"] == answer["kernels"]);
}

TEST_CASE("what the daemon says, and what does not fit its service, is an error that says so") {
  const Server server;
  const auto client = ClientOf(server.address());
  CHECK(Refusal(Ask(*client, "Rollback", R"({"version": 18446744073709551615})").status()) ==
        fmt::format("5: sender {}: no version 18446744073709551615", server.address()));
  CHECK_THAT(Refusal(client->Start("Rolback", "{}", kLong).status()),
             Contains("3: SenderService has no method \"Rolback\"; it has GetStatus, ") &&
                 Contains("Rollback"));
  CHECK_THAT(Refusal(client->Start("Rollback", R"({"versoin": 3})", kLong).status()),
             Contains("3: Rollback: this is no RollbackRequest in JSON: ") && Contains("versoin"));
  CHECK_THAT(Refusal(client->Start("Rollback", R"({"version": -1})", kLong).status()),
             Contains("3: Rollback: this is no RollbackRequest in JSON: "));
  CHECK_THAT(Refusal(client->Start("Rollback", "[", kLong).status()), Contains("3: Rollback: "));
  CHECK_FALSE(ControlClient::Create({.address = "nowhere"}).ok());
  CHECK_FALSE(ControlClient::Create({.address = ":1", .credentials = "/nowhere"}).ok());
}

TEST_CASE("a stream's answers come one by one, until it is cancelled from another thread") {
  const Server server;
  const auto client = ClientOf(server.address());
  const auto call = Made(client->Start("WatchVersions", R"({"model": "m"})", milliseconds(0)));
  std::string answer;
  REQUIRE(Made(call->Next(kForEver, &answer)) == Turn::kAnswer);
  CHECK(Json::parse(answer)["id"]["version"] == 7);
  REQUIRE(Made(call->Next(kForEver, &answer)) == Turn::kAnswer);
  CHECK(Json::parse(answer)["id"]["version"] == std::numeric_limits<uint64_t>::max());
  CHECK(Made(call->Next(milliseconds(0), &answer)) == Turn::kNotYet);
  CHECK(Made(call->Next(milliseconds(10), &answer)) == Turn::kNotYet);
  std::thread other([&] { call->Cancel(); });
  CHECK(call->Next(kForEver, &answer).status().code() == StatusCode::kCancelled);
  other.join();
  CHECK(call->Next(kForEver, &answer).status().code() == StatusCode::kCancelled);
  // One that is dropped while it runs, after its first answer or before, is cancelled as well.
  for (const bool read : {true, false}) {
    const auto dropped = Made(client->Start("WatchVersions", "{}", milliseconds(0)));
    if (read) CHECK(Made(dropped->Next(kForEver, &answer)) == Turn::kAnswer);
  }
}

TEST_CASE("a call's time-out is the whole call's") {
  const Server server;
  const auto client = ClientOf(server.address());
  const auto call = Made(client->Start("WatchVersions", "{}", milliseconds(300)));
  std::string answer;
  StatusOr<Turn> turn = Turn::kAnswer;
  while (turn.ok() && *turn == Turn::kAnswer) turn = call->Next(kForEver, &answer);
  CHECK(Refusal(turn.status()) ==
        fmt::format("4: sender {}: not done in time (a longer timeout allows more)",
                    server.address()));
  CHECK(Ask(*client, "GetStatus", "{}").ok());
}

TEST_CASE("a client outlives its daemon, and calls that run outlive their client") {
  std::optional<Server> server(std::in_place);
  const std::string address = server->address();
  auto client = ClientOf(address);
  CHECK(Ask(*client, "GetStatus", "{}").ok());
  const auto watch = Made(client->Start("WatchVersions", "{}", milliseconds(0)));
  std::string answer;
  CHECK(Made(watch->Next(kForEver, &answer)) == Turn::kAnswer);
  server->control->Shutdown(milliseconds(0));
  server.reset();
  // The words depend on which end notices first.
  StatusOr<Turn> turn = Turn::kAnswer;
  while (turn.ok() && *turn == Turn::kAnswer) turn = watch->Next(kForEver, &answer);
  CHECK(!turn.ok());
  const auto nobody = client->Start("GetStatus", "{}", kLong);
  CHECK(Refusal(nobody.status()) ==
        fmt::format("14: sender {}: nothing listens there (connection refused); start "
                    "deltawire-sender there, or check the address",
                    address));
  server.emplace(address);
  CHECK(Ask(*client, "GetStatus", "{}").ok());
  const auto last = Made(client->Start("WatchVersions", "{}", milliseconds(0)));
  client.reset();
  CHECK(Made(last->Next(kForEver, &answer)) == Turn::kAnswer);
}

TEST_CASE("a new token is shown without a new client, and never to another machine in plaintext") {
  const TempDir dir;
  const testing::TestAuthority authority(dir.path());
  const Server server;
  const std::string file = authority.TokenOnly("alice", "the-first-token-of-alice", false);
  const auto client = ClientOf(server.address(), file);
  CHECK(Made(Ask(*client, "GetStatus", "{}"))["security"] == "Bearer the-first-token-of-alice");
  const auto far = ClientOf("10.0.0.1:7700", file);
  CHECK_THAT(Refusal(far->Start("GetStatus", "{}", kLong).status()),
             Contains("3: ") && Contains("would travel to 10.0.0.1:7700 in plaintext"));
  authority.TokenOnly("alice", "the-second-token-of-alice", false);
  CHECK(testing::Eventually([&] {
    return Made(Ask(*client, "GetStatus", "{}"))["security"] == "Bearer the-second-token-of-alice";
  }));
  // A file that is broken leaves what was read before in use.
  testing::WriteFile(dir.path() / "alice" / "token", "short\n");
  CHECK(Made(Ask(*client, "GetStatus", "{}"))["security"] == "Bearer the-second-token-of-alice");
}

}  // namespace
}  // namespace deltawire::control_client_test
