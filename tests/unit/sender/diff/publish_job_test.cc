// A publish whose base has gone bad in memory: its delta must be right for receivers that hold the
// base's right bytes.
#include "sender/agent/diff/publish_job.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "common/layout/root.h"
#include "sender/agent/model.h"
#include "tests/unit/kernels/kernel_data.h"
#include "tests/unit/sender/published_model.h"
#include "tests/unit/sender/same_result.h"

namespace deltawire::sender::publish_job_test {
namespace {

using kernels::test::Random;

/// Two halves of a model whose tensor 3 is declared unchanged, and a receiver's copy of the active
/// half as it was before any damage.
class Halves {
 public:
  explicit Halves(Random& random)
      : layout_(*Layout::Create({{"a", DType::kBF16, {700, 1000}},
                                 {"b", DType::kF32, {333}},
                                 {"c", DType::kF8E4M3, {100'001}},
                                 {"same", DType::kBF16, {5000}}})),
        chunks_(*ChunkTable::Create(layout_)) {
    active.resize(layout_.total_bytes());
    for (std::byte& b : active) b = static_cast<std::byte>(random.Next());
    receiver = inactive = active;
    kernels::test::Mutate(MutableBytes(inactive).first(chunks_[FirstOf(3)].offset), 1, 0.01,
                          kernels::test::Change::kAny, random);
    auto published = std::make_shared<Published>();
    auto digests = std::make_shared<std::vector<uint64_t>>();
    for (uint32_t i = 0; i < chunks_.size(); ++i) digests->push_back(Digest(active, i));
    published->digests = digests;
    published->damaged = std::make_unique<std::atomic<uint8_t>[]>(chunks_.size());
    published_ = published;
  }

  uint32_t FirstOf(size_t tensor) const { return chunks_.first_of_tensor(tensor); }
  uint64_t offset(uint32_t chunk) const { return chunks_[chunk].offset; }
  uint64_t Digest(Bytes half, uint32_t i) const {
    return kernels::Scalar().digest(key_, half.subspan(chunks_[i].offset, chunks_[i].bytes));
  }
  const Published& published() const { return *published_; }
  /// Gives the published state a log whose one delta changed nothing.
  void Log() {
    auto with = std::make_shared<Published>();
    with->digests = published_->digests;
    with->damaged = std::make_unique<std::atomic<uint8_t>[]>(chunks_.size());
    DeltaLog log(1 << 20);
    log.Append(DeltaBuilder(1 << 20).Finish({1, 0}, {1, 1}));
    with->log = log.View();
    published_ = with;
  }

  PublishJob::Inputs Inputs(const kernels::Backend& backend = kernels::Best()) {
    PublishJob::Inputs in;
    in.chunks = &chunks_;
    in.backend = &backend;
    in.key = &key_;
    in.active = active;
    in.inactive = inactive;
    in.active_digests = published_->digests;
    in.active_root = RootOf(*published_->digests, Coverage::All(chunks_.size()));
    in.payload_limit = uint64_t{1} << 30;
    in.published = published_;
    in.corrupt = [this](uint32_t chunk, bool whole) {
      std::lock_guard lock(mu_);
      (whole ? whole_again : carried).push_back(chunk);
    };
    return in;
  }

  StatusOr<PublishJob::Result> Finish(PublishJob& job) {
    std::vector<bool> unchanged(layout_.size());
    unchanged.back() = true;
    return job.Finish({1, 1}, {1, 2}, unchanged, pool_);
  }

  PublishJob::Result Publish() {
    auto result = *Finish(*std::make_shared<PublishJob>(Inputs()));
    CHECK(result.root == RootOf(*result.digests, Coverage::All(chunks_.size())));
    return result;
  }

  /// Applies the version to the receiver's bytes. Every chunk must then have the digest that the
  /// version names.
  void Receive(const PublishJob::Result& result) {
    for (const ChunkDelta& d : result.delta->chunks()) {
      const Chunk& chunk = chunks_[d.chunk];
      const MutableBytes here = MutableBytes(receiver).subspan(chunk.offset, chunk.bytes);
      if (d.full) {
        std::memcpy(here.data(), &inactive[chunk.offset], chunk.bytes);
        continue;
      }
      uint64_t digest = 0;
      REQUIRE(kernels::Best().decode_apply(key_, d.payload, here, chunk.width, d.digest_before,
                                           &digest) == kernels::DecodeStatus::kOk);
      CHECK(digest == d.digest_after);
    }
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      CAPTURE(i);
      CHECK(Digest(receiver, i) == (*result.digests)[i]);
    }
  }

  std::vector<std::byte> active, inactive, receiver;
  std::vector<uint32_t> whole_again, carried;

 private:
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_{7};
  std::shared_ptr<const Published> published_;
  ThreadPool pool_{2};
  Mutex mu_;
};

TEST_CASE("a base that lost its digest is not diffed against") {
  const uint64_t seed = 93;
  CAPTURE(seed);
  Random random(seed);
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    CAPTURE(tensor);
    Halves halves(random);
    const uint32_t damaged = halves.FirstOf(tensor);
    halves.active[halves.offset(damaged) + 77] ^= std::byte{8};
    const std::vector<std::byte> written = halves.inactive;
    const PublishJob::Result result = halves.Publish();
    CHECK(halves.whole_again == std::vector<uint32_t>{damaged});
    CHECK(halves.published().damaged[damaged] == 1);
    CHECK(result.damaged.empty());
    REQUIRE(result.delta->Find(damaged) != nullptr);
    CHECK(result.delta->Find(damaged)->full);
    halves.Receive(result);
    CHECK(halves.receiver == written);
  }
}

TEST_CASE("an unchanged tensor is carried over by its digest") {
  const uint64_t seed = 94;
  CAPTURE(seed);
  Random random(seed);
  const bool in_both = GENERATE(false, true), damage = GENERATE(false, true);
  CAPTURE(in_both, damage);
  Halves halves(random);
  if (in_both) halves.Log();
  const uint32_t same = halves.FirstOf(3);
  const size_t at = halves.offset(same) + 99;
  if (!in_both) halves.inactive[at - 50] ^= std::byte{1};
  std::vector<std::byte> right = halves.inactive;
  std::memcpy(&right[halves.offset(same)], &halves.active[halves.offset(same)], 10'000);
  if (damage) halves.active[at] ^= std::byte{1};
  const PublishJob::Result result = halves.Publish();
  const bool lost = damage && !in_both;
  CHECK(result.damaged == (lost ? std::vector<uint32_t>{same} : std::vector<uint32_t>{}));
  CHECK(halves.carried == result.damaged);
  CHECK(halves.whole_again.empty());
  CHECK(result.delta->Find(same) == nullptr);  // receivers keep what they have
  CHECK((halves.inactive == right) == !lost);
  halves.Receive(result);
  CHECK(halves.receiver == right);
}

/// The job that GiveUpFirst gives up, and how often chunks were diffed.
std::atomic<PublishJob*> to_give_up;
std::atomic<int> diffs;

kernels::EncodeResult GiveUpFirst(const kernels::DigestKey& key, Bytes old_data, Bytes new_data,
                                  unsigned width, MutableBytes out) {
  ++diffs;
  if (PublishJob* job = to_give_up.exchange(nullptr)) job->Abort();
  return kernels::Best().diff_encode_checked(key, old_data, new_data, width, out);
}

/// Puts a payload of the change into the place of a run of bytes, as the trainer's GPU does. What
/// is behind it is of an older version.
DiffedChunk DiffRun(Halves& halves, uint32_t i, uint32_t offset, uint32_t length, Random& random) {
  const PublishJob::Inputs in = halves.Inputs();
  const Chunk& chunk = (*in.chunks)[i];
  const MutableBytes place = MutableBytes(halves.inactive).subspan(chunk.offset + offset, length);
  const Bytes before = Bytes(halves.active).subspan(chunk.offset + offset, length);
  const kernels::test::Buffer payload =
      kernels::test::Encode(kernels::Scalar(), *in.key, before, place, chunk.width);
  REQUIRE(payload.size() < length);
  const uint64_t digest = kernels::Scalar().digest(*in.key, place);
  for (std::byte& b : place) b = static_cast<std::byte>(random.Next());
  std::ranges::copy(Bytes(payload), place.begin());
  return {i, offset, length, static_cast<uint32_t>(payload.size()), digest};
}

/// The same for some chunks, of which some come in runs that several ranks have diffed or written.
std::vector<DiffedChunk> DiffAsTrainer(Halves& halves, const std::vector<uint32_t>& which,
                                       Random& random) {
  std::vector<DiffedChunk> given;
  const PublishJob::Inputs in = halves.Inputs();
  for (const uint32_t i : which) {
    const Chunk& chunk = (*in.chunks)[i];
    const uint32_t cut = chunk.bytes / 3 / chunk.width * chunk.width;
    if (random.Chance(0.5) || cut < 1000) {
      given.push_back(DiffRun(halves, i, 0, chunk.bytes, random));
      continue;
    }
    given.push_back(DiffRun(halves, i, cut, chunk.bytes - cut, random));
    if (random.Chance(0.5)) given.push_back(DiffRun(halves, i, 0, cut, random));
  }
  return given;
}

TEST_CASE("a publish from payloads of the trainer's GPU is one from the bytes") {
  for (uint64_t seed = 200; seed < 220; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Halves halves(random);
    const bool same = random.Chance(0.3);  // the first tensor has not changed
    if (same) std::memcpy(halves.inactive.data(), halves.active.data(), 1'400'000);
    if (random.Chance(0.5)) halves.Log();
    const std::vector<std::byte> written = halves.inactive;
    const PublishJob::Result wanted = halves.Publish();
    halves.inactive = written;
    std::vector<uint32_t> which, early;
    for (uint32_t i = 0; i < halves.FirstOf(3); ++i) {
      if (random.Chance(0.7)) which.push_back(i);
      if (random.Chance(0.5)) early.push_back(i);
    }
    PublishJob::Inputs in = halves.Inputs();
    Mutex mu;
    std::map<uint32_t, uint64_t> told;
    bool once = true;
    in.diffed = [&](uint32_t chunk, uint64_t, uint64_t after, Bytes) {
      std::lock_guard lock(mu);
      once &= told.emplace(chunk, after).second;
    };
    const auto job = std::make_shared<PublishJob>(in);
    const std::vector<DiffedChunk> given = DiffAsTrainer(halves, which, random);
    job->AddPayloads(given);
    ThreadPool pool(2);
    job->MarkWritten({}, early, pool);
    const auto found = halves.Finish(*job);
    REQUIRE(found.ok());
    CHECK(found->payloads == given.size());
    CHECK(halves.inactive == written);
    CheckSame(*found, wanted);
    for (const ChunkDelta& entry : wanted.delta->chunks()) {
      CHECK(told[entry.chunk] == entry.digest_after);
    }
    CHECK(once);
    CHECK(told.size() == wanted.delta->chunks().size());
    halves.Receive(*found);
    CHECK(halves.receiver == written);
  }
}

TEST_CASE(
    "a payload that does not lead to the GPU's bytes, or has no right base, is not published") {
  const bool early = GENERATE(false, true), whole = GENERATE(false, true);
  const uint64_t seed = 98;
  CAPTURE(early, whole, seed);
  Random random(seed);
  Halves halves(random);
  const uint32_t chunk = halves.FirstOf(random.Below(3));
  const uint32_t bytes = (*halves.Inputs().chunks)[chunk].bytes;
  std::vector<DiffedChunk> given = {
      DiffRun(halves, chunk, 0, whole ? bytes : bytes / 16 * 8, random)};
  const auto job = std::make_shared<PublishJob>(halves.Inputs());
  ThreadPool pool(2);
  bool wrong = true;
  std::byte& middle = halves.inactive[halves.offset(chunk) + given[0].bytes / 2];
  SECTION("its digest is another") { given[0].digest_after ^= 1; }
  SECTION("its bits are others") { middle ^= std::byte{4}; }
  SECTION("it is longer") { ++given[0].bytes; }
  SECTION("it is shorter") { --given[0].bytes; }
  SECTION("it says that nothing changed") { given[0].bytes = 0; }
  SECTION("it was given before") {
    given.push_back(given[0]);
    wrong = !whole;  // runs are counted before they come here
  }
  SECTION("the chunk was written before") {
    if (!whole) return;
    job->MarkWritten({}, std::vector{chunk}, pool);
    (void)halves.Finish(*job);
    wrong = false;
  }
  SECTION("its base has lost its digest") {
    halves.active[halves.offset(chunk) + 77] ^= std::byte{8};
    wrong = false;
  }
  job->AddPayloads(given);
  if (early) job->MarkWritten({}, std::vector{chunk}, pool);
  const Status failed = halves.Finish(*job).status();
  CHECK(absl::IsAborted(failed));
  CHECK(MessageOf(failed).find("the trainer's GPU") != std::string::npos);
  CHECK(job->payload_was_wrong() == wrong);
  CHECK(halves.published().damaged[chunk] == halves.carried.size());
}

TEST_CASE("a publish that is given up has no result, and begins no chunk after that") {
  Random random(97);
  Halves halves(random);
  kernels::Backend backend = kernels::Best();
  backend.diff_encode_checked = GiveUpFirst;
  const auto job = std::make_shared<PublishJob>(halves.Inputs(backend));
  diffs = 0;
  SECTION("before it began") {
    job->Abort();
    CHECK(absl::IsAborted(halves.Finish(*job).status()));
    CHECK(diffs == 0);
  }
  SECTION("while chunks were diffed") {
    to_give_up = job.get();
    CHECK(absl::IsAborted(halves.Finish(*job).status()));
    CHECK(diffs >= 1);
    CHECK(absl::IsAborted(halves.Finish(*job).status()));
  }
  SECTION("never") {
    CHECK(halves.Finish(*job).ok());
    CHECK(diffs == 3);
  }
}

TEST_CASE("a model publishes right bytes over a half that went bad, and says so") {
  test::PublishedModel published(6, 95);
  published.Publish(1);
  published.Publish(2, true);
  published.Flip(3);
  published.Publish(3, true);
  Model& model = *published.model();
  CHECK(model.scrubber().totals().mismatches == 1);
  CHECK(model.damaged_chunks() == 0);
  const auto state = model.published();
  const auto& delta = state->log.back();
  REQUIRE(delta->Find(3) != nullptr);
  CHECK(delta->Find(3)->full);
  for (uint32_t c = 0; c < model.chunks().size(); ++c) {
    const Chunk& chunk = model.chunks()[c];
    const Bytes wanted = Bytes(published.content(3)).subspan(chunk.offset, chunk.bytes);
    CHECK((*state->digests)[c] == model.backend().digest(model.key(), wanted));
  }
}

TEST_CASE("nothing is rolled back from bytes that lost their digest") {
  test::PublishedModel published(6, 96);
  published.Publish(1);
  published.Publish(2);
  published.Flip(3);
  const auto rolled = published.model()->publisher().RollBack(1);
  CHECK(rolled.status().code() == StatusCode::kDataLoss);
  CHECK(published.model()->published()->info.id().version == 2);
}

TEST_CASE("a chunk that was diffed is told of once, however often and by whatever it was marked") {
  const uint64_t seed = 94;
  CAPTURE(seed);
  Random random(seed);
  Halves halves(random);
  const uint32_t damaged = halves.FirstOf(1);
  halves.active[halves.offset(damaged) + 5] ^= std::byte{8};
  struct Told {
    uint64_t before = 0, after = 0;
    std::vector<std::byte> payload;
  };
  Mutex mu;
  std::map<uint32_t, std::vector<Told>> told;
  PublishJob::Inputs in = halves.Inputs();
  in.diffed = [&](uint32_t chunk, uint64_t before, uint64_t after, Bytes payload) {
    std::lock_guard lock(mu);
    told[chunk].push_back({before, after, {payload.begin(), payload.end()}});
  };
  const auto job = std::make_shared<PublishJob>(in);
  const std::vector<uint32_t> tensors = {0, 1}, chunks = {halves.FirstOf(0), halves.FirstOf(2)};
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) job->MarkWritten(tensors, chunks, pool);
  const auto result = halves.Finish(*job);
  REQUIRE(result.ok());
  size_t changed = 0;
  for (const ChunkDelta& d : result->delta->chunks()) {
    CAPTURE(d.chunk);
    // A chunk whose base has gone bad is no base for a receiver's delta either: it waits.
    if (d.chunk == damaged) continue;
    ++changed;
    REQUIRE(told[d.chunk].size() == 1);
    const Told& one = told[d.chunk].front();
    CHECK(one.before == d.digest_before);
    CHECK(one.after == d.digest_after);
    CHECK(std::ranges::equal(one.payload, d.payload));
  }
  CHECK(changed == 2);
  CHECK(told.erase(damaged) == 0);
  CHECK(told.size() == changed);
}

}  // namespace
}  // namespace deltawire::sender::publish_job_test
