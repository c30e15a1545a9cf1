// The bit streams of docs/delta_format.md: numbers and bytes are both filled from their lowest bit.
// A writer or reader points into the caller's memory and never leaves it. A full writer only counts
// further bytes; a reader past its end returns zeros and !ok().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deltawire::kernels {

inline unsigned Bits(uint64_t x) { return static_cast<unsigned>(std::bit_width(x)); }

/// Returns the lowest n bits set, n <= 64.
inline uint64_t LowMask(unsigned n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

/// Returns the eight bytes at p as a number; bytes at `end` and beyond count as zero.
inline uint64_t Load64Within(const uint8_t* p, const uint8_t* end) {
  uint64_t v = 0;
  if (end - p >= 8) {
    std::memcpy(&v, p, 8);
  } else if (p < end) {
    std::memcpy(&v, p, static_cast<size_t>(end - p));
  }
  return v;
}

/// Appends bits; bytes that do not fit are counted but not written.
class BitWriter {
 public:
  BitWriter(uint8_t* out, size_t capacity) : out_(out), capacity_(capacity) {}

  /// Appends the lowest `bits` (0..64) bits of `value`.
  void Put(uint64_t value, unsigned bits) {
    if (bits > 32) {
      Put(value & 0xffffffff, 32);
      value >>= 32;
      bits -= 32;
    }
    pending_ |= (value & LowMask(bits)) << filled_;
    filled_ += bits;
    while (filled_ >= 8) Flush();
  }
  void PutZeros(uint64_t count) {
    for (; count > 32; count -= 32) Put(0, 32);
    Put(0, static_cast<unsigned>(count));
  }
  void PutUnary(uint64_t zeros) {
    PutZeros(zeros);
    Put(1, 1);
  }
  /// Pads with zeros and returns the stream's bytes, which may be more than the capacity.
  size_t Finish() {
    if (filled_ > 0) Flush();
    filled_ = 0;
    return size_;
  }

 private:
  void Flush() {
    if (size_ < capacity_) out_[size_] = static_cast<uint8_t>(pending_);
    ++size_;
    pending_ >>= 8;
    filled_ = filled_ > 8 ? filled_ - 8 : 0;
  }
  uint8_t* out_;
  size_t capacity_;
  size_t size_ = 0;
  uint64_t pending_ = 0;
  unsigned filled_ = 0;
};

/// Reads bits; past the end bits are zeros and ok() turns false.
class BitReader {
 public:
  BitReader(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}

  /// Reads the next `bits` (0..64) as a number.
  uint64_t Get(unsigned bits) {
    if (bits > 32) {
      const uint64_t low = Get(32);
      return low | Get(bits - 32) << 32;
    }
    const uint64_t v = Peek() & LowMask(bits);
    at_ += bits;
    return v;
  }
  /// Reads zeros up to and including the next one, and returns the number of zeros. More than
  /// `most` zeros are an error: the reader is no longer ok().
  uint64_t GetUnary(uint64_t most) {
    uint64_t zeros = 0;
    while (zeros <= most && ok()) {
      const uint64_t window = Peek();
      const unsigned have = kWindowBits;
      const auto run = static_cast<unsigned>(std::countr_zero(window | uint64_t{1} << have));
      if (run < have) {
        at_ += run + 1;
        zeros += run;
        if (zeros > most) break;
        return zeros;
      }
      at_ += have;
      zeros += have;
    }
    failed_ = true;
    return 0;
  }
  void Skip(uint64_t bits) { at_ += bits; }
  /// Returns the next bits without reading them. At least the lowest kWindowBits are valid.
  static constexpr unsigned kWindowBits = 57;
  uint64_t Window() const { return Peek(); }
  uint64_t position() const { return at_; }
  bool ok() const { return !failed_ && at_ <= static_cast<uint64_t>(end_ - data_) * 8; }
  /// Returns true when only the last byte's zero padding is left.
  bool AtPaddedEnd() {
    const uint64_t bits = static_cast<uint64_t>(end_ - data_) * 8;
    return ok() && bits - at_ < 8 && Peek() == 0;
  }

 private:
  uint64_t Peek() const {
    const uint64_t byte = at_ / 8;
    if (byte >= static_cast<uint64_t>(end_ - data_)) return 0;
    return Load64Within(data_ + byte, end_) >> at_ % 8;
  }
  const uint8_t* data_;
  const uint8_t* end_;
  uint64_t at_ = 0;
  bool failed_ = false;
};

}  // namespace deltawire::kernels
