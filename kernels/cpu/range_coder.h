// The arithmetic coder of the tight codec: one long binary fraction per group of blocks.
// Coders point into the caller's memory. Not thread-safe. Cost: 2 to 6 ns per symbol.
// Errors: a full encoder only counts further bytes; a decoder says at the end whether its bytes are
// those that an encoder writes. Source of every step: docs/delta_format.md, "Arithmetic coder".
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/format.h"

namespace deltawire::kernels {

/// The end of a group: the value that is written for [low, low + range), and its number of bytes.
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

class RangeEncoder {
 public:
  RangeEncoder(uint8_t* out, size_t capacity) : out_(out), capacity_(capacity) {}

  /// Codes the interval [start, start + size) out of 2^31, size >= 1.
  void PutEvent(uint64_t start, uint64_t size) {
    const uint64_t unit = range_ >> kEventBits;
    Add(unit * start);
    range_ = unit * size;
    Normalise();
  }
  void PutDecision(bool yes, uint32_t probability) {
    const uint64_t bound = (range_ >> kDecisionBits) * probability;
    if (yes) {
      range_ = bound;
    } else {
      Add(bound);
      range_ -= bound;
    }
    Normalise();
  }
  /// Codes the lowest `bits` (up to kMaxRawBits) bits of `value`, which has no higher ones.
  void PutRaw(uint64_t value, unsigned bits) {
    range_ >>= bits;
    Add(range_ * value);
    Normalise();
  }
  /// Ends the group and returns its stream's bytes; more than the capacity when it did not fit.
  size_t Finish() {
    const RangeEnd end(low_, range_);
    if (end.carry) Carry();
    for (unsigned i = 0; i < end.bytes; ++i)
      PutByte(static_cast<uint8_t>(end.value >> (56 - 8 * i)));
    while (size_ > 0 && size_ <= capacity_ && out_[size_ - 1] == 0) --size_;
    return size_;
  }

 private:
  void Add(uint64_t amount) {
    low_ += amount;
    if (low_ < amount) Carry();
  }
  void Carry() {
    for (size_t i = size_; i-- > 0;) {
      if (i >= capacity_) return;  // the stream did not fit, so its bytes are not used
      if (++out_[i] != 0) return;
    }
  }
  void PutByte(uint8_t byte) {
    if (size_ < capacity_) out_[size_] = byte;
    ++size_;
  }
  void Normalise() {
    while (range_ < kLeastRange) {
      PutByte(static_cast<uint8_t>(low_ >> 56));
      PutByte(static_cast<uint8_t>(low_ >> 48));
      low_ <<= 16;
      range_ <<= 16;
    }
  }
  uint8_t* out_;
  size_t capacity_;
  size_t size_ = 0;
  uint64_t low_ = 0;
  uint64_t range_ = ~uint64_t{0};
};

class RangeDecoder {
 public:
  RangeDecoder(const uint8_t* data, size_t size) : data_(data), size_(size) {
    for (int i = 0; i < 8; ++i) offset_ = offset_ << 8 | NextByte();
  }

  /// The point out of 2^31 that lies in the next event's interval; 2^31 or more when malformed.
  uint64_t Point() const { return offset_ / (range_ >> kEventBits); }
  /// Takes the event with this interval. REQUIRES: the interval holds Point().
  void TakeEvent(uint64_t start, uint64_t size) {
    const uint64_t unit = range_ >> kEventBits;
    Subtract(unit * start);
    range_ = unit * size;
    Normalise();
  }
  bool GetDecision(uint32_t probability) {
    const uint64_t bound = (range_ >> kDecisionBits) * probability;
    const bool yes = offset_ < bound;
    if (yes) {
      range_ = bound;
    } else {
      Subtract(bound);
      range_ -= bound;
    }
    Normalise();
    return yes;
  }
  /// GetRaw of one bit without a division. Malformed input shows in AtEnd.
  bool GetBit() {
    range_ >>= 1;
    const bool one = offset_ >= range_;
    if (one) Subtract(range_);
    failed_ |= offset_ >= range_;  // halving an odd range leaves a unit that no encoder uses
    Normalise();
    return one;
  }
  /// False when malformed.
  bool GetRaw(unsigned bits, uint64_t* value) {
    range_ >>= bits;
    *value = offset_ / range_;
    if (*value >> bits != 0) return false;
    Subtract(range_ * *value);
    Normalise();
    return true;
  }
  /// To be called after the last symbol: true when RangeEncoder writes the same bytes for them.
  bool AtEnd() const {
    const RangeEnd end(low_, range_);
    const size_t written = taken_ - 8 + end.bytes;  // before trailing zeros are dropped
    return !failed_ && offset_ == end.offset && size_ <= written &&
           (size_ == 0 || data_[size_ - 1] != 0);
  }

 private:
  uint8_t NextByte() { return taken_ < size_ ? data_[taken_++] : (++taken_, uint8_t{0}); }
  void Subtract(uint64_t amount) {
    offset_ -= amount;
    low_ += amount;
  }
  void Normalise() {
    while (range_ < kLeastRange) {
      offset_ = offset_ << 16 | uint64_t{NextByte()} << 8;
      offset_ |= NextByte();
      low_ <<= 16;
      range_ <<= 16;
    }
  }
  const uint8_t* data_;
  size_t size_;
  size_t taken_ = 0;
  uint64_t low_ = 0;
  uint64_t offset_ = 0;  ///< the coded number minus low
  uint64_t range_ = ~uint64_t{0};
  bool failed_ = false;
};

}  // namespace deltawire::kernels
