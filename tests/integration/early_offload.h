// For tests of what receivers take while the trainer writes: an offload whose tensors are marked
// one after the other, and what of it lies in a receiver's files. Owner: a test case. Threads: its
// own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/shm/state_file.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "tests/support/daemons.h"

namespace deltawire::testing {

inline constexpr const char* kModel = "m";

/// An offload by the plain calls, which says of each tensor at once that it is written.
class Offload {
 public:
  Offload(const SenderProcess& sender, const Trainer& trainer, uint64_t version,
          uint64_t attempt = 0)
      : trainer_(trainer),
        version_(version),
        stub_(v1::TrainerService::NewStub(
            grpc::CreateChannel("unix:" + sender.socket(), grpc::InsecureChannelCredentials()))) {
    v1::BeginOffloadRequest request;
    request.set_model(kModel);
    request.set_version(version);
    request.set_client(4711);
    request.set_attempt(attempt);
    grpc::ClientContext context;
    const grpc::Status begun = stub_->BeginOffload(&context, request, &grant_);
    INFO(begun.error_message());
    REQUIRE(begun.ok());
  }
  uint64_t attempt() const { return grant_.attempt(); }
  /// Writes and marks the tensors from `first` to the one before `last`.
  void Write(const std::vector<std::byte>& content, size_t first, size_t last) {
    const Layout& layout = trainer_.layout();
    v1::MarkWrittenRequest request;
    request.set_model(kModel);
    request.set_lease(grant_.lease());
    std::fstream file(grant_.half_path(), std::ios::binary | std::ios::in | std::ios::out);
    for (size_t t = first; t < last; ++t) {
      file.seekp(static_cast<std::streamoff>(grant_.data_offset() + layout.offset(t)));
      file.write(reinterpret_cast<const char*>(content.data() + layout.offset(t)),
                 static_cast<std::streamsize>(layout.bytes(t)));
      request.add_tensors(static_cast<uint32_t>(t));
    }
    file.close();
    REQUIRE(file.good());
    v1::MarkWrittenResponse response;
    grpc::ClientContext context;
    const grpc::Status marked = stub_->MarkWritten(&context, request, &response);
    INFO(marked.error_message());
    REQUIRE(marked.ok());
  }
  void Abandon() {
    v1::AbandonOffloadRequest request;
    request.set_model(kModel);
    request.set_lease(grant_.lease());
    request.set_reason("loss is not a number");
    v1::AbandonOffloadResponse response;
    grpc::ClientContext context;
    REQUIRE(stub_->AbandonOffload(&context, request, &response).ok());
  }
  void Ready() {
    v1::NotifyBufferReadyRequest request;
    request.set_model(kModel);
    request.set_version(version_);
    request.set_world(1);
    request.set_lease(grant_.lease());
    request.set_wrote_all(true);
    v1::NotifyBufferReadyResponse response;
    grpc::ClientContext context;
    const grpc::Status ready = stub_->NotifyBufferReady(&context, request, &response);
    INFO(ready.error_message());
    REQUIRE(ready.ok());
  }

 private:
  const Trainer& trainer_;
  uint64_t version_;
  std::unique_ptr<v1::TrainerService::Stub> stub_;
  v1::BeginOffloadResponse grant_;
};

/// How many chunks of the receiver's files, the named one and the hidden one, hold `version`.
inline uint32_t Holding(const ReceiverProcess& receiver, uint64_t version) {
  const auto state = StateFile::Open(receiver.dir() / ".deltawire.state");
  if (!state.ok()) return 0;
  uint32_t n = 0;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    for (uint32_t c = 0; c < state->shape().chunks; ++c) {
      n += state->chunk_version(slot, c) == version;
    }
  }
  return n;
}

}  // namespace deltawire::testing
