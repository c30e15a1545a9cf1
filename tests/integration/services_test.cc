// What both daemons offer to tools: health, reflection, metrics, a socket that only its owner
// opens.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>

#include "tests/support/daemons.h"
#include "tests/support/http_get.h"

namespace deltawire::testing::services_test {
namespace {

// Calls a method for which this program has no stub. Request and answer, one each, are raw protobuf
// bytes.
StatusOr<std::string> RawCall(const std::string& address, const std::string& method,
                              const std::string& request) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto next = [&] { return queue.Next(&tag, &ok) && ok; };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  if (!next()) return absl::UnavailableError("no call");
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  if (!next()) return absl::UnavailableError("not written");
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  if (!next()) return absl::UnavailableError("no answer");
  grpc::Slice single;
  if (!response.DumpToSingleSlice(&single).ok()) return absl::DataLossError("no bytes");
  return std::string(single.begin(), single.end());
}

}  // namespace

TEST_CASE("both daemons answer health checks and reflection, as grpcurl asks them") {
  ShmDir root;
  SenderProcess sender(root.path());
  ReceiverProcess receiver(root.path(), "r1", sender.control(), "m");
  const std::string list_services = std::string("\x3a\x01*", 3);
  const std::string serving = std::string("\x08\x01", 2);
  for (const auto& [address, service] :
       {std::pair<std::string, std::string>{sender.control(), "deltawire.v1.SenderService"},
        {receiver.control(), "deltawire.v1.ReceiverService"},
        {"unix:" + sender.socket(), "deltawire.v1.TrainerService"}}) {
    CAPTURE(address);
    const auto health = RawCall(address, "/grpc.health.v1.Health/Check", "");
    REQUIRE(health.status() == absl::OkStatus());
    CHECK(*health == serving);
    const auto services = RawCall(
        address, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
    REQUIRE(services.status() == absl::OkStatus());
    CHECK(services->find(service) != std::string::npos);
  }
}

TEST_CASE("only its owner may open the trainers' socket, and a killed sender's is replaced") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), "m", 1, 51);
  REQUIRE(trainer.Publish(1).ok());
  const auto mode = std::filesystem::status(sender.socket()).permissions();
  CHECK(mode == (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  sender.Restart();
  trainer.Step();
  CHECK(trainer.Publish(2).status() == absl::OkStatus());
}

TEST_CASE("metrics say what the daemons did") {
  ShmDir root;
  const uint16_t sender_port = FreePort();
  const uint16_t receiver_port = FreePort();
  SenderProcess sender(root.path(), {"--metrics-listen", fmt::format("127.0.0.1:{}", sender_port)});
  ReceiverProcess receiver(root.path(), "r1", sender.control(), "m",
                           {"--metrics-listen", fmt::format("127.0.0.1:{}", receiver_port)});
  Trainer trainer(sender.socket(), "m", 1, 52);
  for (uint64_t v : {3, 4}) {
    REQUIRE(trainer.Publish(v).ok());
    REQUIRE(receiver.WaitCommitted(v));
    trainer.Step();
  }
  // A receiver tells its sender of a commit after the commit.
  std::string sent;
  CHECK(Eventually([&] {
    sent = HttpGet(sender_port, "/metrics");
    return sent.find("deltawire_sender_versions_behind{model=\"m\"} 0") != std::string::npos;
  }));
  INFO(sent);
  CHECK(sent.find("deltawire_sender_published_total{model=\"m\"} 2") != std::string::npos);
  CHECK(sent.find("deltawire_sender_receivers_relayed{model=\"m\"} 0") != std::string::npos);
  CHECK(sent.find("deltawire_sender_receivers_astray{model=\"m\"} 0") != std::string::npos);
  CHECK(sent.find("deltawire_sender_version{model=\"m\"} 4") != std::string::npos);
  for (const char* stage : {"wait", "offload", "diff", "publish"}) {
    CHECK(sent.find(fmt::format(
              "deltawire_sender_stage_seconds_count{{model=\"m\",stage=\"{}\"}} 2", stage)) !=
          std::string::npos);
  }
  CHECK(sent.find("deltawire_sender_peers_refused_total{reason=\"ticket\"} 0") !=
        std::string::npos);
  CHECK(sent.find("deltawire_sender_codec_chunks_total{model=\"m\",codec=\"raw\"}") !=
        std::string::npos);
  CHECK(sent.find("deltawire_sender_codec_bytes_total{model=\"m\",codec=\"fast\"}") !=
        std::string::npos);
  CHECK(sent.find("deltawire_sender_encode_seconds_total{codec=\"tight\"}") != std::string::npos);
  CHECK(sent.find("deltawire_sender_encoded_cache_bytes{model=\"m\"} ") != std::string::npos);
  CHECK(sent.find("deltawire_sender_encoded_cache_evictions_total{model=\"m\"} 0") !=
        std::string::npos);
  CHECK(sent.find("deltawire_sender_early_encoded_bytes{model=\"m\"} 0") != std::string::npos);
  const std::string received = HttpGet(receiver_port, "/metrics");
  INFO(received);
  CHECK(received.find("deltawire_receiver_commits_total{model=\"m\"} 2") != std::string::npos);
  CHECK(received.find(fmt::format("deltawire_receiver_sender_in_use{{model=\"m\",sender=\"{}\"}} 1",
                                  sender.control())) != std::string::npos);
  CHECK(received.find("deltawire_receiver_version{model=\"m\"} 4") != std::string::npos);
  CHECK(received.find("deltawire_receiver_stage_seconds_count{model=\"m\",stage=\"commit\"} 2") !=
        std::string::npos);
  CHECK(received.find("deltawire_receiver_versions_behind{model=\"m\"} 0") != std::string::npos);
  CHECK(received.find("process_threads ") != std::string::npos);
  CHECK(received.find("deltawire_receiver_peers_refused_total{reason=\"limit\"} 0") !=
        std::string::npos);
  CHECK(received.find("deltawire_receiver_codec_chunks_total{model=\"m\",codec=\"dense\"} 0") !=
        std::string::npos);
  CHECK(received.find("deltawire_receiver_decode_seconds_total{codec=\"tight\"} 0") !=
        std::string::npos);
}

}  // namespace deltawire::testing::services_test
