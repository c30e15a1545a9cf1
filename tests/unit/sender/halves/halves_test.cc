// The two halves: who may lease, patch and be granted them in each state, and what a restart finds.
#include "sender/agent/halves/halves.h"

#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/temp_dir.h"

namespace deltawire::sender::halves_test {
namespace {

using std::chrono::milliseconds;

class Fixture {
 public:
  Fixture()
      : layout_(*Layout::Create({{"a", DType::kI8, {1000}}, {"b", DType::kBF16, {10}}})),
        chunks_(*ChunkTable::Create(layout_)),
        facts_("m", layout_, chunks_, Coverage::All(chunks_.size())) {
    auto halves = Halves::Create(ContextHere(), {.chunks = chunks_.size(),
                                                 .slots = 2,
                                                 .fingerprint = layout_.fingerprint(),
                                                 .lineage = {1, 2}});
    REQUIRE(halves.ok());
    halves_ = std::move(*halves);
  }
  Halves* operator->() { return halves_.get(); }

  static Identity Id(uint64_t version, uint64_t root = 5) {
    return {{1, 2}, {1, version}, root, version + 100};
  }
  Status Drain(uint32_t half, const std::function<void(uint32_t)>& cut = nullptr) {
    double waited = 0;
    return halves_->Drain(half, milliseconds(1), cut, &waited);
  }
  void Publish(uint32_t half, const Identity& id) {
    REQUIRE(Drain(half).ok());
    halves_->BeginWrite(half);
    const std::vector<uint64_t> digests(chunks_.size(), id.root);
    halves_->Commit(half, id, digests);
  }
  Status Restart() {
    halves_.reset();
    auto state = StateFile::Open(dir_.path() / Halves::kStateName);
    DW_RETURN_IF_ERROR(state.status());
    DW_ASSIGN_OR_RETURN(halves_, Halves::Open(ContextHere(), std::move(*state)));
    return absl::OkStatus();
  }
  const TempDir& dir() const { return dir_; }

 private:
  Halves::Context ContextHere() { return {facts_, dir_.path(), {}}; }

