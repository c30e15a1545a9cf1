#include "kernels/cpu/tight.h"

#include <array>

#include "kernels/cpu/tight_block.h"
#include "kernels/cpu/tight_model.h"

namespace deltawire::kernels {
namespace {

constexpr auto kBad = DecodeStatus::kMalformed;
/// Upper bound of everything before the streams: head, parameters and sizes of lanes.
constexpr size_t kMaxFrontBytes = 1024;

// --- encoding ---

class TightEncoder {
 public:
  TightEncoder(TightChunk& chunk, const PayloadView& view) : chunk_(chunk), view_(view) {}

  bool Choose(unsigned rows);
  /// Writes all streams to `out` and returns their bytes; more than `capacity` means that they do
  /// not fit.
  size_t PutStreams(uint8_t* out, size_t capacity);
  size_t PutFront(ClassFunction function, unsigned depth, uint32_t context, uint8_t* out) const;
  bool ok() const { return ok_; }

 private:
  /// The number of changes by exponent and by length of abs(d).
  using Lengths = std::array<uint32_t, size_t{256} * kBitLengths>;

  unsigned lanes() const { return 1u << parameters_.lane_bits; }
  bool ReadChanges(const BlockCursor& cursor, size_t block);
  template <typename T>
  void CountBlock(size_t block, Lengths& lengths);
  bool ReadAll(Lengths& lengths);
  void FetchCounted(size_t block);
  void CountLengths(const Lengths& lengths);
  void CountElements();
  void CountLength(unsigned cls, unsigned length, uint32_t changes);
  bool CountWithHistory();
  void PutBlocks(LaneEncoder* encoders);

