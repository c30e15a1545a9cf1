// Two halves and a version store without a Model. A test publishes by hand, through the real diff,
// and says what changes. Owner: the test case. Every version's bytes and digests are kept, so that
// later rebuilds of it can be compared. Publish by one thread at a time.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/layout/root.h"
#include "common/serving/version_store.h"
#include "sender/agent/diff/publish_job.h"
#include "sender/agent/halves/halves.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::sender::test {

/// A version as it was when it was published.
struct PublishedVersion {
  Identity identity;
  std::vector<std::byte> bytes;
  std::vector<uint64_t> digests;
  uint64_t side_files_hash = 0;
};

/// What the next version is to be.
struct NextVersion {
  uint64_t version = 0;
  std::vector<uint32_t> chunks;  ///< the chunks that change
  uint64_t attempt = 0;
  std::string side_file = "the same in all versions";
  uint64_t payload_limit = uint64_t{1} << 30;  ///< 0: no change can be undone
  bool with_delta = true;
};

class HandPublished {
 public:
  /// Four tensors of one chunk each, of widths 1, 2 and 4.
  static std::vector<TensorMeta> FourTensors() {
    return {{"a", DType::kBF16, {1000}},
            {"b", DType::kF32, {300}},
            {"c", DType::kI8, {999}},
            {"d", DType::kBF16, {64}}};
  }
  explicit HandPublished(uint64_t seed, uint64_t log_bytes = uint64_t{1} << 30,
                         std::vector<TensorMeta> tensors = FourTensors(),
                         const std::vector<ChunkRange>& part = {})
      : facts(MakeFacts(*Layout::Create(std::move(tensors)), part)),
        random_(seed),
        log_bytes_(log_bytes),
        content_(layout.total_bytes()) {
    for (std::byte& b : content_) b = static_cast<std::byte>(random_.Next());
    auto made = Halves::Create({facts, dir_.path(), {}}, {.chunks = chunks.size(),
                                                          .slots = 2,
                                                          .fingerprint = layout.fingerprint(),
                                                          .lineage = {1, 2}});
    REQUIRE(made.status() == absl::OkStatus());
    halves_ = std::move(*made);
    MakeStore();
  }

  VersionStore& store() { return *store_; }
  Halves& halves() { return *halves_; }
  const kernels::DigestKey& key() const { return facts.key; }
  static const kernels::Backend& backend() { return kernels::Best(); }
  const std::vector<PublishedVersion>& versions() const { return versions_; }
  kernels::test::Random& random() { return random_; }

  /// A chunk's part of `bytes`, which are those of a half or of a version.
  Bytes ChunkOf(uint32_t chunk, Bytes bytes) const {
    return bytes.subspan(chunks[chunk].offset, chunks[chunk].bytes);
  }
  std::vector<std::byte> HalfNow(uint32_t half) const {
    const Bytes bytes = std::as_const(*halves_).data(half);
    return {bytes.begin(), bytes.end()};
  }
  uint32_t InactiveHalf() const {
    const auto newest = store_->newest();
    return newest == nullptr ? 0 : 1 - newest->half;
  }
  /// Drains `half`; from then on the trainer may write to it.
  void HandOut(uint32_t half) {
    double waited = 0;
    REQUIRE(halves_->Drain(half, std::chrono::milliseconds(1), nullptr, &waited).ok());
    halves_->BeginWrite(half);
  }
  std::vector<uint32_t> SomeChunks() {
    std::vector<uint32_t> some;
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      if (random_.Below(2) != 0) some.push_back(c);
    }
    return some;
  }

  std::shared_ptr<const Published> Publish(const NextVersion& next) {
    for (const uint32_t c : next.chunks) Change(c);
    const auto newest = store_->newest();
    const uint32_t half = InactiveHalf();
    HandOut(half);
    for (const ByteRange& r : owned.ByteRanges(chunks)) {
      std::memcpy(halves_->writable(half).data() + r.first, content_.data() + r.first,
                  r.last - r.first);
    }
    PublishJob::Inputs in;
    in.chunks = &chunks;
    in.owned = &owned;
    in.backend = &backend();
    in.key = &facts.key;
    in.inactive = halves_->writable(half);
    in.payload_limit = next.payload_limit;
    if (newest != nullptr) {
      in.active = std::as_const(*halves_).data(newest->half);
      in.active_digests = newest->digests;
      in.active_root = newest->info.identity.root;
      in.published = newest;
    }
    const StateId id{1, next.version};
    auto result =
        *std::make_shared<PublishJob>(in)->Finish(newest == nullptr ? StateId{} : newest->info.id(),
                                                  id, std::vector<bool>(layout.size()), pool_);
    VersionInfo info;
    info.identity = {halves_->lineage(), id, result.root, next.attempt};
    halves_->Commit(half, info.identity, *result.digests);
    const auto side = MakeSideFileSet({{"config.json", next.side_file}});
    REQUIRE(side.ok());
    info.side_files_hash = (*side)->hash;
    versions_.push_back({info.identity, content_, *result.digests, (*side)->hash});
    auto state = store_->Make(info, half);
    state->digests = std::move(result.digests);
    state->side_files = *side;
    store_->Install(state, next.with_delta ? std::move(result.delta) : nullptr);
    return state;
  }

  /// Makes the store anew, as a new process does from the halves: the log is empty, and the version
  /// before the newest is set aside.
  void Restart() {
    const auto newest = store_->newest();
    const auto before = store_->At(halves_->holds(1 - newest->half));
    MakeStore();
    store_->Install(Again(*newest, newest->half), nullptr);
    if (before.ok()) store_->KeepEarlier(Again(**before, 1 - newest->half));
  }

  const ModelFacts facts;
  const Layout& layout = facts.layout;
  const ChunkTable& chunks = facts.chunks;
  const Coverage& owned = facts.owned;

 private:
  static ModelFacts MakeFacts(Layout of, const std::vector<ChunkRange>& part) {
    ChunkTable table = *ChunkTable::Create(of);
    Coverage here = *Coverage::Create(part, table.size());
    return {"m", std::move(of), std::move(table), std::move(here)};
  }
  void MakeStore() { store_ = std::make_unique<VersionStore>(facts, log_bytes_); }
  std::shared_ptr<Published> Again(const Published& was, uint32_t half) const {
    auto state = store_->Make(was.info, half);
    state->digests = was.digests;
    state->side_files = was.side_files;
    return state;
  }
  void Change(uint32_t chunk) {
    const Chunk& place = chunks[chunk];
    const MutableBytes here = MutableBytes(content_).subspan(place.offset, place.bytes);
    kernels::test::Mutate(here, place.width, 0.02, kernels::test::Change::kAny, random_);
    // Mutate may have changed nothing in a small chunk, or have restored its bytes of two
    // versions ago.
    here[0] = static_cast<std::byte>(++changes_);
  }

  TempDir dir_;
  kernels::test::Random random_;
  const uint64_t log_bytes_;
  ThreadPool pool_{2};
  std::vector<std::byte> content_;
  uint8_t changes_ = 0;
  std::vector<PublishedVersion> versions_;
  std::unique_ptr<Halves> halves_;
  std::unique_ptr<VersionStore> store_;
};

}  // namespace deltawire::sender::test
