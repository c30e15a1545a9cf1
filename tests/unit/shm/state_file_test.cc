#include "common/shm/state_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>

#include "common/base/bytes.h"
#include "common/layout/root.h"
#include "tests/support/temp_dir.h"

namespace Catch {
template <>
struct StringMaker<deltawire::StateId> {
  static std::string convert(deltawire::StateId id) { return ToString(id); }
};
}  // namespace Catch

namespace deltawire::state_file_test {
namespace {

namespace fs = std::filesystem;

constexpr StateShape kShape{
    5, 2, {0x1122334455667788, 0x99aabbccddeeff00}, 0xabcdef, {0x5566, 0x7788}};

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

void Put64(std::string& file, size_t at, uint64_t value) {
  StoreLe(reinterpret_cast<std::byte*>(file.data() + at), value);
}

void Put32(std::string& file, size_t at, uint32_t value) {
  StoreLe(reinterpret_cast<std::byte*>(file.data() + at), value);
}

uint64_t Get64(const std::string& file, size_t at) {
  return LoadLe<uint64_t>(reinterpret_cast<const std::byte*>(file.data() + at));
}

void Reseal(std::string& file) { Put64(file, 72, Xxh3(AsBytes(file.substr(0, 72)))); }

Identity At(StateId id) {
  return {.lineage = {0x33, 0x44}, .id = id, .root = id.version * 11, .attempt = id.version * 13};
}

void Fill(StateFile& state, uint32_t slot, uint64_t version) {
  for (uint32_t c = 0; c < state.shape().chunks; ++c) {
    state.SetChunk(slot, c, version, version * 100 + c);
  }
}

/// A file whose first slot holds version 1.
void MakeFile(const fs::path& path) {
  auto state = StateFile::Create(path, kShape);
  REQUIRE(state.ok());
  state->BeginWrite(0);
  Fill(*state, 0, 1);
  state->FinishWrite(0, At({1, 1}));
}

TEST_CASE("a new state file claims nothing, and reopens as it was made") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  CHECK(StateFile::Open(path).status().code() == StatusCode::kNotFound);
  for (const uint32_t slots : {1u, 2u}) {
    StateShape shape = kShape;
    shape.slots = slots;
    REQUIRE(StateFile::Create(path, shape).ok());
    const auto state = StateFile::Open(path);
    REQUIRE(state.ok());
    CHECK((state->shape() == shape));
    CHECK(state->active() == 0);
    CHECK(state->sequence() == 0);
    for (uint32_t s = 0; s < slots; ++s) {
      CHECK(state->phase(s) == SlotPhase::kEmpty);
      CHECK(state->id(s) == StateId{});
      for (uint32_t c = 0; c < shape.chunks; ++c) {
        CHECK(state->chunk_version(s, c) == kVersionUnknown);
      }
    }
    struct stat info;
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(static_cast<size_t>(info.st_size) == 384 + slots * 5 * 16);
    CHECK(info.st_blocks * 512 >= info.st_size);
  }
  CHECK(std::distance(fs::directory_iterator(temp.path()), {}) == 1);
  StateShape three = kShape;
  three.slots = 3;
  CHECK(StateFile::Create(path, three).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the words of the file are where the byte table says") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  auto state = StateFile::Create(path, kShape);
  REQUIRE(state.ok());
  state->BeginWrite(1);
  Fill(*state, 1, 42);
  state->FinishWrite(1, At({3, 42}));
  state->set_active(1);
  state->BeginWrite(0);
  state->set_inode(0, 0x1234);
  state->SetChunk(0, 4, 41, 0x77);
  const std::string file = ReadFile(path);
  CHECK(file.substr(0, 8) == "DWSTATE2");
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 8) == 2);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 12) == 384);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 16) == 5);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 20) == 2);
  CHECK(Get64(file, 24) == kShape.fingerprint.hi);
  CHECK(Get64(file, 32) == kShape.fingerprint.lo);
  CHECK(Get64(file, 40) == kShape.digest_seed);
  CHECK(Get64(file, 48) != 0);
  CHECK(Get64(file, 56) == kShape.lineage.lo);
  CHECK(Get64(file, 64) == kShape.lineage.hi);
  CHECK(Get64(file, 72) == Xxh3(AsBytes(file.substr(0, 72))));
  CHECK(Get64(file, 80) == 1);
  CHECK(Get64(file, 128) == 1);  // slot 0: the sequence, then the phase
  CHECK(Get64(file, 136) == 1);
  CHECK(Get64(file, 128 + 112) == 0x1234);
  CHECK(Get64(file, 256) == 2);      // slot 1: the sequence
  CHECK(Get64(file, 264) == 0x102);  // the phase: whole, and the second identity counts
  CHECK(Get64(file, 256 + 16) == 0);
  CHECK(Get64(file, 256 + 56) == 3);
  CHECK(Get64(file, 256 + 64) == 42);
  CHECK(Get64(file, 256 + 72) == 0x44);
  CHECK(Get64(file, 256 + 80) == 0x33);
  CHECK(Get64(file, 256 + 88) == 42 * 11);
  CHECK(Get64(file, 256 + 96) == 0);
  CHECK(Get64(file, 256 + 104) == 42 * 13);
  CHECK(Get64(file, 256 + 112) == 0);
  CHECK(Get64(file, 384 + 4 * 16) == 41);  // slot 0, chunk 4
  CHECK(Get64(file, 384 + 4 * 16 + 8) == 0x77);
  CHECK(Get64(file, 384 + (5 + 2) * 16) == 42);  // slot 1, chunk 2
  CHECK(Get64(file, 384 + (5 + 2) * 16 + 8) == 4202);
}

