// The Gloo connections between the root and every other rank, with waits that end. A collective and
// its handles share it; one thread calls it, beside Gloo's I/O thread and a watch thread. The watch
// checks 50 times a second while the caller waits. Gloo's exceptions are caught. The first failure
// closes all connections and is returned ever after.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "sender/export/gather/collective.h"
#include "sender/export/gather/gloo_collective.h"
#include "sender/export/gather/rendezvous_dir.h"

namespace deltawire {

class GlooStar {
 public:
  using Deadline = Collective::Deadline;
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  GlooStar(const GlooOptions& options, RendezvousDir dir);
  ~GlooStar();
  GlooStar(const GlooStar&) = delete;
  GlooStar& operator=(const GlooStar&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int root() const { return root_; }
  bool is_root() const { return rank_ == root_; }
  /// Returns OK until the first failure.
  const Status& broken() const { return broken_; }

  Status Connect(const GlooOptions& options, Deadline deadline);

  /// Send and Receive begin a message that lasts until its wait, and so must the memory. Messages
  /// between two ranks are matched by slot, in order. REQUIRES: both ends give the same size; one
  /// end is the root.
  StatusOr<Buffer> Send(int to, uint64_t slot, Bytes from);
  StatusOr<Buffer> Receive(int from, uint64_t slot, MutableBytes to);
  Status WaitSent(gloo::transport::UnboundBuffer& buffer, int to, Deadline deadline);
  Status WaitReceived(gloo::transport::UnboundBuffer& buffer, int from, Deadline deadline);

  /// Ends everything: leaves `why` for the other ranks and closes the connections. Afterwards no
  /// memory is read from or received into. Returns the first error that broke the star.
  Status Break(Status why);

 private:
  // The wait that the watch thread observes.
  struct Waiting {
    std::function<void()> interrupt;  // empty: no wait
    int peer = 0;
    Deadline deadline;
  };

  Status ConnectRoot(Deadline deadline);
  Status ConnectOther(Deadline deadline);
  void StartProbe(int peer);
  bool IsConnected(int peer);
  void RunWatch();
  Status Begin(int peer, const char* what, const std::function<void()>& gloo_call);
  Status Wait(int peer, Deadline deadline, const char* what, std::function<void()> interrupt,
              const std::function<bool(std::chrono::milliseconds)>& gloo_wait);
  Status PeerGone(int peer, const char* what, const char* gloo_says);
  void Close();

  const int rank_, size_, root_;
  RendezvousDir dir_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  Status broken_;

  // By peer, a receive of a message that is never sent. It fails when the connection does.
  std::vector<Buffer> probes_;
  std::byte unsent_{};

  std::mutex mu_;
  std::condition_variable cv_;
  Waiting waiting_;        // guarded by mu_
  bool stopping_ = false;  // guarded by mu_
  std::thread watch_;
};

}  // namespace deltawire
