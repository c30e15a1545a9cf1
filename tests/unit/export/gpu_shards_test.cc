// Shards of several ranks that their GPUs diff, into a real Model, over random layouts and
// histories: payloads, digests and halves must be those of a Model that gets all bytes from a host.
// On the fake CUDA runtime.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "kernels/place_pieces.h"
#include "sender/agent/model.h"
#include "sender/export/client/gpu_base.h"
#include "sender/export/client/written_bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/kernels/fake_cuda.h"
#include "tests/unit/kernels/kernel_data.h"
#include "tests/unit/sender/offload/offload_waits.h"

namespace deltawire::sender::gpu_shards_test {
namespace {

using kernels::Element;
using kernels::test::Random;

#ifdef DELTAWIRE_LONG
constexpr uint64_t kLayouts = 1000;
#else
constexpr uint64_t kLayouts = 100;
#endif
constexpr uint64_t kCases = 4;  // of ctest, which may run them side by side

/// A block of a tensor where a rank has it: in a wider matrix, perhaps in another format.
struct Shard {
  uint32_t tensor = 0;
  kernels::StridedCopy copy;
  kernels::Convert convert;
  unsigned source_width = 1;
  std::vector<std::byte> source;
  std::unique_ptr<kernels::GpuBuffer> memory;
};

struct Rank {
  int device = 0;
  std::vector<Shard> shards;
  std::unique_ptr<GpuBase> base;
};

Layout RandomLayout(Random& random) {
  static constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kF16, DType::kI8};
  std::vector<TensorMeta> tensors;
  const size_t count = 2 + random.Below(4);
  for (size_t t = 0; t < count; ++t) {
    const DType type = kTypes[random.Below(4)];
    const uint64_t columns = 1 + random.Below(700);
    // The first one has several chunks, whose borders cut its rows.
    const uint64_t most = t == 0 ? (4 << 20) / (columns * DTypeBytes(type)) : 90;
    const uint64_t rows = t == 0 ? 1 + most / 2 + random.Below(most / 2) : 1 + random.Below(most);
    tensors.push_back({fmt::format("t{}", t), type, {rows, columns}});
  }
  std::rotate(tensors.begin(), tensors.begin() + static_cast<long>(random.Below(count)),
              tensors.end());
  return *Layout::Create(std::move(tensors));
}

/// The sender's side: a Model, and its half as ranks see it.
class Sender {
 public:
  Sender(const Layout& layout, const Coverage& owned) : total_(layout.total_bytes()), pool_(2) {
    SenderOptions options;
    options.scrub_bytes_per_s = 0;
    auto made = Model::Create("m", dir_.path() / "m", layout, owned, {}, options, pool_, {});
    REQUIRE(made.ok());
    model_ = *made;
  }
  ~Sender() { Unmap(); }
  Sender(const Sender&) = delete;
  Model* operator->() { return model_.get(); }