  TightChunk& chunk_;
  const PayloadView& view_;
  TightParameters parameters_;
  TightCounts counts_;
  uint32_t sizes_[kMaxLanes] = {};
  uint16_t* at_ = nullptr;  ///< the changes of the last block read
  uint64_t* d_ = nullptr;
  uint32_t changed_ = 0;
  uint32_t counted_each_ = 1;  ///< one in this many changes is counted
  uint32_t next_counted_ = 0;  ///< index of the first counted change in the next block
  bool kept_ = false;          ///< the scratch has the changes of all blocks
  bool ok_ = true;
};

/// Reads a block's changes, unless the scratch has them already. Call it in the blocks' order.
bool TightEncoder::ReadChanges(const BlockCursor& cursor, size_t block) {
  BlockWork& work = chunk_.work();
  const BlockRow& row = cursor.row();
  const bool first = block == 0 || view_.changed() > kBlockElements;
  at_ = first ? work.at : at_ + changed_;
  d_ = first ? work.d : d_ + changed_;
  changed_ = row.changed;
  return kept_ || row.changed == 0 ||
         chunk_.ops().unpack(row, cursor.stream(), view_.end(), chunk_.BlockElements(block),
                             chunk_.width(), at_, d_);
}

template <typename T>
void TightEncoder::CountBlock(size_t block, Lengths& lengths) {
  constexpr unsigned kBits = 8 * sizeof(T);
  const uint8_t* data = chunk_.BlockData(block);
  const ClassFunction function = chunk_.function();
  TightCounts::Share second;
  for (uint32_t i = next_counted_; i < changed_; i += counted_each_) {
    const uint64_t magnitude = Magnitude(static_cast<T>(d_[i]));
    const unsigned length = Bits(magnitude);
    ++lengths[ExponentOf(LoadElement<T>(data, at_[i]), function) * kBitLengths + length];
    const bool counts = length >= 2 && length < kBits;
    second.of += counts;
    second.yes += counts && (magnitude << 2 >> length & 1) != 0;
  }
  counts_.m.yes += second.yes;
  counts_.m.of += second.of;
  const uint32_t counted =
      changed_ > next_counted_ ? (changed_ - next_counted_ - 1) / counted_each_ + 1 : 0;
  next_counted_ += counted * counted_each_ - changed_;
}

/// Reads all blocks and counts by exponents, which needs no classes.
bool TightEncoder::ReadAll(Lengths& lengths) {
  if (view_.changed() > kCountAllChanges) counted_each_ = kCountedChange;
  const auto count = [&](size_t b) {
    WithWidth(chunk_.width(), [&]<typename T>(T) { CountBlock<T>(b, lengths); });
  };
  const bool keep = view_.changed() <= kBlockElements;
  BlockCursor cursor(view_);
  for (size_t b = 0; b < chunk_.blocks(); ++b, cursor.Next()) {
    if (!ReadChanges(cursor, b)) return false;
    if (keep) {
      FetchCounted(b);
    } else {
      count(b);
    }
  }
  kept_ = keep;
  if (!keep) return true;
  // Comes late, when the changed elements have arrived in the cache.
  next_counted_ = 0;
  BlockCursor again(view_);
  for (size_t b = 0; b < chunk_.blocks(); ++b, again.Next()) {
    if (!ReadChanges(again, b)) return false;
    count(b);
  }
  return true;
}

/// Prefetches the old values of the counted changes.
void TightEncoder::FetchCounted(size_t block) {
  const uint8_t* data = chunk_.BlockData(block);
  uint32_t i = next_counted_;
  for (; i < changed_; i += counted_each_) {
    __builtin_prefetch(data + at_[i] * size_t{chunk_.width()}, 0, 2);  // to the second level
  }
  next_counted_ = i - changed_;
}

void TightEncoder::CountLength(unsigned cls, unsigned length, uint32_t changes) {
  for (unsigned j = 1; j <= length && j < 8 * chunk_.width(); ++j) {
    const unsigned x = cls + j - 1;
    if (j > 1 && x > kQ2) return;
    TightCounts::Share& share = j == 1 ? counts_.q1[cls] : counts_.q2[x - 1];
    share.yes += length > j ? changes : 0;
    share.of += changes;
  }
}

void TightEncoder::CountLengths(const Lengths& lengths) {
  for (unsigned e = 0; e < 256; ++e) {
    const unsigned cls = ClassOfExponent(e, parameters_.base);
    for (unsigned length = 1; length <= 8 * chunk_.width(); ++length) {
      const uint32_t changes = lengths[e * kBitLengths + length];
      if (changes == 0) continue;
      CountLength(cls, length, changes);
      if (chunk_.depth() == 0) counts_.rate[0][cls].yes += changes * counted_each_;
    }
  }
}

/// Counts the elements of classes. If changes are sampled, any class may have some.
void TightEncoder::CountElements() {
  chunk_.CountClasses(&counts_);
  const bool some_changes = counted_each_ > 1;
  if (!some_changes && chunk_.elements() <= kCountAllElements) return;
  for (TightCounts::Share& share : counts_.rate[0]) {
    if (some_changes) share.yes = std::max(share.yes, 1u);
    share.of = std::max(share.of, share.yes + 1);
  }
}

bool TightEncoder::CountWithHistory() {
  BlockCursor cursor(view_);
  for (size_t b = 0; b < chunk_.blocks(); ++b, cursor.Next()) {
    if (!chunk_.Prepare(b, &counts_) || !ReadChanges(cursor, b)) return false;
    for (uint32_t i = 0; i < changed_; ++i) {
      const uint8_t context = chunk_.contexts()[at_[i]];
      const unsigned cls = ClassOf(context), row = RowOf(context);
      ++counts_.rate[row][cls].yes;
      const bool negative = d_[i] >> (8 * chunk_.width() - 1) != 0;
      if (row > 0) counts_.same[row][cls].Count(negative == WentDown(context));
    }
  }
  return true;
}

bool TightEncoder::Choose(unsigned rows) {
  Lengths lengths{};
  if (!ReadAll(lengths)) return false;
  uint32_t exponents[256] = {};
  for (unsigned e = 0; e < 256; ++e) {
    for (unsigned l = 1; l <= 8 * chunk_.width(); ++l) exponents[e] += lengths[e * kBitLengths + l];
  }
  parameters_.rows = rows;
  const uint32_t counted = (view_.changed() - 1) / counted_each_ + 1;
  parameters_.base = ChooseBase(exponents, counted);
  parameters_.lane_bits = ChooseLaneBits(view_.changed());
  chunk_.SetBase(parameters_.base);
  CountLengths(lengths);
  if (chunk_.depth() == 0) {
    CountElements();
  } else if (!CountWithHistory()) {
    return false;
  }
  ChooseParameters(counts_, &parameters_);
  chunk_.SetParameters(parameters_);
  return true;
}

void TightEncoder::PutBlocks(LaneEncoder* encoders) {
  BlockCursor cursor(view_);
  for (size_t b = 0; b < chunk_.blocks(); ++b, cursor.Next()) {
    ok_ = ok_ && chunk_.Prepare(b, nullptr) && ReadChanges(cursor, b);
    if (!ok_) return;
    chunk_.ops().put(chunk_.model(), chunk_.view(), encoders, parameters_.lane_bits, at_, d_,
                     changed_);
  }
  for (unsigned i = 0; i < lanes(); ++i) {
    encoders[i].PutRest();
    sizes_[i] = static_cast<uint32_t>(encoders[i].coder.Finish());
  }
}

size_t TightEncoder::PutStreams(uint8_t* out, size_t capacity) {
  // Every lane writes to its own part of `out`, which nearly always has enough room.
  const size_t room = capacity / lanes();
  LaneEncoder encoders[kMaxLanes];
  for (unsigned i = 0; i < lanes(); ++i) encoders[i].coder = {out + i * room, room};
  PutBlocks(encoders);
  size_t size = 0;
  bool fit = true;
  for (unsigned i = 0; i < lanes(); ++i) {
    fit = fit && sizes_[i] <= room;
    if (fit && size < i * room) std::memmove(out + size, out + i * room, sizes_[i]);
    size += sizes_[i];
  }
  if (fit || size > capacity) return size;
  // It has not: write one lane after the other, each with all the remaining room. Lanes without
  // room are coded too, to no effect.
  uint32_t sizes[kMaxLanes] = {};
  size = 0;
  for (unsigned i = 0; i < lanes(); ++i) {
    for (unsigned j = 0; j < lanes(); ++j) {
      encoders[j] = {};
      if (j == i) encoders[j].coder = {out + size, capacity - size};
    }
    PutBlocks(encoders);
    sizes[i] = sizes_[i];
    size += sizes[i];
  }
  std::copy_n(sizes, kMaxLanes, sizes_);
  return size;
}

size_t TightEncoder::PutFront(ClassFunction function, unsigned depth, uint32_t context,
                              uint8_t* out) const {
  out[0] = kFormat;
  out[1] = static_cast<uint8_t>(Codec::kTight);
  out[2] = static_cast<uint8_t>(chunk_.width());
  out[3] = static_cast<uint8_t>(static_cast<unsigned>(function) | parameters_.lane_bits << 4);
  out[4] = static_cast<uint8_t>(parameters_.base);
  out[5] = static_cast<uint8_t>(depth);
  size_t size = kTightHeadBytes;
  if (depth > 0) {
    StoreU32(out + size, context);
    size += kContextBytes;
  }
  BitWriter bits(out + size, kMaxFrontBytes - size);
  parameters_.Write(bits);
  const Column sizes = Column::Of(sizes_, lanes(), 1);
  bits.Put(sizes.Word(), 32);
  for (unsigned i = 0; i < lanes(); ++i) bits.Put(sizes_[i] - sizes.min, sizes.bits);
  return size + bits.Finish();
}

// --- decoding ---

class TightDecoder {
 public:
  explicit TightDecoder(TightChunk& chunk) : chunk_(chunk) {}