TEST_CASE("phases, ids, sequence words and entries follow the writes") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  auto made = StateFile::Create(path, kShape);
  REQUIRE(made.ok());
  StateFile state = std::move(*made);
  state.BeginWrite(0);
  CHECK(state.phase(0) == SlotPhase::kWriting);
  CHECK(state.sequence(0) == 1);
  CHECK(state.sequence() == 1);
  state.BeginWrite(0);  // the version is abandoned and the next begins
  CHECK(state.sequence(0) == 1);
  Fill(state, 0, 7);
  CHECK(state.id(0) == StateId{});  // a slot has an id only once it is whole
  state.FinishWrite(0, At({1, 7}));
  CHECK(state.phase(0) == SlotPhase::kWhole);
  CHECK(state.id(0) == StateId{1, 7});
  CHECK(state.sequence(0) == 2);
  CHECK(state.sequence() == 2);
  CHECK(state.chunk_version(0, 3) == 7);
  CHECK(state.chunk_digest(0, 3) == 703);
  CHECK(state.phase(1) == SlotPhase::kEmpty);

  state.BeginWrite(1);
  CHECK(state.sequence() == 3);
  CHECK(state.sequence(0) == 2);
  state.BeginWrite(0);
  CHECK(state.id(0) == StateId{1, 7});  // the version that it was last
  state.MarkUnknown(0, 3);
  CHECK(state.chunk_version(0, 3) == kVersionUnknown);
  CHECK(state.chunk_version(0, 2) == 7);
  Fill(state, 1, 8);
  state.FinishWrite(1, At({1, 8}));
  CHECK(state.sequence() % 2 == 1);  // slot 0 is still being written
  Fill(state, 0, 5);
  state.FinishWrite(0, At({2, 5}));
  CHECK(state.sequence() % 2 == 0);
  CHECK(state.id(0) == StateId{2, 5});
  CHECK(state.id(1) == StateId{1, 8});
  CHECK(state.active() == 0);
  state.set_active(1);

  const auto reopened = StateFile::Open(path);
  REQUIRE(reopened.ok());
  CHECK(reopened->active() == 1);
  CHECK(reopened->id(0) == StateId{2, 5});
  CHECK(reopened->id(1) == StateId{1, 8});
  CHECK(reopened->sequence() == state.sequence());
  CHECK(reopened->chunk_digest(1, 4) == 804);
}

