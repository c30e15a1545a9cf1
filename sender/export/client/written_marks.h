// What a rank has written and not yet told the agent, and the calls that tell it (MarkWritten): one
// at a time, beside the copying, in batches large enough that calls do not count.
// Owner: the Offload. Threads: any; gRPC's call back. Dropping it ends a call that is under way.
// Errors: of a call that failed, from every later one. Cost: 8 bytes per chunk that is waiting.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "sender/export/client/chunk_bytes.h"

namespace deltawire {

class WrittenMarks {
 public:
  struct Offload {
    std::string model;
    uint64_t lease = 0;
    uint32_t rank = 0;
    bool sole = false;  ///< the tensors added are this rank's alone, of several
  };
  /// Makes ready a call: its deadline.
  using Prepare = std::function<void(grpc::ClientContext&)>;

  WrittenMarks(v1::TrainerService::Stub& stub, Offload offload, Prepare prepare);
  ~WrittenMarks();
  WrittenMarks(const WrittenMarks&) = delete;
  WrittenMarks& operator=(const WrittenMarks&) = delete;

  /// Whole tensors, of so many bytes together. Returns before they are told.
  grpc::Status AddTensors(std::span<const uint32_t> tensors, uint64_t bytes);
  /// Bytes of chunks. Returns before they are told.
  grpc::Status AddChunks(std::span<const ChunkBytes> chunks);
  /// Tells the rest, and returns when the agent knows all of it.
  grpc::Status Flush();

 private:
  struct Call {
    grpc::ClientContext context;
    v1::MarkWrittenRequest request;
    v1::MarkWrittenResponse response;
  };
  /// Starts a call when there is enough to tell, or anything at all. REQUIRES: mu_ held.
  void SendSome(bool all);
  void Done(const grpc::Status& status);

  v1::TrainerService::Stub& stub_;
  const Offload offload_;
  const Prepare prepare_;
  std::mutex mu_;
  std::condition_variable cv_;
  std::vector<uint32_t> tensors_;
  std::unordered_map<uint32_t, uint32_t> chunks_;
  uint64_t bytes_ = 0;
  std::unique_ptr<Call> call_;  // under way
  bool flushing_ = false;
  grpc::Status failure_;
};

}  // namespace deltawire