  TempDir dir_;
  const Layout layout_;
  const ChunkTable chunks_;
  const ModelFacts facts_;
  std::unique_ptr<Halves> halves_;
};

}  // namespace

TEST_CASE("a half can be leased and patched only while it is a whole version") {
  Fixture f;
  const Identity id = Fixture::Id(7);
  const std::vector<std::byte> bytes(10, std::byte{1});
  const auto allows = [&](bool whole) {
    const auto lease = f->Lease(1, id);
    CHECK((lease != nullptr) == whole);
    CHECK((f->holds(1) == id) == whole);
    CHECK(f->Patch(1, id, 0, bytes) == whole);
    CHECK(f->Lease(1, Fixture::Id(7, 6)) == nullptr);
    const auto second = f->Lease(1, id);
    CHECK(!f->Patch(1, id, 0, bytes));  // another lease reads the half
  };
  CHECK(f->Newest() == std::nullopt);
  allows(false);
  f.Publish(1, id);
  CHECK(f->Newest() == 1);
  allows(true);
  REQUIRE(f.Drain(1).ok());
  allows(false);
  f->GiveBack(1);
  allows(true);
  REQUIRE(f.Drain(1).ok());
  f->BeginWrite(1);
  allows(false);
  f->GiveBack(1);  // too late: writing has begun
  allows(false);
  REQUIRE(f.Restart().ok());
  allows(false);
}

TEST_CASE("draining cuts readers that stay beyond the grace, and waits for them") {
  Fixture f;
  f.Publish(0, Fixture::Id(1));
  auto lease = f->Lease(0, Fixture::Id(1));
  std::optional<uint32_t> cut;
  REQUIRE(f.Drain(0, [&](uint32_t half) {
             cut = half;
             lease = nullptr;
           }).ok());
  CHECK(cut == 0);
  f->GiveBack(0);
  lease = f->Lease(0, Fixture::Id(1));
  f->Stop(absl::UnavailableError("the test stops"));
  CHECK(absl::IsUnavailable(f.Drain(0)));
  CHECK(f->holds(0) == Fixture::Id(1));
}

TEST_CASE("the grace includes the time that a reader takes to end when it is cut") {
  Fixture f;
  f.Publish(0, Fixture::Id(1));
  auto lease = f->Lease(0, Fixture::Id(1));
  constexpr std::chrono::milliseconds kGrace{2000};
  const auto start = SteadyClock::now();
  std::chrono::nanoseconds cut_after{0};
  double waited = 0;
  std::thread reader;
  const auto cut = [&](uint32_t) {
    cut_after = SteadyClock::now() - start;
    // As a stream that takes all of its time for the frame under way.
    reader = std::thread([&] {
      std::this_thread::sleep_until(start + cut_after + Halves::CloseAfter(kGrace));
      lease = nullptr;
    });
  };
  REQUIRE(f->Drain(0, kGrace, cut, &waited).ok());
  reader.join();
  CHECK(cut_after >= kGrace - Halves::CutTime(kGrace));
  CHECK(waited <= std::chrono::duration<double>(kGrace).count());
}

TEST_CASE("a half is suspect until all who were granted it have let go") {
  Fixture f;
  CHECK(!f->NeedsFence(0));
  f->AddWriter(0, {7, 0, 11, "a"});
  f->AddWriter(0, {7, 1, 12, "b"});
  f->AddWriter(1, {8, 0, 0, ""});
  CHECK((f->NeedsFence(0) && f->NeedsFence(1)));
  f->EndWriter(7, 0);
  f->EndWriter(7, 2);
  CHECK(f->NeedsFence(0));
  f->EndWritersOf(12, 0);
  f->EndWritersOf(0, 0);
  CHECK((f->NeedsFence(0) && f->NeedsFence(1)));
  f->EndWritersOf(12, 1);
  CHECK(!f->NeedsFence(0));
}

TEST_CASE("after a restart the newer whole half is it, and one in writing is suspect") {
  Fixture f;
  f.Publish(0, Fixture::Id(1));
  f.Publish(1, Fixture::Id(2));
  REQUIRE(f.Restart().ok());
  CHECK(f->Newest() == 1);
  CHECK(f->holds(1).attempt == 102);
  CHECK((!f->NeedsFence(0) && !f->NeedsFence(1)));
  CHECK(f->Digests(1) == std::vector<uint64_t>(2, 5));
  // Another attempt at version 2 is committed, but the process is killed before the swap. The
  // version was never announced, so half 1 stays the newest.
  REQUIRE(f.Drain(0).ok());
  f->BeginWrite(0);
  const std::vector<uint64_t> digests(2, 9);
  f->Commit(0, Fixture::Id(2, 9), digests);
  f->Activate(1);
  REQUIRE(f.Restart().ok());
  CHECK(f->Newest() == 1);
  REQUIRE(f.Drain(0).ok());
  f->BeginWrite(0);
  REQUIRE(f.Restart().ok());
  CHECK((f->NeedsFence(0) && !f->NeedsFence(1)));
}

TEST_CASE("a half that is not the file that was published is refused") {
  Fixture f;
  f.Publish(0, Fixture::Id(1));
  const auto path = Halves::PathOf(f.dir().path(), 0);
  std::filesystem::copy_file(path, path.native() + ".copy");
  std::filesystem::rename(path.native() + ".copy", path);
  const Status refused = f.Restart();
  CHECK(absl::IsDataLoss(refused));
}

TEST_CASE(
    "a kill between a fresh half and its number in the state costs nothing that is published") {
  Fixture f;
  f.Publish(1, Fixture::Id(3));
  REQUIRE(f.Drain(0).ok());
  f->BeginWrite(0);
  // The fresh file has the half's name already, but the state file still names the old file.
  const auto path = f->path(0);
  std::filesystem::copy_file(path, path.native() + ".fresh");
  std::filesystem::rename(path.native() + ".fresh", path);
  REQUIRE(f.Restart().ok());
  CHECK(f->Newest() == 1);
  double waited = 0;
  REQUIRE(f->Drain(0, milliseconds(1), nullptr, &waited).ok());
  REQUIRE(f->Fence(0, [] {}).ok());
  f->BeginWrite(0);
  const std::vector<uint64_t> digests(2, 5);
  f->Commit(0, Fixture::Id(4), digests);
  REQUIRE(f.Restart() == absl::OkStatus());
  CHECK(f->Newest() == 0);
  CHECK(f->holds(0) == Fixture::Id(4));
}

}  // namespace deltawire::sender::halves_test