TEST_CASE("a reader sees ids, a write that begins, and a file that was replaced") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  CHECK(StateReader::Open(path).status().code() == StatusCode::kNotFound);
  auto state = StateFile::Create(path, kShape);
  REQUIRE(state.ok());
  fs::permissions(path, fs::perms::owner_read);
  const auto reader = StateReader::Open(path);
  REQUIRE(reader.ok());
  CHECK((reader->shape() == kShape));
  CHECK_FALSE(reader->StillHolds(0, reader->slot(0)));  // the word is even, but the slot is empty
  state->BeginWrite(0);
  CHECK_FALSE(reader->StillHolds(0, reader->slot(0)));
  Fill(*state, 0, 9);
  state->FinishWrite(0, At({1, 9}));
  const StateReader::Slot before = reader->slot(0);
  CHECK(before.phase == SlotPhase::kWhole);
  CHECK(before.id() == StateId{1, 9});
  CHECK(before.sequence == 2);
  CHECK(reader->StillHolds(0, before));
  CHECK(reader->chunk_version(0, 1) == 9);
  CHECK(reader->chunk_digest(0, 1) == 901);
  state->BeginWrite(1);  // a write to the other slot changes nothing here
  CHECK(reader->StillHolds(0, before));
  CHECK(reader->sequence() == state->sequence());
  state->BeginWrite(0);
  CHECK_FALSE(reader->StillHolds(0, before));
  CHECK(reader->slot(0).id() == StateId{1, 9});
  Fill(*state, 0, 9);
  state->FinishWrite(0, At({1, 9}));
  CHECK_FALSE(reader->StillHolds(0, before));  // the same version, but it was written again
  CHECK(reader->IsCurrent());
  REQUIRE(StateFile::Create(path, kShape).ok());
  CHECK_FALSE(reader->IsCurrent());
}

TEST_CASE("Open refuses a file that is damaged, cut, of another format or of an earlier boot") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  MakeFile(path);
  const std::string good = ReadFile(path);
  REQUIRE(StateFile::Open(path).ok());
  struct Damage {
    const char* word;
    std::function<void(std::string&)> apply;
  };
  const Damage damages[] = {
      {"too short", [](std::string& f) { f.resize(255); }},
      {"format 1 instead of 2: it was made by an older deltawire",
       [](std::string& f) { f[7] = '1', Put32(f, 8, 1), f.resize(256 + 2 * 5 * 16); }},
      {"too short", [](std::string& f) { f.clear(); }},
      {"bytes instead of", [](std::string& f) { f.resize(f.size() - 1); }},
      {"bytes instead of", [](std::string& f) { f.push_back('\0'); }},
      {"not a deltawire state file", [](std::string& f) { f[3] = 'x'; }},
      {"checksum", [](std::string& f) { f[16] ^= 1; }},
      {"checksum", [](std::string& f) { f[40] ^= 1; }},
      {"checksum", [](std::string& f) { f[72] ^= 1; }},
      {"checksum", [](std::string& f) { f[60] ^= 1; }},
      {"format 3", [](std::string& f) { Put32(f, 8, 3), Reseal(f); }},
      {"header bytes", [](std::string& f) { Put32(f, 12, 128), Reseal(f); }},
      {"bytes instead of", [](std::string& f) { Put32(f, 16, 6), Reseal(f); }},
      {"bytes instead of", [](std::string& f) { Put32(f, 16, ~0u), Reseal(f); }},
      {"3 slots", [](std::string& f) { Put32(f, 20, 3), Reseal(f); }},
      {"0 slots", [](std::string& f) { Put32(f, 20, 0), Reseal(f); }},
      {"last started", [](std::string& f) { f[48] ^= 1, Reseal(f); }},
      {"as active", [](std::string& f) { Put64(f, 80, 2); }},
      {"phase", [](std::string& f) { Put64(f, 136, 3); }},
      {"phase", [](std::string& f) { Put64(f, 136, 0x202); }},
      {"chunk 3", [](std::string& f) { Put64(f, 384 + 3 * 16, 2); }},
      {"chunk 0", [](std::string& f) { Put64(f, 384, kVersionUnknown); }},
  };
  for (const Damage& damage : damages) {
    std::string bad = good;
    damage.apply(bad);
    WriteFile(path, bad);
    const Status status = StateFile::Open(path).status();
    CAPTURE(damage.word, std::string(MessageOf(status)));
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(std::string(MessageOf(status)).find(damage.word) != std::string::npos);
    CHECK(std::string(MessageOf(status)).find(path.native()) != std::string::npos);
  }
  WriteFile(path, good);
  CHECK(StateFile::Open(path).ok());
}

