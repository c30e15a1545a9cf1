#include "common/shm/state_file.h"

#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "common/base/bytes.h"
#include "tests/support/temp_dir.h"

namespace Catch {
template <>
struct StringMaker<deltawire::StateId> {
  static std::string convert(deltawire::StateId id) { return ToString(id); }
};
}  // namespace Catch

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr StateShape kShape{5, 2, {0x1122334455667788, 0x99aabbccddeeff00}, 0xabcdef};

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

void Reseal(std::string& file) { Put64(file, 56, Xxh3(AsBytes(file.substr(0, 56)))); }

void Fill(StateFile& state, uint32_t slot, uint64_t version) {
  for (uint32_t c = 0; c < state.shape().chunks; ++c) {
    state.SetChunk(slot, c, version, version * 100 + c);
  }
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
    CHECK(static_cast<size_t>(info.st_size) == 256 + slots * 5 * 16);
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
  state->FinishWrite(1, {3, 42});
  state->set_active(1);
  state->BeginWrite(0);
  state->SetChunk(0, 4, 41, 0x77);
  const std::string file = ReadFile(path);
  CHECK(file.substr(0, 8) == "DWSTATE1");
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 8) == 1);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 12) == 256);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 16) == 5);
  CHECK(LoadLe<uint32_t>(AsBytes(file).data() + 20) == 2);
  CHECK(Get64(file, 24) == kShape.fingerprint.hi);
  CHECK(Get64(file, 32) == kShape.fingerprint.lo);
  CHECK(Get64(file, 40) == kShape.digest_seed);
  CHECK(Get64(file, 48) != 0);
  CHECK(Get64(file, 56) == Xxh3(AsBytes(file.substr(0, 56))));
  CHECK(Get64(file, 64) == 1);
  CHECK(Get64(file, 128) == 1);  // slot 0: sequence, phase
  CHECK(Get64(file, 136) == 1);
  CHECK(Get64(file, 192) == 2);      // slot 1: sequence
  CHECK(Get64(file, 200) == 0x102);  // whole, second id
  CHECK(Get64(file, 224) == 3);
  CHECK(Get64(file, 232) == 42);
  CHECK(Get64(file, 256 + 4 * 16) == 41);  // slot 0, chunk 4
  CHECK(Get64(file, 256 + 4 * 16 + 8) == 0x77);
  CHECK(Get64(file, 256 + (5 + 2) * 16) == 42);  // slot 1, chunk 2
  CHECK(Get64(file, 256 + (5 + 2) * 16 + 8) == 4202);
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
  state.BeginWrite(0);  // a version abandoned, the next begun
  CHECK(state.sequence(0) == 1);
  Fill(state, 0, 7);
  CHECK(state.id(0) == StateId{});  // a claim only once all is there
  state.FinishWrite(0, {1, 7});
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
  CHECK(state.id(0) == StateId{1, 7});  // what it last was
  state.MarkUnknown(0, 3);
  CHECK(state.chunk_version(0, 3) == kVersionUnknown);
  CHECK(state.chunk_version(0, 2) == 7);
  Fill(state, 1, 8);
  state.FinishWrite(1, {1, 8});
  CHECK(state.sequence() % 2 == 1);  // slot 0 is still written
  Fill(state, 0, 5);
  state.FinishWrite(0, {2, 5});
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
  CHECK_FALSE(reader->StillHolds(0, reader->slot(0)));  // empty: even, and yet nothing to read
  state->BeginWrite(0);
  CHECK_FALSE(reader->StillHolds(0, reader->slot(0)));
  Fill(*state, 0, 9);
  state->FinishWrite(0, {1, 9});
  const StateReader::Slot before = reader->slot(0);
  CHECK(before.phase == SlotPhase::kWhole);
  CHECK(before.id == StateId{1, 9});
  CHECK(before.sequence == 2);
  CHECK(reader->StillHolds(0, before));
  CHECK(reader->chunk_version(0, 1) == 9);
  CHECK(reader->chunk_digest(0, 1) == 901);
  state->BeginWrite(1);  // the other slot's write is no concern of this one
  CHECK(reader->StillHolds(0, before));
  CHECK(reader->sequence() == state->sequence());
  state->BeginWrite(0);
  CHECK_FALSE(reader->StillHolds(0, before));
  CHECK(reader->slot(0).id == StateId{1, 9});
  Fill(*state, 0, 9);
  state->FinishWrite(0, {1, 9});
  CHECK_FALSE(reader->StillHolds(0, before));  // the same version, and yet it was written
  CHECK(reader->IsCurrent());
  REQUIRE(StateFile::Create(path, kShape).ok());
  CHECK_FALSE(reader->IsCurrent());
}

