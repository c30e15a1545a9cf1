#include "common/shm/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <string>

#include "common/base/machine.h"

namespace deltawire {
namespace {

// The byte table is in docs/lifecycle.md, "State file". Little-endian, as bytes.h asserts.

constexpr char kStateMagic[9] = "DWSTATE2";
constexpr char kFirstStateMagic[9] = "DWSTATE1";
constexpr uint32_t kStateFormat = 2;

struct StateIdentity {
  uint64_t epoch;
  uint64_t version;
  uint64_t lineage_lo;
  uint64_t lineage_hi;
  uint64_t root;
};

struct StoredSlot {
  uint64_t sequence;
  uint64_t phase;  // a SlotPhase, plus kPickSecond when identities[1] is the valid one
  StateIdentity identities[2];
  uint64_t attempts[2];
  uint64_t inode;
  uint64_t reserved;
};
static_assert(sizeof(StoredSlot) == 128);

struct StateHeader {
  char magic[8];
  uint32_t format;
  uint32_t header_bytes;
  uint32_t chunks;
  uint32_t slots;
  uint64_t fingerprint_hi;
  uint64_t fingerprint_lo;
  uint64_t digest_seed;
  uint64_t boot;
  uint64_t lineage_lo;
  uint64_t lineage_hi;
  uint64_t checksum;  // XXH3-64 of the bytes before it
  uint64_t active;
  uint64_t highest_version;
  uint64_t reserved[4];
  StoredSlot slot[2];
};
constexpr size_t kStateHeaderBytes =
    8 + 4 + 4 + 4 + 4 + 8 + 8 + 8 + 8 + 2 * 8 + 8 + 8 + 8 + 4 * 8 + 2 * sizeof(StoredSlot);
static_assert(sizeof(StateHeader) == kStateHeaderBytes && kStateHeaderBytes == 384);
/// The header size of format 1. A shorter file's format cannot be recognized.
constexpr size_t kFirstHeaderBytes = 256;

struct StateEntry {
  uint64_t version;
  uint64_t digest;
};
static_assert(sizeof(StateEntry) == 16);

constexpr uint64_t kPhaseMask = 0xff;
constexpr uint64_t kPickSecond = 0x100;

using Word = std::atomic_ref<uint64_t>;
static_assert(Word::is_always_lock_free, "other processes map these words");
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

StateHeader& HeaderOf(const Mapping& map) { return *reinterpret_cast<StateHeader*>(map.base()); }

StoredSlot& SlotOf(const Mapping& map, uint32_t slot) {
  assert(slot < HeaderOf(map).slots);
  return HeaderOf(map).slot[slot];
}

StateEntry& EntryOf(const Mapping& map, uint32_t slot, uint32_t chunk) {
  const StateHeader& header = HeaderOf(map);
  assert(slot < header.slots && chunk < header.chunks);
  auto* entries = reinterpret_cast<StateEntry*>(map.base() + kStateHeaderBytes);
  return entries[uint64_t{slot} * header.chunks + chunk];
}

uint64_t Load(uint64_t& word) { return Word(word).load(kAcquire); }

SlotPhase PhaseOf(uint64_t word) { return static_cast<SlotPhase>(word & kPhaseMask); }

Identity IdentityOf(StoredSlot& slot, uint64_t phase) {
  const size_t pick = (phase & kPickSecond) != 0;
  StateIdentity& stored = slot.identities[pick];
  return {.lineage = {.hi = Load(stored.lineage_hi), .lo = Load(stored.lineage_lo)},
          .id = {Load(stored.epoch), Load(stored.version)},
          .root = Load(stored.root),
          .attempt = Load(slot.attempts[pick])};
}

/// Odd when any slot's sequence is odd. It never falls, so two equal even values mean that no slot
/// changed in between.
uint64_t CombinedSequence(const Mapping& map) {
  uint64_t settled = 0;
  uint64_t odd = 0;
  for (uint32_t s = 0; s < HeaderOf(map).slots; ++s) {
    const uint64_t sequence = Load(SlotOf(map, s).sequence);
    settled += sequence & ~uint64_t{1};
    odd |= sequence & 1;
  }
  return settled + odd;
}

uint64_t FileBytes(const StateShape& shape) {
  return kStateHeaderBytes + uint64_t{shape.slots} * shape.chunks * sizeof(StateEntry);
}

uint64_t ShapeChecksum(const StateHeader& header) {
  return Xxh3({reinterpret_cast<const std::byte*>(&header), offsetof(StateHeader, checksum)});
}

/// Returns a hash that changes at each boot.
StatusOr<uint64_t> BootHash() {
  DW_ASSIGN_OR_RETURN(const std::string id, BootId());
  return Xxh3(AsBytes(id));
}

Status Damaged(const std::filesystem::path& path, std::string_view what) {
  return Errorf(StatusCode::kDataLoss,
                "{} {}, so it does not tell which version the weight files beside it hold",
                path.native(), what);
}

Status CheckHeader(const StateHeader& header, uint64_t file_bytes,
                   const std::filesystem::path& path) {
  if (std::memcmp(header.magic, kFirstStateMagic, sizeof header.magic) == 0) {
    return Damaged(
        path,
        fmt::format("has format 1 instead of {}: it was made by an older deltawire", kStateFormat));
  }
  if (std::memcmp(header.magic, kStateMagic, sizeof header.magic) != 0) {
    return Damaged(path, "is not a deltawire state file");
  }
  if (header.format != kStateFormat) {
    return Damaged(
        path, fmt::format("has format {}, and this program knows {}", header.format, kStateFormat));
  }
  if (header.checksum != ShapeChecksum(header)) {
    return Damaged(path, "has a header that does not match its checksum");
  }
  if (header.header_bytes != kStateHeaderBytes || header.slots < 1 || header.slots > 2) {
    return Damaged(path, fmt::format("claims {} header bytes and {} slots", header.header_bytes,
                                     header.slots));
  }
  const uint64_t want = FileBytes({.chunks = header.chunks, .slots = header.slots});
  if (want != file_bytes) {
    return Damaged(path, fmt::format("has {} bytes instead of {}", file_bytes, want));
  }
  DW_ASSIGN_OR_RETURN(const uint64_t boot, BootHash());
  if (header.boot != boot) return Damaged(path, "was written before the machine last started");
  return {};
}

Status CheckWords(const Mapping& map, const std::filesystem::path& path) {
  StateHeader& header = HeaderOf(map);
  if (Load(header.active) >= header.slots) {
    return Damaged(
        path, fmt::format("claims slot {} of {} as active", Load(header.active), header.slots));
  }
  for (uint32_t s = 0; s < header.slots; ++s) {
    const uint64_t phase = Load(SlotOf(map, s).phase);
    if ((phase & ~(kPhaseMask | kPickSecond)) != 0 || PhaseOf(phase) > SlotPhase::kWhole) {
      return Damaged(path, fmt::format("has phase {:#x} in slot {}", phase, s));
    }
    if (PhaseOf(phase) != SlotPhase::kWhole) continue;
    const uint64_t version = IdentityOf(SlotOf(map, s), phase).id.version;
    for (uint32_t c = 0; c < header.chunks; ++c) {
      const uint64_t found = Load(EntryOf(map, s, c).version);
      if (found == version) continue;
      return Damaged(path, fmt::format("says that slot {} is wholly version {}, and that chunk {} "
                                       "of it is {}",
                                       s, version, c, found));
    }
  }
  return {};
}

struct Opened {
  Mapping map;
  StateShape shape;
  struct stat file;
};

StatusOr<Opened> OpenAndCheck(const std::filesystem::path& path, bool writable) {
  const UniqueFd fd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", path.native()));
  Opened opened;
  if (::fstat(fd.get(), &opened.file) != 0) {
    return ErrnoError(fmt::format("stat {}", path.native()));
  }
  const auto bytes = static_cast<uint64_t>(opened.file.st_size);
  if (!S_ISREG(opened.file.st_mode) || bytes < kFirstHeaderBytes) {
    return Damaged(path, "is too short for a deltawire state file");
  }
  DW_ASSIGN_OR_RETURN(opened.map, Mapping::Map(fd.get(), bytes, writable, path));
  const StateHeader& header = HeaderOf(opened.map);
  DW_RETURN_IF_ERROR(CheckHeader(header, bytes, path));
  opened.shape = {header.chunks,
                  header.slots,
                  {header.fingerprint_hi, header.fingerprint_lo},
                  header.digest_seed,
                  {header.lineage_hi, header.lineage_lo}};
  return opened;
}

}  // namespace

StatusOr<StateFile> StateFile::Create(const std::filesystem::path& path, const Shape& shape) {
  if (shape.slots < 1 || shape.slots > 2) {
    return Errorf(StatusCode::kInvalidArgument, "{}: {} slots instead of 1 or 2", path.native(),
                  shape.slots);
  }
  const uint64_t bytes = FileBytes(shape);
  DW_ASSIGN_OR_RETURN(const uint64_t boot, BootHash());
  DW_ASSIGN_OR_RETURN(FileBuilder file, FileBuilder::Start(path, bytes));
  DW_RETURN_IF_ERROR(file.Allocate());
  StateFile state;
  state.shape_ = shape;
  DW_ASSIGN_OR_RETURN(state.map_, Mapping::Map(file.fd(), bytes, true, path));
  StateHeader& header = HeaderOf(state.map_);
  std::memcpy(header.magic, kStateMagic, sizeof header.magic);
  header.format = kStateFormat;
  header.header_bytes = kStateHeaderBytes;
  header.chunks = shape.chunks;
  header.slots = shape.slots;
  header.fingerprint_hi = shape.fingerprint.hi;
  header.fingerprint_lo = shape.fingerprint.lo;
  header.digest_seed = shape.digest_seed;
  header.boot = boot;
  header.lineage_hi = shape.lineage.hi;
  header.lineage_lo = shape.lineage.lo;
  header.checksum = ShapeChecksum(header);
  for (uint32_t s = 0; s < shape.slots; ++s) {
    for (uint32_t c = 0; c < shape.chunks; ++c) {
      EntryOf(state.map_, s, c).version = kVersionUnknown;
    }
  }
  DW_RETURN_IF_ERROR(file.Publish());
  return state;
}

StatusOr<StateFile> StateFile::Open(const std::filesystem::path& path) {
  DW_ASSIGN_OR_RETURN(Opened opened, OpenAndCheck(path, true));
  DW_RETURN_IF_ERROR(CheckWords(opened.map, path));
  StateFile state;
  state.map_ = std::move(opened.map);
  state.shape_ = opened.shape;
  // A crash between the stores of the phase and of the sequence word leaves them in disagreement;
  // the phase is right.
  for (uint32_t s = 0; s < state.shape_.slots; ++s) {
    const uint64_t sequence = state.sequence(s);
    const bool writing = state.phase(s) == SlotPhase::kWriting;
    if ((sequence % 2 != 0) != writing) {
      Word(SlotOf(state.map_, s).sequence).store(sequence + 1, kRelease);
    }
  }
  return state;
}

uint32_t StateFile::active() const { return static_cast<uint32_t>(Load(HeaderOf(map_).active)); }

void StateFile::set_active(uint32_t slot) {
  assert(slot < shape_.slots);
  Word(HeaderOf(map_).active).store(slot, kRelease);
}

uint64_t StateFile::highest_version() const { return Load(HeaderOf(map_).highest_version); }

void StateFile::set_highest_version(uint64_t version) {
  Word(HeaderOf(map_).highest_version).store(version, kRelease);
}

SlotPhase StateFile::phase(uint32_t slot) const { return PhaseOf(Load(SlotOf(map_, slot).phase)); }

Identity StateFile::identity(uint32_t slot) const {
  StoredSlot& words = SlotOf(map_, slot);
  return IdentityOf(words, Load(words.phase));
}

uint64_t StateFile::inode(uint32_t slot) const { return Load(SlotOf(map_, slot).inode); }

void StateFile::set_inode(uint32_t slot, uint64_t inode) {
  if (phase(slot) != SlotPhase::kWriting) BeginWrite(slot);
  for (uint32_t c = 0; c < shape_.chunks; ++c) {
    Word(EntryOf(map_, slot, c).version).store(kVersionUnknown, kRelaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Word(SlotOf(map_, slot).inode).store(inode, kRelease);
}

void StateFile::BeginWrite(uint32_t slot) {
  StoredSlot& words = SlotOf(map_, slot);
  Word sequence(words.sequence);
  Word phase(words.phase);
  sequence.store(sequence.load(kRelaxed) | 1, kRelaxed);
  std::atomic_thread_fence(kRelease);
  const uint64_t pick = phase.load(kRelaxed) & kPickSecond;
  phase.store(pick | static_cast<uint64_t>(SlotPhase::kWriting), kRelaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before any write to the buffer
}

void StateFile::FinishWrite(uint32_t slot, const Identity& identity) {
  assert(phase(slot) == SlotPhase::kWriting);
  for (uint32_t c = 0; c < shape_.chunks; ++c)
    assert(chunk_version(slot, c) == identity.id.version);
  StoredSlot& words = SlotOf(map_, slot);
  Word phase(words.phase);
  Word sequence(words.sequence);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // after every write to the buffer
  // The valid identity stays untouched until one store of the phase word picks the other.
  const uint64_t pick = ~phase.load(kRelaxed) & kPickSecond;
  StateIdentity& next = words.identities[pick != 0];
  Word(next.epoch).store(identity.id.epoch, kRelaxed);
  Word(next.version).store(identity.id.version, kRelaxed);
  Word(next.lineage_lo).store(identity.lineage.lo, kRelaxed);
  Word(next.lineage_hi).store(identity.lineage.hi, kRelaxed);
  Word(next.root).store(identity.root, kRelaxed);
  Word(words.attempts[pick != 0]).store(identity.attempt, kRelaxed);
  phase.store(pick | static_cast<uint64_t>(SlotPhase::kWhole), kRelease);
  sequence.store((sequence.load(kRelaxed) | 1) + 1, kRelease);
}

void StateFile::MarkUnknown(uint32_t slot, uint32_t chunk) {
  assert(phase(slot) == SlotPhase::kWriting);
  Word(EntryOf(map_, slot, chunk).version).store(kVersionUnknown, kRelaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void StateFile::SetChunk(uint32_t slot, uint32_t chunk, uint64_t version, uint64_t digest) {
  assert(phase(slot) == SlotPhase::kWriting);
  StateEntry& entry = EntryOf(map_, slot, chunk);
  // seq_cst, because the copy and apply kernels may use non-temporal stores, which release does not
  // order.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Word(entry.digest).load(kRelaxed) != digest) {
    // The old version must never stand beside the new digest.
    Word(entry.version).store(kVersionUnknown, kRelaxed);
    std::atomic_thread_fence(kRelease);
    Word(entry.digest).store(digest, kRelaxed);
  }
  Word(entry.version).store(version, kRelease);
}

uint64_t StateFile::chunk_version(uint32_t slot, uint32_t chunk) const {
  return Load(EntryOf(map_, slot, chunk).version);
}

uint64_t StateFile::chunk_digest(uint32_t slot, uint32_t chunk) const {
  return Load(EntryOf(map_, slot, chunk).digest);
}

uint64_t StateFile::sequence(uint32_t slot) const { return Load(SlotOf(map_, slot).sequence); }

uint64_t StateFile::sequence() const { return CombinedSequence(map_); }

StatusOr<StateReader> StateReader::Open(const std::filesystem::path& path) {
  // No CheckWords here: the owner may be in the middle of a write.
  DW_ASSIGN_OR_RETURN(Opened opened, OpenAndCheck(path, false));
  StateReader reader;
  reader.path_ = path;
  reader.device_ = opened.file.st_dev;
  reader.inode_ = opened.file.st_ino;
  reader.shape_ = opened.shape;
  reader.map_ = std::move(opened.map);
  return reader;
}

uint32_t StateReader::active() const { return static_cast<uint32_t>(Load(HeaderOf(map_).active)); }

uint64_t StateReader::sequence() const { return CombinedSequence(map_); }

StateReader::Slot StateReader::slot(uint32_t slot) const {
  auto& words = SlotOf(map_, slot);
  Slot seen;
  uint64_t after = Load(words.sequence);
  do {
    seen.sequence = after;
    const uint64_t phase = Load(words.phase);
    seen.phase = PhaseOf(phase);
    seen.identity = IdentityOf(words, phase);
    seen.inode = Load(words.inode);
    std::atomic_thread_fence(kAcquire);
    after = Word(words.sequence).load(kRelaxed);
  } while (after != seen.sequence);
  return seen;
}

uint64_t StateReader::chunk_version(uint32_t slot, uint32_t chunk) const {
  return Load(EntryOf(map_, slot, chunk).version);
}

uint64_t StateReader::chunk_digest(uint32_t slot, uint32_t chunk) const {
  return Load(EntryOf(map_, slot, chunk).digest);
}

bool StateReader::StillHolds(uint32_t slot, const Slot& before) const {
  std::atomic_thread_fence(kAcquire);  // after the reads of the buffer
  return before.sequence % 2 == 0 && before.phase == SlotPhase::kWhole &&
         Word(SlotOf(map_, slot).sequence).load(kRelaxed) == before.sequence;
}

bool StateReader::IsCurrent() const {
  struct stat now;
  return ::stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
}

}  // namespace deltawire
