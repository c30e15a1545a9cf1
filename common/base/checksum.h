// XXH3 checksums (64 and 128 bits) of byte ranges, one-shot and incremental, at 10+ GB/s. The
// hashes have no secret key, so they guard against accidents, not against an adversary. A
// Xxh3Stream belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/bytes.h"

namespace deltawire {

/// A 128-bit hash; `hi` and `lo` as XXH3 defines them. Its text form is 32 hex digits, hi first.
struct Hash128 {
  uint64_t hi = 0;
  uint64_t lo = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  std::string Hex() const;
  /// Parses exactly 32 hex digits; nullopt for any other text.
  static std::optional<Hash128> FromHex(std::string_view text);
};

uint64_t Xxh3(Bytes data);
Hash128 Xxh3_128(Bytes data);

/// An incremental XXH3-64: Update in pieces, then Digest. Reset starts again.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void Reset();
  void Update(Bytes data);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltawire
