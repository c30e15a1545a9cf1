// Calls of a real gRPC client to a server that leaves some of them unanswered, as if the request
// was lost on a connection that stays open. The server stands in for the sender's PullService.
#include "receiver/grpc_upstream.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "common/wire/wire_versions.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::receiver::grpc_upstream_test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A receiver may be stale for 5 s at most; the remaining second is for the next attempt, which is
/// answered.
constexpr auto kNoticed = 4s;

class MutePullService final : public v1::PullService::Service {
 public:
  std::atomic<int> mute{0};  ///< calls from now on that get no answer
  /// No OpenPull on the connection of the first Attach is answered, however many come.
  std::atomic<bool> mute_first_connection{false};
  /// Not 0: OpenPull is granted in this wire version, and `asked` is what it was asked.
  uint32_t wire_version = 0;
  v1::OpenPullRequest asked;

  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::SenderEvent, v1::ReceiverReport>* stream) override {
    {
      std::lock_guard lock(mu_);
      if (first_peer_.empty()) first_peer_ = context->peer();
    }
    v1::SenderEvent event;
    event.set_number(1);
    stream->Write(event);
    v1::ReceiverReport report;
    while (stream->Read(&report)) continue;
    return grpc::Status::OK;
  }

  grpc::Status GetNewest(grpc::ServerContext* context, const v1::GetNewestRequest*,
                         v1::GetNewestResponse* response) override {
    if (Mute(*context)) return grpc::Status::CANCELLED;
    response->mutable_newest()->set_version(7);
    return grpc::Status::OK;
  }
  grpc::Status GetSideFiles(grpc::ServerContext* context, const v1::GetSideFilesRequest*,
                            v1::GetSideFilesResponse*) override {
    return Mute(*context) ? grpc::Status::CANCELLED : NotKept();
  }
  grpc::Status OpenPull(grpc::ServerContext* context, const v1::OpenPullRequest* request,
                        v1::OpenPullResponse* response) override {
    if (wire_version != 0) {
      asked = *request;
      response->set_ticket(std::string(16, 't'));
      response->set_bulk_port(1);
      response->set_wire_version(wire_version);
      return grpc::Status::OK;
    }
    if (mute_first_connection) {
      std::lock_guard lock(mu_);
      if (context->peer() == first_peer_) mute = 1;
    }
    return Mute(*context) ? grpc::Status::CANCELLED : NotKept();
  }

 private:
  static grpc::Status NotKept() { return {grpc::StatusCode::NOT_FOUND, "an answer"}; }
  bool Mute(grpc::ServerContext& context) {
    if (mute-- <= 0) return false;
    // gRPC's synchronous server has no event for this.
    while (!context.IsCancelled()) std::this_thread::sleep_for(5ms);
    return true;
  }

  std::mutex mu_;
  std::string first_peer_;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Rig {
  MutePullService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Upstream> upstream;

  Rig() {
    int port = 0;
    server = grpc::ServerBuilder()
                 .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                 .RegisterService(&service)
                 .BuildAndStart();
    REQUIRE(port > 0);
    upstream =
        MakeGrpcUpstream(fmt::format("127.0.0.1:{}", port), "r1", security::Credentials::None());
  }
};

/// Seconds until `call` has given up waiting for an answer.
template <typename Call>
std::chrono::duration<double> TimeSilent(const Call& call) {
  const auto start = Clock::now();
  const Status status = call();
  INFO(status);
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  return Clock::now() - start;
}

TEST_CASE("a call whose request was lost is noticed in time, and the next one is answered") {
  Rig rig;
  rig.service.mute = 1;
  PullRequest wish{.model = "m"};
  SECTION("GetNewest") {
    CHECK(TimeSilent([&] { return rig.upstream->Newest("m").status(); }) < kNoticed);
    const auto newest = rig.upstream->Newest("m");
    REQUIRE(newest.ok());
    CHECK(newest->id.version == 7);
  }
  SECTION("OpenPull") {
    CHECK(TimeSilent([&] { return rig.upstream->OpenPull(wish).status(); }) < kNoticed);
    CHECK(rig.upstream->OpenPull(wish).status().code() == StatusCode::kNotFound);
  }
  SECTION("OpenPull with corrupt, whose answer may take longer") {
    wish.corrupt = {3};
    CHECK(TimeSilent([&] { return rig.upstream->OpenPull(wish).status(); }) < kNoticed);
    CHECK(rig.upstream->OpenPull(wish).status().code() == StatusCode::kNotFound);
  }
  SECTION("GetSideFiles, whose answer may take longer") {
    CHECK(TimeSilent([&] { return rig.upstream->SideFiles("m", 1).status(); }) < kNoticed);
    CHECK(rig.upstream->SideFiles("m", 1).status().code() == StatusCode::kNotFound);
  }
}

