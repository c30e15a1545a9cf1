// The deltas of commits that a receiver leaves on disk for engines: what they lead to, their
// bounds, and what the next process takes up.
#include "receiver/buffer/delta_files.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "receiver/buffer/catch_up.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::receiver::delta_files_test {
namespace {

std::vector<fs::path> Files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct Leaving {
  explicit Leaving(uint64_t limit = 1 << 20)
      : files(rig.dir.path() / kDeltaFolder, limit), now(FakeAgent::Make(rig.layout, 1)) {
    rig.sink->applied().SetKeep(true);
    REQUIRE(rig.delta_files.Start(*rig.buffer) == absl::OkStatus());
    Publish();
  }
  /// Publishes the next version, pulls it and commits it.
  void Publish() {
    if (version > 0) now = FakeAgent::Step(now, version + 1);
    rig.Publish({1, ++version}, now);
    REQUIRE(rig.Run(*rig.Round(rig.Newest())) == absl::OkStatus());
    REQUIRE(CatchUpSecondFile(*rig.buffer, rig.sink->applied().All(), [] { return false; }).ok());
    rig.sink->applied().Clear();
  }

  RoundRig rig;
  DeltaFiles files;  // as the next process has it
  FakeAgent::Chunks now;
  uint64_t version = 0;
};

TEST_CASE("delta files: a delta leads from the last committed state to the new one") {
  Leaving l;
  const fs::path folder = l.rig.dir.path() / kDeltaFolder;
  CHECK(Files(folder).empty());  // no delta leads to the first version
  const Identity one = l.rig.buffer->committed();
  const FakeAgent::Chunks before = l.now;
  l.now = FakeAgent::Step(l.now, 2);
  l.rig.Publish({1, 2}, l.now);
  const auto round = l.rig.Round(l.rig.Newest());
  REQUIRE(l.rig.Run(*round) == absl::OkStatus());

  REQUIRE(Files(folder).size() == 1);
  const auto file = DeltaFile::Open(Files(folder)[0]);
  REQUIRE(file.ok());
  CHECK(file->head().from == one);
  CHECK(file->head().to == l.rig.buffer->committed());
  CHECK(file->head().fingerprint == l.rig.layout.fingerprint());
  FakeAgent::Chunks chunks = before;
  const kernels::DigestKey key(file->head().digest_seed);
  for (const DeltaFileEntry& e : file->entries()) {
    uint64_t after = 0;
    REQUIRE(kernels::Best().decode_apply(key, e.payload, chunks[e.chunk], 2, e.digest_before,
                                         &after) == kernels::DecodeStatus::kOk);
    CHECK(after == e.digest_after);
  }
  CHECK(chunks == l.now);
}

TEST_CASE("delta files: what a broken-off update had brought is a part of the delta, too") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  REQUIRE(rig.Update(1) == absl::OkStatus());
  const Identity one = rig.buffer->committed();
  REQUIRE(*rig.buffer->update().Begin());
  BufferRig::Bring(*rig.buffer, 0, 2);
  rig.Restart();
  REQUIRE(rig.buffer->update().interrupted());
  const fs::path folder = rig.dir.path() / kDeltaFolder;
  DeltaFiles files(folder, 1 << 20);
  REQUIRE(files.Start(*rig.buffer) == absl::OkStatus());
  REQUIRE(rig.Update(2) == absl::OkStatus());
  REQUIRE(files.Put(*rig.buffer, rig.buffer->committed(), {}) == absl::OkStatus());
  REQUIRE(Files(folder).size() == 1);
  const auto file = DeltaFile::Open(Files(folder)[0]);
  REQUIRE(file.ok());
  CHECK(file->head().from == one);
  const auto entries = file->entries();
  const auto first = std::ranges::find(entries, 0U, &DeltaFileEntry::chunk);
  REQUIRE(first != entries.end());
  CHECK(first->digest_before == BufferRig::DigestOf(*rig.buffer, 0, 1));
  CHECK(first->digest_after == BufferRig::DigestOf(*rig.buffer, 0, 2));
}

TEST_CASE("delta files: the oldest go when there are too many, or too many bytes") {
  Leaving l;
  for (size_t i = 0; i < DeltaFiles::kMaxFiles + 5; ++i) l.Publish();
  const fs::path folder = l.rig.dir.path() / kDeltaFolder;
  auto files = Files(folder);
  REQUIRE(files.size() == DeltaFiles::kMaxFiles);
  CHECK(DeltaFile::Peek(files.back())->to == l.rig.buffer->committed());
  CHECK(DeltaFile::Peek(files.front())->from.id.version == 6);

  uint64_t bytes = 0;
  for (const fs::path& f : files) bytes += fs::file_size(f);
  DeltaFiles smaller(folder, bytes / 2);
  REQUIRE(smaller.Start(*l.rig.buffer) == absl::OkStatus());
  uint64_t left = 0;
  for (const fs::path& f : Files(folder)) left += fs::file_size(f);
  CHECK(left <= bytes / 2);
  CHECK(left > bytes / 3);
  CHECK(Files(folder).back() == files.back());
}

TEST_CASE("delta files: the next process goes on, and drops what is none of its kind") {
  Leaving l;
  l.Publish();
  const fs::path folder = l.rig.dir.path() / kDeltaFolder;
  const auto first = Files(folder);
  std::ofstream(folder / "000000000009") << "half of a fi";
  std::ofstream(folder / "notes.txt") << "mine";
  REQUIRE(l.files.Start(*l.rig.buffer) == absl::OkStatus());
  CHECK(Files(folder) == first);
  // The next delta leads on from what is committed now.
  const Identity base = l.rig.buffer->committed();
  l.Publish();
  REQUIRE(l.files.Put(*l.rig.buffer, l.rig.buffer->committed(), {}) == absl::OkStatus());
  const auto file = DeltaFile::Open(Files(folder).back());
  REQUIRE(file.ok());
  CHECK(file->head().from == base);
  for (const DeltaFileEntry& e : file->entries()) CHECK(e.whole());  // no payload was given
}

TEST_CASE("delta files: a receiver that keeps none removes those that it finds") {
  Leaving l;
  l.Publish();
  const fs::path folder = l.rig.dir.path() / kDeltaFolder;
  DeltaFiles none(folder, 0);
  REQUIRE(none.Start(*l.rig.buffer) == absl::OkStatus());
  CHECK_FALSE(fs::exists(folder));
  CHECK(none.Put(*l.rig.buffer, l.rig.buffer->committed(), {}) == absl::OkStatus());
  CHECK_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace deltawire::receiver::delta_files_test
