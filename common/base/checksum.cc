#include "common/base/checksum.h"

#include <spdlog/fmt/fmt.h>
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // AVX2 and AVX-512 where the machine has them
#endif

#include <charconv>

namespace deltawire {

std::string Hash128::Hex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

std::optional<Hash128> Hash128::FromHex(std::string_view text) {
  Hash128 hash;
  const char* const middle = text.data() + text.size() / 2;
  const char* const end = text.data() + text.size();
  if (text.size() != 32 || std::from_chars(text.data(), middle, hash.hi, 16).ptr != middle ||
      std::from_chars(middle, end, hash.lo, 16).ptr != end) {
    return std::nullopt;
  }
  return hash;
}

uint64_t Xxh3(Bytes data) { return XXH3_64bits(data.data(), data.size()); }

Hash128 Xxh3_128(Bytes data) {
  const XXH128_hash_t h = XXH3_128bits(data.data(), data.size());
  return {h.high64, h.low64};
}

struct Xxh3Stream::State {
  XXH3_state_t* xxh = XXH3_createState();  // only the library knows its size and alignment
  ~State() { XXH3_freeState(xxh); }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Reset(); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Reset() { XXH3_64bits_reset(state_->xxh); }
void Xxh3Stream::Update(Bytes data) { XXH3_64bits_update(state_->xxh, data.data(), data.size()); }
uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(state_->xxh); }

}  // namespace deltawire
