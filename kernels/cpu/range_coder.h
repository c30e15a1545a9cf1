// The arithmetic coder of the tight codec (docs/delta_format.md, "Arithmetic coder"): one long
// binary fraction per lane. Coders point into the caller's memory. Costs 1 to 4 ns per symbol. A
// full encoder only counts further bytes. A decoder tells at the end whether its bytes are those
// that an encoder writes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/format.h"

namespace deltawire::kernels {

/// The end of a stream: the value that is written for [low, low + range), and its number of bytes.
struct RangeEnd {
  RangeEnd(uint64_t low, uint64_t range) {
    for (; bytes <= 8; ++bytes) {
      const uint64_t below = bytes == 0 ? ~uint64_t{0} : (uint64_t{1} << (64 - 8 * bytes)) - 1;
      value = bytes == 8 ? low : (low + below) & ~below;  // 2^64 wraps to 0
      offset = value - low;
      if (offset < range) break;
    }
    carry = value < low;
  }
  unsigned bytes = 0;
  uint64_t value = 0;
  uint64_t offset = 0;  ///< value - low
  bool carry = false;
};

/// Returns the eight bytes at p, the first one highest.
inline uint64_t LoadHighFirst(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return __builtin_bswap64(v);
}
inline void StoreHighFirst(uint8_t* p, uint64_t v) {
  v = __builtin_bswap64(v);
  std::memcpy(p, &v, 8);
}

class RangeEncoder {
 public:
  RangeEncoder() = default;
  RangeEncoder(uint8_t* out, size_t capacity) : out_(out), capacity_(capacity) {}

  /// Codes the interval [start, start + size) out of 2^31, size >= 1.
  void PutEvent(uint64_t start, uint64_t size) {
    const uint64_t unit = range_ >> kEventBits;
    Add(unit * start);
    range_ = unit * size;
  }
  void PutDecision(bool yes, uint32_t probability) {
    const uint64_t bound = (range_ >> kDecisionBits) * probability;
    const uint64_t no = uint64_t{yes} - 1;  // a mask, since a branch would be unpredictable
    Add(bound & no);
    range_ = bound + ((range_ - 2 * bound) & no);
  }
  /// Does PutEvent, PutDecision(first, kEven) and PutDecision(second, probability) with one
  /// addition to the number, since at most one of the three can carry.
  void PutEventAndTwo(uint64_t start, uint64_t size, bool first, bool second,
                      uint32_t probability) {
    const uint64_t unit = range_ >> kEventBits;
    uint64_t amount = unit * start;
    range_ = unit * size;
    for (const auto& [yes, p] : {Decision{first, kEven}, Decision{second, probability}}) {
      const uint64_t bound = (range_ >> kDecisionBits) * p;
      const uint64_t no = uint64_t{yes} - 1;
      amount += bound & no;
      range_ = bound + ((range_ - 2 * bound) & no);
    }
    Add(amount);
  }
  /// Codes the lowest `bits` (up to kMaxRawBits) bits of `value`, which has no higher ones.
  void PutRaw(uint64_t value, unsigned bits) {
    range_ >>= bits;
    Add(range_ * value);
  }
  /// Call this wherever the format says so.
  void Normalise() { Shift(static_cast<unsigned>(std::countl_zero(range_)) & ~7u); }
  /// Normalizes or not, without a branch.
  void NormaliseIf(bool condition) {
    Shift(static_cast<unsigned>(std::countl_zero(range_)) & (condition ? ~7u : 0u));
  }
  /// Ends the stream and returns its bytes; more than the capacity when it did not fit.
  size_t Finish() {
    const RangeEnd end(low_, range_);
    if (end.carry) Carry(out_, size_, capacity_);
    for (unsigned i = 0; i < end.bytes; ++i)
      PutByte(static_cast<uint8_t>(end.value >> (56 - 8 * i)));
    while (size_ > 0 && size_ <= capacity_ && out_[size_ - 1] == 0) --size_;
    return size_;
  }

 private:
  struct Decision {
    bool yes;
    uint32_t probability;
  };
  void Shift(unsigned bits) {
    if (capacity_ - size_ >= 8 && size_ <= capacity_) [[likely]] {
      StoreHighFirst(out_ + size_, low_);  // bytes beyond size_ will be rewritten
    } else {
      PutLast(out_, size_, capacity_, low_, bits);
    }
    size_ += bits / 8;
    low_ <<= bits;
    range_ <<= bits;
  }
  void Add(uint64_t amount) {
    low_ += amount;
    if (low_ < amount) [[unlikely]]
      Carry(out_, size_, capacity_);
  }
  // Static functions, so that a coder whose address does not escape can stay in registers.
  [[gnu::noinline]] static void Carry(uint8_t* out, size_t size, size_t capacity) {
    for (size_t i = size; i-- > 0;) {
      if (i >= capacity) return;  // the stream did not fit, so its bytes are not used
      if (++out[i] != 0) return;
    }
  }
  [[gnu::noinline, gnu::cold]] static void PutLast(uint8_t* out, size_t size, size_t capacity,
                                                   uint64_t low, unsigned bits) {
    for (unsigned i = 0; i < bits; i += 8, ++size) {
      if (size < capacity) out[size] = static_cast<uint8_t>(low >> (56 - i));
    }
  }
  void PutByte(uint8_t byte) {
    if (size_ < capacity_) out_[size_] = byte;
    ++size_;
  }
  uint8_t* out_ = nullptr;
  size_t capacity_ = 0;
  size_t size_ = 0;
  uint64_t low_ = 0;
  uint64_t range_ = ~uint64_t{0};
};

class RangeDecoder {
 public:
  RangeDecoder() = default;
  RangeDecoder(const uint8_t* data, size_t size) : data_(data), size_(size), taken_(8) {
    offset_ = Window(0);
  }

  // For loops that hold the state of several coders in vectors.
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  size_t taken() const { return taken_; }  ///< bytes of the stream that `offset` contains
  uint64_t offset() const { return offset_; }
  uint64_t range() const { return range_; }
  void SetState(size_t taken, uint64_t offset, uint64_t range) {
    taken_ = taken;
    offset_ = offset;
    range_ = range;
  }

  /// Returns the point out of 2^31 in the next event's interval; 2^31 or more when malformed.
  uint64_t Point() const { return offset_ / (range_ >> kEventBits); }
  /// Takes the event with this interval. REQUIRES: the interval contains Point().
  void TakeEvent(uint64_t start, uint64_t size) {
    const uint64_t unit = range_ >> kEventBits;
    offset_ -= unit * start;
    range_ = unit * size;
  }
  bool GetDecision(uint32_t probability) {
    const uint64_t bound = (range_ >> kDecisionBits) * probability;
    const bool yes = offset_ < bound;
    const uint64_t no = uint64_t{yes} - 1;  // a mask, since a branch would be unpredictable
    offset_ -= bound & no;
    range_ = bound + ((range_ - 2 * bound) & no);
    return yes;
  }
  /// Returns false when malformed.
  bool GetRaw(unsigned bits, uint64_t* value) {
    range_ >>= bits;
    *value = offset_ / range_;
    if (*value >> bits != 0) return false;
    offset_ -= range_ * *value;
    return true;
  }
  /// Call this wherever the format says so.
  void Normalise() {
    const unsigned shift = static_cast<unsigned>(std::countl_zero(range_)) & ~7u;
    offset_ = offset_ << shift | Window(taken_) >> 1 >> (63 - shift);
    range_ <<= shift;
    taken_ += shift / 8;
  }
  /// Call this after the last symbol. Returns true when RangeEncoder writes the same bytes for the
  /// symbols.
  bool AtEnd() const {
    const RangeEnd end(Window(taken_ - 8) - offset_, range_);
    const size_t written = taken_ - 8 + end.bytes;  // before trailing zeros are removed
    return offset_ == end.offset && size_ <= written && (size_ == 0 || data_[size_ - 1] != 0);
  }

 private:
  /// Returns the stream's eight bytes at `at`, with zeros after its end.
  uint64_t Window(size_t at) const {
    if (at + 8 <= size_) [[likely]]
      return LoadHighFirst(data_ + at);
    return LastWindow(data_, size_, at);
  }
  [[gnu::noinline, gnu::cold]] static uint64_t LastWindow(const uint8_t* data, size_t size,
                                                          size_t at) {
    uint64_t window = 0;
    for (size_t i = at; i < at + 8; ++i) window = window << 8 | (i < size ? data[i] : 0);
    return window;
  }
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t taken_ = 0;
  uint64_t offset_ = 0;  ///< the coded number minus the encoder's low
  uint64_t range_ = ~uint64_t{0};
};

}  // namespace deltawire::kernels