TEST_CASE("Open sets right a sequence word that a crash left behind its phase") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  MakeFile(path);
  std::string file = ReadFile(path);
  Put64(file, 128, 3);  // as if killed between the two stores of BeginWrite or FinishWrite
  WriteFile(path, file);
  {
    const auto state = StateFile::Open(path);
    REQUIRE(state.ok());
    CHECK(state->sequence(0) == 4);
    CHECK(state->id(0) == StateId{1, 1});
  }
  Put64(file, 136, Get64(file, 136) - 1);  // the phase kWriting
  WriteFile(path, file);
  const auto state = StateFile::Open(path);
  REQUIRE(state.ok());
  CHECK(state->sequence(0) == 3);
  CHECK(state->phase(0) == SlotPhase::kWriting);
}

TEST_CASE("an identity is kept whole, and is what the slot last was while the next is written") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  auto state = StateFile::Create(path, kShape);
  REQUIRE(state.ok());
  CHECK(state->identity(0).empty());
  const auto reader = StateReader::Open(path);
  REQUIRE(reader.ok());
  for (const uint64_t version : {7, 9, 8}) {
    const Identity before = state->identity(0);
    state->BeginWrite(0);
    Fill(*state, 0, version);
    CHECK(state->identity(0) == before);
    state->FinishWrite(0, At({1, version}));
    CHECK(state->identity(0) == At({1, version}));
    CHECK(state->identity(0).attempt == version * 13);
    CHECK(reader->slot(0).identity == At({1, version}));
    CHECK(reader->slot(0).identity.attempt == version * 13);
  }
  CHECK(StateFile::Open(path)->identity(0) == At({1, 8}));
  CHECK(StateFile::Open(path)->shape().lineage == kShape.lineage);
}

TEST_CASE("another file in a slot has no known chunk") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  auto state = StateFile::Create(path, kShape);
  REQUIRE(state.ok());
  state->BeginWrite(0);
  Fill(*state, 0, 7);
  state->FinishWrite(0, At({1, 7}));
  state->set_inode(0, 77);
  CHECK(state->inode(0) == 77);
  CHECK(state->phase(0) == SlotPhase::kWriting);
  CHECK(state->identity(0) == At({1, 7}));
  for (uint32_t c = 0; c < kShape.chunks; ++c) CHECK(state->chunk_version(0, c) == kVersionUnknown);
  CHECK(StateReader::Open(path)->slot(0).inode == 77);
}

TEST_CASE("the document's worked example is what this code writes") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  auto state =
      StateFile::Create(path, {2, 1, {0x1122334455667788, 0x99aabbccddeeff00}, 0xabcdef, {}});
  REQUIRE(state.ok());
  state->set_inode(0, 0x2b);
  state->SetChunk(0, 0, 7, 0xa1);
  state->SetChunk(0, 1, 7, 0xa2);
  const uint64_t root = RootTerm(0, 0xa1) + RootTerm(1, 0xa2);
  state->FinishWrite(0, {.lineage = {0x0807060504030201, 0x100f0e0d0c0b0a09},
                         .id = {1, 7},
                         .root = root,
                         .attempt = 5});
  const std::string file = ReadFile(path);
  REQUIRE(file.size() == 384 + 32);
  CHECK(Get64(file, 128) == 2);
  CHECK(Get64(file, 136) == 0x102);
  CHECK(file.substr(144, 40) == std::string(40, '\0'));
  CHECK(Get64(file, 184) == 1);
  CHECK(Get64(file, 192) == 7);
  CHECK(file.substr(200, 8) == "\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10");
  CHECK(file.substr(208, 8) == "\x01\x02\x03\x04\x05\x06\x07\x08");
  CHECK(Get64(file, 216) == 0xb23b6b8cd0efa3b9);
  CHECK(Get64(file, 232) == 5);
  CHECK(Get64(file, 240) == 0x2b);
  CHECK(Get64(file, 384) == 7);
  CHECK(Get64(file, 384 + 24) == 0xa2);
}

}  // namespace
}  // namespace deltawire::state_file_test
