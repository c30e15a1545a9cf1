#include "bench/harness/huge_buffer.h"

#include <sys/mman.h>

#include <fstream>
#include <string>

namespace deltawire::bench {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

StatusOr<HugeBuffer> HugeBuffer::Create(uint64_t bytes) {
  const uint64_t whole = RoundUp(bytes);
  const uint64_t mapped = whole + kHugePage;  // so that an aligned part lies within
  void* const at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "no memory for a buffer of {} bytes: {}", bytes,
                  std::strerror(errno));
  }
  auto* const begin = static_cast<std::byte*>(at);
  const uint64_t lead = RoundUp(reinterpret_cast<uintptr_t>(at)) - reinterpret_cast<uintptr_t>(at);
  if (lead > 0) munmap(begin, lead);
  if (lead < kHugePage) munmap(begin + lead + whole, kHugePage - lead);
  HugeBuffer out;
  out.base_ = begin + lead;
  out.bytes_ = bytes;
  madvise(out.base_, whole, MADV_HUGEPAGE);  // a wish; HugePageShare tells what came of it
  std::memset(out.base_, 0, whole);
  return out;
}

HugeBuffer::~HugeBuffer() {
  if (base_ != nullptr) munmap(base_, resident());
}

uint64_t HugeBuffer::resident() const { return RoundUp(bytes_); }

double HugePageShare() {
  std::ifstream in("/proc/self/smaps_rollup");
  double anonymous = 0, huge = 0;
  for (std::string key; in >> key;) {
    double kib = 0;
    if (key == "Anonymous:" && in >> kib) anonymous = kib;
    if (key == "AnonHugePages:" && in >> kib) huge = kib;
  }
  return anonymous > 0 ? huge / anonymous : 0;
}

}  // namespace deltawire::bench