  DecodeStatus ReadFront(Bytes tight, size_t front);
  DecodeStatus GetStreams(Bytes tight, PayloadWriter& writer);

 private:
  unsigned lanes() const { return 1u << parameters_.lane_bits; }
  size_t JoinLanes(const LaneDecoder* decoders);

  TightChunk& chunk_;
  TightParameters parameters_;
  uint32_t sizes_[kMaxLanes] = {};
  size_t streams_ = 0;  ///< offset of the first stream in the payload
};

DecodeStatus TightDecoder::ReadFront(Bytes tight, size_t front) {
  const uint8_t* p = Ptr(tight);
  parameters_.rows = HighestRow(p[5]);
  parameters_.lane_bits = p[3] >> 4;
  if (parameters_.lane_bits > kMaxLaneBits) return kBad;
  parameters_.base = p[4];
  BitReader bits(p + front, tight.size() - front);
  if (!parameters_.Read(bits)) return bits.ok() ? kBad : DecodeStatus::kTruncated;
  Column sizes;
  if (!Column::FromWord(static_cast<uint32_t>(bits.Get(32)), &sizes)) return kBad;
  size_t total = 0;
  for (unsigned i = 0; i < lanes(); ++i) {
    sizes_[i] = sizes.min + static_cast<uint32_t>(bits.Get(sizes.bits));
    total += sizes_[i];
  }
  if (!bits.ok()) return DecodeStatus::kTruncated;
  if (Column::Of(sizes_, lanes(), 1).Word() != sizes.Word()) return kBad;
  const unsigned padding = (8 - bits.position() % 8) % 8;
  if (bits.Get(padding) != 0) return kBad;
  streams_ = front + bits.position() / 8;
  if (tight.size() - streams_ < total) return DecodeStatus::kTruncated;
  if (tight.size() - streams_ > total) return kBad;
  chunk_.SetBase(parameters_.base);
  chunk_.SetParameters(parameters_);
  return DecodeStatus::kOk;
}

/// Joins the lanes' changes of a block into one list; returns their number.
size_t TightDecoder::JoinLanes(const LaneDecoder* decoders) {
  BlockWork& work = chunk_.work();
  size_t changed = decoders[0].changed;
  for (unsigned i = 1; i < lanes(); ++i) {
    const size_t first = chunk_.view().First(i, parameters_.lane_bits);
    std::memmove(work.at + changed, work.at + first, decoders[i].changed * sizeof(*work.at));
    std::memmove(work.d + changed, work.d + first, decoders[i].changed * sizeof(*work.d));
    changed += decoders[i].changed;
  }
  return changed;
}

DecodeStatus TightDecoder::GetStreams(Bytes tight, PayloadWriter& writer) {
  const uint8_t* stream = Ptr(tight) + streams_;
  LaneDecoder decoders[kMaxLanes];
  for (unsigned i = 0; i < lanes(); stream += sizes_[i++]) {
    decoders[i].coder = RangeDecoder(stream, sizes_[i]);
    if (!decoders[i].ReadPoint()) return kBad;
  }
  BlockWork& work = chunk_.work();
  for (size_t b = 0; b < chunk_.blocks(); ++b) {
    if (!chunk_.Prepare(b, nullptr) || !chunk_.ops().get(chunk_.model(), chunk_.view(), decoders,
                                                         parameters_.lane_bits, work.at, work.d)) {
      return kBad;
    }
    writer.Add(chunk_.ops().pack(work.at, work.d, JoinLanes(decoders), chunk_.BlockElements(b),
                                 chunk_.width(), reinterpret_cast<uint8_t*>(work.dense),
                                 writer.cursor()));
  }
  for (unsigned i = 0; i < lanes(); ++i) {
    if (!decoders[i].Finish()) return kBad;
  }
  return DecodeStatus::kOk;
}

}  // namespace

DecodeStatus ReadTightHead(Bytes payload, TightHead* head) {
  if (payload.size() < kTightHeadBytes) return DecodeStatus::kTruncated;
  const uint8_t* p = Ptr(payload);
  const unsigned function = p[3] & 15;
  if (p[0] != kFormat || p[1] != static_cast<uint8_t>(Codec::kTight)) return kBad;
  if (function > static_cast<unsigned>(ClassFunction::kF8E5M2) || p[3] >> 6 != 0) return kBad;
  if (p[5] > kMaxHistory) return kBad;
  *head = {static_cast<ClassFunction>(function), p[5], 0};
  if (head->depth == 0) return DecodeStatus::kOk;
  if (payload.size() < kTightHeadBytes + kContextBytes) return DecodeStatus::kTruncated;
  head->context = LoadU32(p + kTightHeadBytes);
  return DecodeStatus::kOk;
}

DecodeStatus TightEncode(const BlockOps& ops, Bytes old_data, Bytes payload, unsigned width,
                         ClassFunction function, const History& history, MutableBytes scratch,
                         MutableBytes out, size_t* bytes) {
  *bytes = 0;
  PayloadView view;
  const DecodeStatus s = PayloadView::Parse(payload, old_data.size(), width, &view);
  if (s != DecodeStatus::kOk) return s;
  if (scratch.size() < kTightScratchBytes || out.size() < payload.size() ||
      history.deltas.size() > kMaxHistory) {
    return DecodeStatus::kTooLarge;
  }
  const auto depth = static_cast<unsigned>(history.deltas.size());
  TightChunk chunk(ops, old_data, width, function, history, depth, scratch);
  TightEncoder encoder(chunk, view);
  if (!encoder.Choose(HighestRow(depth))) return kBad;
  // Head and sizes of lanes come before the streams, but are known only once the streams are
  // written.
  const size_t capacity = payload.size();
  const size_t stream_bytes = encoder.PutStreams(Ptr(out), capacity);
  if (!encoder.ok()) return kBad;
  if (stream_bytes > capacity) return DecodeStatus::kOk;
  uint8_t front[kMaxFrontBytes];
  const size_t front_bytes = encoder.PutFront(function, depth, history.context, front);
  if (front_bytes + stream_bytes >= payload.size()) return DecodeStatus::kOk;
  std::memmove(out.data() + front_bytes, out.data(), stream_bytes);
  std::memcpy(out.data(), front, front_bytes);
  *bytes = front_bytes + stream_bytes;
  return DecodeStatus::kOk;
}

DecodeStatus TightDecode(const BlockOps& ops, Bytes old_data, Bytes tight, unsigned width,
                         const History& history, MutableBytes scratch, MutableBytes out,
                         size_t* bytes) {
  *bytes = 0;
  TightHead head;
  if (!SizesAllowed(old_data.size(), width)) return kBad;
  const DecodeStatus s = ReadTightHead(tight, &head);
  if (s != DecodeStatus::kOk) return s;
  const unsigned fits = WidthOf(head.function);
  if (Ptr(tight)[2] != width || (fits != 0 && fits != width)) return kBad;
  if (history.deltas.size() < head.depth) return kBad;
  if (scratch.size() < kTightScratchBytes || out.size() < MaxEncodedBytes(old_data.size(), width)) {
    return DecodeStatus::kTooLarge;
  }
  TightChunk chunk(ops, old_data, width, head.function, history, head.depth, scratch);
  TightDecoder decoder(chunk);
  const DecodeStatus front =
      decoder.ReadFront(tight, kTightHeadBytes + (head.depth > 0 ? kContextBytes : 0));
  if (front != DecodeStatus::kOk) return front;
  PayloadWriter writer(out, chunk.elements(), width);
  const DecodeStatus streams = decoder.GetStreams(tight, writer);
  if (streams != DecodeStatus::kOk) return streams;
  *bytes = writer.Finish();
  return *bytes > 0 ? DecodeStatus::kOk : kBad;
}

}  // namespace deltawire::kernels