TEST_CASE("a pull that was granted in a wire version that this end does not speak is refused") {
  Rig rig;
  rig.service.wire_version = wire::kWireVersion;
  CHECK(rig.upstream->OpenPull({.model = "m"}).ok());
  CHECK(rig.service.asked.oldest_wire_version() == wire::kOldestWireVersion);
  CHECK(rig.service.asked.newest_wire_version() == wire::kWireVersion);
  rig.service.wire_version = wire::kWireVersion + 1;
  const Status refused = rig.upstream->OpenPull({.model = "m"}).status();
  CHECK(refused.code() == StatusCode::kUnimplemented);
  CHECK(MessageOf(refused).find("speaks wire version") != std::string_view::npos);
}

// A bit that flips in a frame's stream number makes a server take no further calls on the
// connection, while the streams that are open there go on.
TEST_CASE("a connection on which a call was not answered is given up, and its attachment with it") {
  Rig rig;
  rig.service.mute_first_connection = true;
  std::mutex mu;
  std::condition_variable cv;
  bool attached = false, ended = false;
  const auto set = [&](bool& what) {
    std::lock_guard lock(mu);
    what = true;
    cv.notify_all();
  };
  REQUIRE(rig.upstream
              ->Attach(
                  "m", {}, [&](const SenderEvent&) { set(attached); },
                  [&](const Status&) { set(ended); })
              .ok());
  {
    std::unique_lock lock(mu);
    REQUIRE(cv.wait_for(lock, 30s, [&] { return attached; }));
  }
  PullRequest wish{.model = "m"};
  SECTION("OpenPull") {}
  SECTION("OpenPull with corrupt, whose answer may take longer") { wish.corrupt = {3}; }
  CHECK(TimeSilent([&] { return rig.upstream->OpenPull(wish).status(); }) < kNoticed);
  CHECK(rig.upstream->OpenPull(wish).status().code() == StatusCode::kNotFound);
  std::unique_lock lock(mu);
  CHECK(cv.wait_for(lock, 30s, [&] { return ended; }));
  lock.unlock();
  rig.upstream->Detach();
}

TEST_CASE("a long call that was not answered in time is given more time") {
  Rig rig;
  rig.service.mute = 2;
  const auto call = [&] { return rig.upstream->SideFiles("m", 1).status(); };
  const auto first = TimeSilent(call);
  CHECK(TimeSilent(call) > 1.5 * first);
}

TEST_CASE("one that is only asked is reached again when both ends have another authority") {
  TempDir dir;
  MutePullService service;
  const std::string keys = dir.path() / "keys";
  int port = 0;
  const auto serve = [&](const testing::TestAuthority& authority) {
    const std::filesystem::path node =
        std::filesystem::path(authority.Node("server")).parent_path();
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back(
        {ReadFile(node / "key.pem"), ReadFile(node / "certificate.pem")});
    auto server = grpc::ServerBuilder()
                      .AddListeningPort(fmt::format("127.0.0.1:{}", port),
                                        grpc::SslServerCredentials(options), &port)
                      .RegisterService(&service)
                      .BuildAndStart();
    REQUIRE(server != nullptr);
    return server;
  };
  const testing::TestAuthority first(keys);
  const auto credentials = *security::Credentials::Load(first.Node("client"));
  auto server = serve(first);
  const auto upstream = MakeGrpcUpstream(fmt::format("127.0.0.1:{}", port), "r1", credentials);
  REQUIRE(upstream->Newest("m").status() == absl::OkStatus());
  server->Shutdown();
  server.reset();
  CHECK(upstream->Newest("m").status().code() == StatusCode::kUnavailable);
  const testing::TestAuthority second(keys);
  (void)second.Node("client");
  REQUIRE(credentials->Reload() == absl::OkStatus());
  server = serve(second);
  CHECK(testing::Eventually([&] { return upstream->Newest("m").ok(); }, 20s));
}

}  // namespace
}  // namespace deltawire::receiver::grpc_upstream_test
