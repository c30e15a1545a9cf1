// What the trainer's client does where there is no agent.
#include "sender/export/client/trainer_client.h"

#include <grpc/grpc.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "sender/export/client/this_process.h"
#include "tests/support/temp_dir.h"

namespace deltawire::trainer_client_test {

TEST_CASE("trainer client: gRPC stays initialized after the last client is gone") {
  // gRPC's shutdown joins a thread that polls for up to ten seconds. If the last client shut gRPC
  // down, a program would end up to ten seconds late.
  const TempDir temp;
  { const TrainerClient client((temp.path() / "trainer.sock").string(), "m"); }
  CHECK(grpc_is_initialized() == 1);
}

TEST_CASE("a process is named by its program, number and host") {
  const std::string text = ThisProcess();
  CAPTURE(text);
  CHECK(text.starts_with("export_test, process " + std::to_string(getpid()) + " on "));
}

}  // namespace deltawire::trainer_client_test