TEST_CASE("Open refuses a file that is damaged, cut, of another format or of an earlier boot") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  {
    auto state = StateFile::Create(path, kShape);
    REQUIRE(state.ok());
    state->BeginWrite(0);
    Fill(*state, 0, 1);
    state->FinishWrite(0, {1, 1});
  }
  const std::string good = ReadFile(path);
  REQUIRE(StateFile::Open(path).ok());
  struct Damage {
    const char* word;
    std::function<void(std::string&)> apply;
  };
  const Damage damages[] = {
      {"too short", [](std::string& f) { f.resize(255); }},
      {"too short", [](std::string& f) { f.clear(); }},
      {"bytes instead of", [](std::string& f) { f.resize(f.size() - 1); }},
      {"bytes instead of", [](std::string& f) { f.push_back('\0'); }},
      {"not a deltawire state file", [](std::string& f) { f[3] = 'x'; }},
      {"checksum", [](std::string& f) { f[16] ^= 1; }},
      {"checksum", [](std::string& f) { f[40] ^= 1; }},
      {"checksum", [](std::string& f) { f[56] ^= 1; }},
      {"format 2", [](std::string& f) { Put32(f, 8, 2), Reseal(f); }},
      {"header bytes", [](std::string& f) { Put32(f, 12, 128), Reseal(f); }},
      {"bytes instead of", [](std::string& f) { Put32(f, 16, 6), Reseal(f); }},
      {"bytes instead of", [](std::string& f) { Put32(f, 16, ~0u), Reseal(f); }},
      {"3 slots", [](std::string& f) { Put32(f, 20, 3), Reseal(f); }},
      {"0 slots", [](std::string& f) { Put32(f, 20, 0), Reseal(f); }},
      {"last started", [](std::string& f) { f[48] ^= 1, Reseal(f); }},
      {"as active", [](std::string& f) { Put64(f, 64, 2); }},
      {"phase", [](std::string& f) { Put64(f, 136, 3); }},
      {"phase", [](std::string& f) { Put64(f, 136, 0x202); }},
      {"chunk 3", [](std::string& f) { Put64(f, 256 + 3 * 16, 2); }},
      {"chunk 0", [](std::string& f) { Put64(f, 256, kVersionUnknown); }},
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
  {
    auto state = StateFile::Create(path, kShape);
    REQUIRE(state.ok());
    state->BeginWrite(0);
    Fill(*state, 0, 1);
    state->FinishWrite(0, {1, 1});
  }
  std::string file = ReadFile(path);
  Put64(file, 128, 3);  // as between the two stores of BeginWrite, or of FinishWrite
  WriteFile(path, file);
  {
    const auto state = StateFile::Open(path);
    REQUIRE(state.ok());
    CHECK(state->sequence(0) == 4);
    CHECK(state->id(0) == StateId{1, 1});
  }
  Put64(file, 136, Get64(file, 136) - 1);  // kWriting
  WriteFile(path, file);
  const auto state = StateFile::Open(path);
  REQUIRE(state.ok());
  CHECK(state->sequence(0) == 3);
  CHECK(state->phase(0) == SlotPhase::kWriting);
}

}  // namespace
}  // namespace deltawire
