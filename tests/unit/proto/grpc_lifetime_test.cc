#include "proto/grpc_lifetime.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"

namespace deltawire::grpc_lifetime_test {
namespace {

/// Makes a channel and lets it go.
void UseChannel() {
  const auto channel = grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
  CHECK(channel != nullptr);
  CHECK(grpc_is_initialized() != 0);
}

TEST_CASE("KeepGrpc: the last channel that goes does not shut gRPC down") {
  REQUIRE(grpc_is_initialized() == 0);
  // First the shutdown that KeepGrpc prevents is seen to happen without it. If it did not happen,
  // this case would show nothing.
  UseChannel();
  // A thread of gRPC does the shutdown, so it is waited for.
  REQUIRE(testing::Eventually([] { return grpc_is_initialized() == 0; }));

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(KeepGrpc);
  for (std::thread& thread : threads) thread.join();
  CHECK(grpc_is_initialized() != 0);
  for (int i = 0; i < 3; ++i) UseChannel();
  // If this is the last user of gRPC, grpc_shutdown_blocking returns only after the shutdown. So
  // the last line does not look too early.
  grpc_init();
  grpc_shutdown_blocking();
  CHECK(grpc_is_initialized() != 0);
}

}  // namespace
}  // namespace deltawire::grpc_lifetime_test