  MutableBytes Map(const OffloadGrant& grant) {
    Unmap();
    const int file = open(grant.half_path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(file >= 0);
    mapped_bytes_ = grant.data_offset + total_;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    REQUIRE(mapped_ != MAP_FAILED);
    return {static_cast<std::byte*>(mapped_) + grant.data_offset, total_};
  }
  void Unmap() {
    if (mapped_bytes_ > 0) munmap(mapped_, std::exchange(mapped_bytes_, 0));
  }
  Bytes Published() { return model_->half(model_->published()->half); }

 private:
  TempDir dir_;
  const uint64_t total_;
  ThreadPool pool_;
  std::shared_ptr<Model> model_;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

/// A job of several ranks with a sender that takes payloads, and a host with one that gets bytes.
class Job {
 public:
  explicit Job(Random& random)
      : random_(random),
        layout_(RandomLayout(random)),
        chunks_(*ChunkTable::Create(layout_)),
        owned_(RandomPart()),
        gpu_(layout_, owned_),
        host_(layout_, owned_),
        live_(layout_.total_bytes()),
        dirty_(layout_.size(), true) {
    ranks_.resize(1 + random.Below(4));
    for (Rank& rank : ranks_) {
      rank.device = static_cast<int>(random.Below(2));
      MakeBase(rank);
    }
    for (uint32_t t = 0; t < layout_.size(); ++t) CutTensor(t);
  }

  void Run(int versions) {
    for (int i = 0; i < versions; ++i) {
      ++version_;
      CAPTURE(version_);
      const std::vector<uint32_t> unchanged = Step();
      for (Rank& rank : ranks_) {
        if (random_.Chance(0.08)) MakeBase(rank);  // its trainer was started anew
      }
      if (random_.Chance(0.12)) {
        Abort(unchanged);
        continue;
      }
      Publish(unchanged);
      if (random_.Chance(0.12)) RollBack();
    }
  }
  uint64_t payloads() const { return payloads_; }

 private:
  Coverage RandomPart() const {
    if (chunks_.size() < 3 || random_.Chance(0.7)) return Coverage::All(chunks_.size());
    const auto first = static_cast<uint32_t>(random_.Below(2));
    const auto last = static_cast<uint32_t>(2 + random_.Below(chunks_.size() - 2));
    const ChunkRange range{first, last};
    return *Coverage::Create({&range, 1}, chunks_.size());
  }
  void MakeBase(Rank& rank) const {
    rank.base = std::make_unique<GpuBase>(chunks_, layout_.fingerprint().lo);
  }

  /// Ends of about equal parts, none beyond `n`; some parts may be empty.
  std::vector<uint64_t> Cuts(uint64_t n, uint64_t parts) {
    std::vector<uint64_t> ends(parts, n);
    for (uint64_t i = 0; i + 1 < parts; ++i) {
      ends[i] = random_.Chance(0.5) ? std::min(n, (n + parts - 1) / parts * (i + 1))
                                    : random_.Below(n + 1);
    }
    std::ranges::sort(ends);
    return ends;
  }
  void CutTensor(uint32_t t) {
    const uint64_t rows = layout_.tensor(t).shape[0], columns = layout_.tensor(t).shape[1];
    const uint64_t kind = random_.Below(4);  // rows, columns, both, one rank
    const uint64_t world = ranks_.size(), down = kind == 0   ? world
                                                 : kind == 2 ? (world + 1) / 2
                                                             : 1;
    const uint64_t across = kind == 1 ? world : kind == 2 ? (world > 1 ? 2 : 1) : 1;
    uint64_t r0 = 0, at = random_.Below(world);
    for (const uint64_t r1 : Cuts(rows, down)) {
      uint64_t c0 = 0;
      for (const uint64_t c1 : Cuts(columns, across)) {
        if (r1 > r0 && c1 > c0) AddShard(ranks_[at++ % world], t, r0, r1, c0, c1);
        c0 = c1;
      }
      r0 = r1;
    }
  }
  void AddShard(Rank& rank, uint32_t t, uint64_t r0, uint64_t r1, uint64_t c0, uint64_t c1) {
    const DType type = layout_.tensor(t).dtype;
    const uint64_t width = DTypeBytes(type), columns = layout_.tensor(t).shape[1];
    Shard shard;
    shard.tensor = t;
    shard.source_width = static_cast<unsigned>(width);
    if ((type == DType::kBF16 || type == DType::kF16) && random_.Chance(0.4)) {
      shard.convert = {Element::kF32, type == DType::kBF16 ? Element::kBF16 : Element::kF16, 0};
      shard.source_width = 4;
    }
    const uint64_t pitch = c1 - c0 + (random_.Chance(0.3) ? random_.Below(5) : 0);
    const bool together = pitch == c1 - c0 && c1 - c0 == columns;
    shard.copy.dst_offset = static_cast<int64_t>((r0 * columns + c0) * width);
    shard.copy.run_bytes = (c1 - c0) * width * (together ? r1 - r0 : 1);
    shard.copy.dims = together ? 0 : 1;
    shard.copy.counts[0] = r1 - r0;
    shard.copy.src_strides[0] = static_cast<int64_t>(pitch * shard.source_width);
    shard.copy.dst_strides[0] = static_cast<int64_t>(columns * width);
    shard.source.resize((r1 - r0) * pitch * shard.source_width);
    for (std::byte& b : shard.source) b = static_cast<std::byte>(random_.Next());
    const kernels::test::OnFakeDevice here(rank.device);
    REQUIRE(kernels::GpuBuffer::Create(shard.source.size(), &shard.memory).ok());
    rank.shards.push_back(std::move(shard));
  }

  MutableBytes Live(uint32_t t) {
    return MutableBytes(live_).subspan(layout_.offset(t), layout_.bytes(t));
  }
  /// Trains, and returns the tensors that are declared unchanged.
  std::vector<uint32_t> Step() {
    std::vector<uint32_t> unchanged;
    std::vector<bool> stays(layout_.size());
    for (uint32_t t = 0; t < layout_.size(); ++t) {
      stays[t] = !dirty_[t] && random_.Chance(0.2);
      if (stays[t]) unchanged.push_back(t);
    }
    static constexpr double kDensities[] = {0, 0.0005, 0.01, 0.01, 0.6};
    for (Rank& rank : ranks_) {
      for (Shard& shard : rank.shards) {
        if (stays[shard.tensor]) continue;
        kernels::test::Mutate(shard.source, shard.source_width, kDensities[random_.Below(5)],
                              kernels::test::Change::kSmall, random_);
        kernels::Scalar().place_convert(shard.copy, shard.convert, shard.source,
                                        Live(shard.tensor));
        REQUIRE(kernels::GpuCopy(shard.memory->bytes(), shard.source).ok());
        dirty_[shard.tensor] = true;
      }
    }
    return unchanged;
  }

  /// The parts of a shard that the node's sender owns and that lie outside of `diffed`.
  std::vector<kernels::StridedCopy> PartsOf(const Shard& shard,
                                            std::span<const DiffedChunk> diffed) const {
    std::vector<kernels::StridedCopy> parts;
    const uint64_t begin = layout_.offset(shard.tensor);
    for (const ByteRange& range : owned_.ByteRanges(chunks_)) {
      if (range.last <= begin) continue;
      const uint64_t first = range.first > begin ? range.first - begin : 0;
      for (const auto& copy :
           kernels::ClipCopy(shard.copy, shard.convert, first, range.last - begin)) {
        const auto rest = OutsideOf(diffed, chunks_, shard.tensor, copy, shard.convert);
        parts.insert(parts.end(), rest.begin(), rest.end());
      }
    }
    return parts;
  }
  bool IsOwned(uint32_t t) const {
    return owned_.Meets({chunks_.first_of_tensor(t), chunks_.end_of_tensor(t)});
  }

  std::vector<OffloadGrant> BeginRanks(uint64_t attempt) {
    std::vector<OffloadGrant> grants;
    const auto world = static_cast<uint32_t>(ranks_.size());
    for (uint32_t r = 0; r < world; ++r) {
      auto grant = gpu_->offloads().Begin({version_, r, world, attempt, "test", r + 1},
                                          [] { return false; });
      REQUIRE(grant.ok());
      REQUIRE(gpu_->offloads().Attend(grant->lease, r).ok());
      grants.push_back(*grant);
    }
    return grants;
  }
  /// Writes the rank's shards, in one batch or two.
  void WriteShards(uint32_t r, const OffloadGrant& grant, MutableBytes half,
                   const std::vector<uint32_t>& unchanged) {
    Rank& rank = ranks_[r];
    std::optional<Identity> from;
    if (grant.takes_payloads) from = grant.published;
    rank.base->Begin(from, version_, grant.attempt);
    const size_t middle = random_.Chance(0.5) ? 0 : random_.Below(rank.shards.size() + 1);
    for (const auto& [first, last] : {std::pair(size_t{0}, middle), {middle, rank.shards.size()}}) {
      std::vector<const Shard*> shards;
      std::vector<DevicePiece> pieces;
      for (size_t i = first; i < last; ++i) {
        const Shard& shard = rank.shards[i];
        if (std::ranges::count(unchanged, shard.tensor) > 0 || !IsOwned(shard.tensor)) continue;
        shards.push_back(&shard);
        for (const auto& copy : PartsOf(shard, {})) {
          pieces.push_back(
              {shard.tensor, rank.device, {copy, shard.convert, shard.memory->bytes()}});
        }
      }
      if (random_.Chance(0.05)) kernels::test::FailCudaCallIn(static_cast<int>(random_.Below(80)));
      if (random_.Chance(0.05)) {
        kernels::test::LackCudaMemoryIn(static_cast<int>(random_.Below(120)),
                                        static_cast<kernels::test::Lack>(random_.Below(4)));
      }
      WrittenNotice notice{.rank = r};
      notice.payloads = rank.base->Write(pieces, half);
      kernels::test::FailCudaCallIn(-1);
      kernels::test::LackCudaMemoryIn(-1, kernels::test::Lack::kOnce);
      payloads_ += notice.payloads.size();
      for (const Shard* const shard : shards) {
        const MutableBytes to =
            half.subspan(layout_.offset(shard->tensor), layout_.bytes(shard->tensor));
        for (const auto& copy : PartsOf(*shard, notice.payloads)) {
          kernels::Scalar().place_convert(copy, shard->convert, shard->source, to);
          for (const WrittenBytes& w :
               CountWrittenBytes(chunks_, shard->tensor, Destination::Of(copy))) {
            notice.chunks.push_back(w.chunk);
            notice.chunk_bytes.push_back(w.bytes);
          }
        }
      }
      REQUIRE(gpu_->offloads().MarkWritten(grant.lease, notice).ok());
    }
    for (const uint32_t t : unchanged) rank.base->Carry(t);
  }
  void Abort(const std::vector<uint32_t>& unchanged) {
    const auto grants = BeginRanks(random_.Next() | 1);
    const MutableBytes half = gpu_.Map(grants[0]);
    const uint64_t writers = random_.Below(ranks_.size() + 1);
    for (uint32_t r = 0; r < writers; ++r) WriteShards(r, grants[r], half, unchanged);
    gpu_.Unmap();
    const auto r = static_cast<uint32_t>(random_.Below(ranks_.size()));
    if (random_.Chance(0.5)) {
      REQUIRE(gpu_->offloads().Abandon(grants[r].lease, r, "the loss is not a number").ok());
    } else {
      gpu_->offloads().EndAttend(grants[r].lease, r);  // the rank dies
    }
  }
  void Publish(const std::vector<uint32_t>& unchanged) {
    const auto grants = BeginRanks(random_.Next() | 1);
    const MutableBytes half = gpu_.Map(grants[0]);
    const auto world = static_cast<uint32_t>(ranks_.size());
    for (uint32_t r = 0; r < world; ++r) {
      WriteShards(r, grants[r], half, unchanged);
      CHECK(ranks_[r].base->Describe().find("other ranks") == std::string::npos);
      ReadyNotice ready{version_, r,  world, grants[r].lease,
                        false,    {}, {},    ranks_[r].base->Describe()};
      for (const Shard& shard : ranks_[r].shards) {
        if (std::ranges::count(unchanged, shard.tensor) == 0) ready.written.push_back(shard.tensor);
      }
      if (r == 0) ready.unchanged = unchanged;
      if (r + 1 == world) gpu_.Unmap();
      const auto done = gpu_->offloads().MarkReady(ready);
      INFO(done.status());
      REQUIRE(done.ok());
    }
    PublishOnHost(unchanged, grants[0].attempt);
    const auto info =
        WaitPublished(gpu_->offloads(), version_, grants[0].lease, [] { return false; });
    INFO(info.status());
    REQUIRE(info.ok());
    dirty_.assign(dirty_.size(), false);
    for (const ByteRange& range : owned_.ByteRanges(chunks_)) {
      REQUIRE(std::memcmp(gpu_.Published().data() + range.first, live_.data() + range.first,
                          range.last - range.first) == 0);
    }
    Compare();
  }
  void PublishOnHost(const std::vector<uint32_t>& unchanged, uint64_t attempt) {
    const auto grant =
        host_->offloads().Begin({version_, 0, 1, attempt, "test", 1}, [] { return false; });
    REQUIRE(grant.ok());
    REQUIRE(host_->offloads().Attend(grant->lease, 0).ok());
    const MutableBytes half = host_.Map(*grant);
    for (const ByteRange& range : owned_.ByteRanges(chunks_)) {
      std::memcpy(half.data() + range.first, live_.data() + range.first, range.last - range.first);
    }
    host_.Unmap();
    ReadyNotice ready{version_, 0, 1, grant->lease, false, {}, unchanged, {}};
    for (uint32_t t = 0; t < layout_.size(); ++t) {
      if (std::ranges::count(unchanged, t) == 0) ready.written.push_back(t);
    }
    REQUIRE(host_->offloads().MarkReady(ready).ok());
    REQUIRE(WaitPublished(host_->offloads(), version_, grant->lease, [] { return false; }).ok());
  }
  void RollBack() {
    const auto done = gpu_->publisher().RollBack(version_ - 1);
    const auto host = host_->publisher().RollBack(version_ - 1);
    REQUIRE(done.ok() == host.ok());
    if (!done.ok()) return;
    dirty_.assign(dirty_.size(), true);
    Compare();
  }
  /// Both senders publish the same bytes, digests and deltas.
  void Compare() {
    const auto a = gpu_->published(), b = host_->published();
    REQUIRE(*a->digests == *b->digests);
    REQUIRE(a->info.identity.root == b->info.identity.root);
    CHECK(a->info.changed_elements == b->info.changed_elements);
    CHECK(a->info.delta_bytes == b->info.delta_bytes);
    CHECK(a->info.full_bytes == b->info.full_bytes);
    for (const ByteRange& range : owned_.ByteRanges(chunks_)) {
      REQUIRE(std::memcmp(gpu_.Published().data() + range.first,
                          host_.Published().data() + range.first, range.last - range.first) == 0);
    }
    REQUIRE(a->log.size() == b->log.size());
    for (size_t i = 0; i < a->log.size(); ++i) {
      const auto ours = a->log[i]->chunks(), theirs = b->log[i]->chunks();
      REQUIRE(ours.size() == theirs.size());
      for (size_t k = 0; k < ours.size(); ++k) {
        REQUIRE(ours[k].chunk == theirs[k].chunk);
        REQUIRE(ours[k].changed == theirs[k].changed);
        REQUIRE(ours[k].digest_before == theirs[k].digest_before);
        REQUIRE(ours[k].digest_after == theirs[k].digest_after);
        REQUIRE(std::ranges::equal(ours[k].payload, theirs[k].payload));
      }
    }
  }

  Random& random_;
  const Layout layout_;
  const ChunkTable chunks_;
  const Coverage owned_;
  Sender gpu_, host_;
  std::vector<Rank> ranks_;
  std::vector<std::byte> live_;  // the tensors as the ranks have them now
  std::vector<bool> dirty_;      // by tensor: it may differ from the published one
  uint64_t version_ = 0, payloads_ = 0;
};

/// Every kCases-th of the layouts.
void RunLayouts(uint64_t first) {
  uint64_t payloads = 0;
  for (uint64_t seed = 1 + first; seed <= kLayouts; seed += kCases) {
    CAPTURE(seed);
    Random random(seed);
    // One of 8 GiB stays free, so bases lie on the device, in part or not at all.
    if (random.Chance(0.3)) {
      kernels::test::PretendFreeMemory((size_t{1} << 30) + random.Below(size_t{6} << 20));
    }
    Job job(random);
    job.Run(4);
    payloads += job.payloads();
    kernels::test::PretendFreeMemory(0);
  }
  CHECK(payloads > kLayouts / kCases);  // and not all went whole
}

TEST_CASE("ranks' GPUs hand over what a host would have published: layouts 1, 5, ...") {
  RunLayouts(0);
}
TEST_CASE("ranks' GPUs hand over what a host would have published: layouts 2, 6, ...") {
  RunLayouts(1);
}
TEST_CASE("ranks' GPUs hand over what a host would have published: layouts 3, 7, ...") {
  RunLayouts(2);
}
TEST_CASE("ranks' GPUs hand over what a host would have published: layouts 4, 8, ...") {
  RunLayouts(3);
}

}  // namespace
}  // namespace deltawire::sender::gpu_shards_test
