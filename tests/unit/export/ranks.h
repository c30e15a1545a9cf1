// A trainer's ranks as child processes, which the test can talk to, stop and kill.
// Owner: one test case; children die with the thread that made them and with this object.
// Threads: one. Errors: what does not come in time is reported as text that no test expects.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sender/export/gather/collective.h"
#include "sender/export/gather/gather.h"
#include "sender/export/gather/gloo_collective.h"
#include "tests/support/forked.h"

namespace deltawire::testing {

/// The child's end of its line to the test.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void Say(std::string text) const;  // newlines become blanks
  void AwaitGo() const;

 private:
  const int fd_;
};

class Ranks {
 public:
  /// Runs in the child. What it returns is the last line that the test reads.
  using Body = std::function<std::string(int rank, const Line& line)>;

  Ranks(int n, const Body& body);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// The next line that `rank` says; "(ended)" when it is gone, "(silent)" after a minute.
  std::string Hear(int rank);
  void Go(int rank);
  void Signal(int rank, int signal);

 private:
  struct Child {
    std::unique_ptr<Forked> process;
    int fd;
    std::string read;
  };
  std::vector<Child> children_;
};

Collective::Deadline In(std::chrono::milliseconds time);
inline Collective::Deadline Soon() { return In(std::chrono::seconds(30)); }

GlooOptions Loopback(const std::string& dir, const std::string& job, int rank, int size,
                     int root = 0);

/// Counts the memory and the gathers that the collective under it hands out.
class CountingCollective final : public Collective {
 public:
  struct Counts {
    uint64_t live_bytes = 0, peak_bytes = 0;
    int pending = 0, peak_pending = 0;
  };

  explicit CountingCollective(std::unique_ptr<Collective> inner) : inner_(std::move(inner)) {}
  const Counts& counts() const { return counts_; }
  std::unique_ptr<Collective> Release() { return std::move(inner_); }
  /// From now on sources are treated as memory that the host cannot read, as a GPU's.
  void HideSources() { hidden_ = true; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int root() const override { return inner_->root(); }
  Status Barrier(Deadline d) override { return inner_->Barrier(d); }
  StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine, Deadline d) override {
    return inner_->AllGather(mine, d);
  }
  StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                       std::span<const MutableBytes> parts,
                                                       Deadline deadline) override;
  StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) override;
  bool CanSendFrom(Bytes bytes) const override { return !hidden_ && inner_->CanSendFrom(bytes); }
  bool CanRead(Bytes bytes) const override { return !hidden_ && inner_->CanRead(bytes); }
  Status Copy(std::span<const CopyJob> jobs, Deadline d) override { return inner_->Copy(jobs, d); }
  void Abort(const Status& why) override { inner_->Abort(why); }

 private:
  std::unique_ptr<Collective> inner_;
  Counts counts_;
  bool hidden_ = false;
};

/// Items with seeded contents on every rank, and a consumer that puts them together again.
class SeededItems {
 public:
  SeededItems(uint64_t seed, std::vector<GatherItem> items)
      : seed_(seed), items_(std::move(items)) {}

  const std::vector<GatherItem>& items() const { return items_; }
  std::vector<std::byte> Contents(uint64_t item) const;
  /// Makes this rank's items, which it keeps.
  GatherSource Source(int rank);
  Status Consume(const GatherBucket& bucket, std::span<const Bytes> pieces);
  /// "ok", or what is wrong with what was consumed.
  std::string Check() const;

 private:
  const uint64_t seed_;
  const std::vector<GatherItem> items_;
  std::vector<std::vector<std::byte>> mine_, consumed_;
};

/// Uneven sizes with empty items, single bytes, and some above `bucket_bytes`.
std::vector<GatherItem> RandomItems(uint64_t seed, int ranks, size_t n, uint64_t bucket_bytes);

}  // namespace deltawire::testing
