#include "proto/grpc_lifetime.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"

namespace deltawire {
namespace {

/// A channel that is made and goes again.
void UseChannel() {
  const auto channel = grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
  CHECK(channel != nullptr);
  CHECK(grpc_is_initialized() != 0);
}

TEST_CASE("KeepGrpc: the last channel that goes does not shut gRPC down") {
  REQUIRE(grpc_is_initialized() == 0);
  // So it is without: the case would show nothing if it were not.
  UseChannel();
  // A thread of gRPC's own does the shutdown.
  REQUIRE(testing::Eventually([] { return grpc_is_initialized() == 0; }));

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(KeepGrpc);
  for (std::thread& thread : threads) thread.join();
  CHECK(grpc_is_initialized() != 0);
  for (int i = 0; i < 3; ++i) UseChannel();
  // Whatever was to be given back has been: this returns when a shutdown is done, if it is the one.
  grpc_init();
  grpc_shutdown_blocking();
  CHECK(grpc_is_initialized() != 0);
}

}  // namespace
}  // namespace deltawire
