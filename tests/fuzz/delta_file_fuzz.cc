// Fuzz target: any bytes as a delta file. The entries of a file that is accepted lie within it, and
// a file written for them would have its size. The input's size and checksum fields are corrected
// first, since the reader would refuse nearly every input by them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/shm/delta_file.h"

namespace {

using deltawire::Bytes;

constexpr size_t kHeaderBytes = 192, kSizeAt = 16, kChecksumAt = 184;

void Require(bool condition) {
  if (!condition) std::abort();
}

void PutRight(std::vector<std::byte>& file) {
  if (file.size() < kHeaderBytes) return;
  deltawire::StoreLe<uint64_t>(&file[kSizeAt], file.size());
  deltawire::Xxh3Stream sum;
  sum.Update(Bytes(file).first(kChecksumAt));
  sum.Update(Bytes(file).subspan(kHeaderBytes));
  deltawire::StoreLe<uint64_t>(&file[kChecksumAt], sum.Digest());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> file(size);
  if (size > 0) std::memcpy(file.data(), data, size);
  PutRight(file);
  const deltawire::UniqueFd fd(::memfd_create("delta", MFD_CLOEXEC));
  Require(fd.get() >= 0);
  Require(::write(fd.get(), file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  const auto read = deltawire::DeltaFile::Open(fmt::format("/proc/self/fd/{}", fd.get()));
  if (!read.ok()) return 0;
  uint64_t payloads = 0;
  for (const deltawire::DeltaFileEntry& e : read->entries()) {
    Require(e.chunk < read->head().chunks);
    payloads += e.payload.size();
    uint64_t sum = 0;  // reads every byte, so that a sanitizer sees one outside of the file
    for (const std::byte b : e.payload) sum += static_cast<uint64_t>(b);
    Require(sum <= 255 * e.payload.size());
  }
  Require(deltawire::DeltaFileBytes(read->entries()) == file.size());
  Require(payloads <= file.size());
  return 0;
}
