// The reports to the agent of the tensors and chunks that a rank has written. They travel in
// MarkWritten calls, one at a time, beside the copying, in batches so large that calls cost little.
// Any thread may add reports. Once a call has failed, every later function returns its error. The
// destructor ends a running call.
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
#include "common/layout/diffed_chunk.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "sender/export/client/written_bytes.h"

namespace deltawire {

class WrittenMarks {
 public:
  struct Writer {
    std::string model;
    uint64_t lease = 0;
    uint32_t rank = 0;
    bool sole = false;  ///< of several ranks, this one alone writes the added tensors
  };
  /// Prepares a call, e.g. sets its deadline.
  using Prepare = std::function<void(grpc::ClientContext&)>;

  WrittenMarks(v1::TrainerService::Stub& stub, Writer writer, Prepare prepare);
  ~WrittenMarks();
  WrittenMarks(const WrittenMarks&) = delete;
  WrittenMarks& operator=(const WrittenMarks&) = delete;

  /// Adds whole tensors of `bytes` in total. Returns before the agent knows.
  grpc::Status AddTensors(std::span<const uint32_t> tensors, uint64_t bytes);
  /// Adds bytes of chunks. Returns before the agent knows.
  grpc::Status AddChunks(std::span<const WrittenBytes> chunks);
  /// Adds payloads in the half. Returns before the agent is told.
  grpc::Status AddPayloads(std::span<const DiffedChunk> payloads);
  /// Sends the rest, and returns when the agent knows everything added.
  grpc::Status Flush();

 private:
  struct Call {
    grpc::ClientContext context;
    v1::MarkWrittenRequest request;
    v1::MarkWrittenResponse response;
  };
  /// Starts a call if a batch is full, or with `all` if anything is waiting. REQUIRES: mu_ held.
  void SendSome(bool all);
  void Done(const grpc::Status& status);

  v1::TrainerService::Stub& stub_;
  const Writer writer_;
  const Prepare prepare_;
  std::mutex mu_;
  std::condition_variable cv_;
  std::vector<uint32_t> tensors_;
  std::unordered_map<uint32_t, uint32_t> chunks_;
  std::vector<DiffedChunk> payloads_;
  uint64_t bytes_ = 0;
  std::unique_ptr<Call> call_;  // the running call
  bool flushing_ = false;
  grpc::Status failure_;
};

}  // namespace deltawire
