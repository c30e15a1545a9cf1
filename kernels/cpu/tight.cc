#include "kernels/cpu/tight.h"

#include "kernels/cpu/range_coder.h"
#include "kernels/cpu/survival.h"
#include "kernels/cpu/tight_block.h"
#include "kernels/cpu/tight_model.h"

namespace deltawire::kernels {
namespace {

constexpr auto kBad = DecodeStatus::kMalformed;
constexpr size_t kMaxGroups = kMaxBlocks;
/// Upper bound of everything before the streams: head, parameters and group sizes.
constexpr size_t kMaxFrontBytes = 1024;

uint64_t MagnitudeOf(uint64_t d, unsigned width) {
  const uint64_t mask = LowMask(8 * width);
  return d >> (8 * width - 1) != 0 ? (0 - d) & mask : d;
}

/// The parameter of the decision "longer than j bits": q1[index] if `first`, else q2[index]; index
/// -1 where x is beyond the classes.
struct LengthContext {
  bool first;
  int index;
};
LengthContext LengthContextOf(unsigned cls, unsigned j) {
  if (j == 1) return {true, static_cast<int>(cls)};
  const unsigned x = cls + j - 1;
  return {false, x > kQ2 ? -1 : static_cast<int>(x) - 1};
}

/// A point that no sum of weights reaches.
constexpr uint64_t kNoPoint = uint64_t{1} << 62;

/// The coder's position in a group: the element in the current block, and the sum of weights since
/// the last event. The sum at element i is Before(i) - origin_, in 64 bits that may wrap.
class Passage {
 public:
  explicit Passage(const TightChunk& chunk) : chunk_(&chunk) {}

  size_t at() const { return at_; }
  uint64_t sum() const { return sum_; }
  /// Starts the next block, and carries the sum over from the block before.
  void StartBlock() {
    at_ = 0;
    origin_ = 0 - sum_;
  }
  /// Moves to element `i`, not before at().
  void MoveTo(size_t i) {
    at_ = i;
    sum_ = chunk_->Before(i) - origin_;
  }
  /// Moves to the first element from at() on whose weight takes the sum above `point`, or before
  /// which a skip is due; to the block's end if there is neither.
  void Seek(size_t elements, uint64_t point) {
    if (sum_ >= kSkipAt) return;
    const TightChunk::Found found = chunk_->Find(at_, origin_ + std::min(point, kSkipAt - 1));
    at_ = found.at;
    sum_ = found.before - origin_;
    if (point < kSkipAt || at_ == elements) return;
    // This element takes the sum to kSkipAt. Unless it also takes the sum above the point, the skip
    // is due at the next element.
    if (sum_ + chunk_->WeightAt(at_) <= point) MoveTo(at_ + 1);
  }
  void Skip() {
    origin_ += sum_;
    sum_ = 0;
  }
  void PassChange(uint32_t weight) {
    ++at_;
    origin_ += sum_ + weight;
    sum_ = 0;
  }

 private:
  const TightChunk* chunk_;
  size_t at_ = 0;
  uint64_t sum_ = 0;
  uint64_t origin_ = 0;
};

// --- encoding ---

class TightEncoder {
 public:
  TightEncoder(TightChunk& chunk, const PayloadView& view) : chunk_(chunk), view_(view) {}

  bool Choose(unsigned rows);
  /// Writes all groups' streams to `out` and returns their bytes; more than `capacity`: they do not
  /// fit.
  size_t PutGroups(uint8_t* out, size_t capacity);
  size_t PutFront(ClassFunction function, unsigned depth, uint32_t context, uint8_t* out) const;
  bool ok() const { return ok_; }

 private:
  bool ReadChanges(size_t block);
  void CountChange(size_t i);
  void PutBlock(size_t block, Passage& passage, RangeEncoder& coder);
  void PutSkips(size_t elements, size_t stop, Passage& passage, RangeEncoder& coder);
  void PutDifference(uint8_t context, uint64_t d, RangeEncoder& coder);

  TightChunk& chunk_;
  const PayloadView& view_;
  TightParameters parameters_;
  TightCounts counts_;
  uint32_t group_sizes_[kMaxGroups] = {};
  size_t groups_ = 0;
  uint32_t changed_ = 0;  ///< changes of the block that was read last
  bool ok_ = true;
};

bool TightEncoder::ReadChanges(size_t block) {
  const BlockRow row = view_.Row(block);
  BlockWork& work = chunk_.work();
  changed_ = row.changed;
  return row.changed == 0 ||
         chunk_.ops().unpack(row, view_.StreamOf(block), view_.end(), chunk_.BlockElements(block),
                             chunk_.width(), work.at, work.d);
}

void TightEncoder::CountChange(size_t i) {
  const BlockWork& work = chunk_.work();
  const uint8_t context = work.contexts[work.at[i]];
  const unsigned cls = ClassOf(context), row = RowOf(context), bits = 8 * chunk_.width();
  ++counts_.rate[row][cls].yes;
  const bool negative = work.d[i] >> (bits - 1) != 0;
  if (row > 0) counts_.same[row][cls].Count(negative == WentDown(context));
  const uint64_t magnitude = MagnitudeOf(work.d[i], chunk_.width());
  const unsigned length = Bits(magnitude);
  for (unsigned j = 1; j <= length && j < bits; ++j) {
    const LengthContext where = LengthContextOf(cls, j);
    if (where.index < 0) continue;
    (where.first ? counts_.q1 : counts_.q2)[where.index].Count(length > j);
  }
  if (length >= 2 && length < bits) counts_.m.Count((magnitude >> (length - 2) & 1) != 0);
}

bool TightEncoder::Choose(unsigned rows) {
  uint32_t exponents[256] = {};
  for (size_t b = 0; b < chunk_.blocks(); ++b) {
    if (!ReadChanges(b)) return false;
    for (uint32_t i = 0; i < changed_; ++i) ++exponents[chunk_.Exponent(b, chunk_.work().at[i])];
  }
  parameters_.rows = rows;
  parameters_.base = ChooseBase(exponents, view_.changed());
  parameters_.group_bits = ChooseGroupBits(view_.changed(), chunk_.blocks());
  chunk_.SetBase(parameters_.base);
  for (size_t b = 0; b < chunk_.blocks(); ++b) {
    if (!chunk_.Prepare(b, &counts_) || !ReadChanges(b)) return false;
    for (uint32_t i = 0; i < changed_; ++i) CountChange(i);
  }
  ChooseParameters(counts_, &parameters_);
  chunk_.SetWeights(parameters_);
  return true;
}

void TightEncoder::PutDifference(uint8_t context, uint64_t d, RangeEncoder& coder) {
  const unsigned cls = ClassOf(context), row = RowOf(context), bits = 8 * chunk_.width();
  const bool negative = d >> (bits - 1) != 0;
  if (row == 0) {
    coder.PutRaw(negative, 1);
  } else {
    coder.PutDecision(negative == WentDown(context), kLevelProbability[parameters_.same[row][cls]]);
  }
  const uint64_t magnitude = MagnitudeOf(d, chunk_.width());
  const unsigned length = Bits(magnitude);
  for (unsigned j = 1; j <= length && j < bits; ++j) {
    const LengthContext where = LengthContextOf(cls, j);
    const uint32_t p = where.index < 0
                           ? kBeyondClasses
                           : kLevelProbability[where.first ? parameters_.q1[where.index]
                                                           : parameters_.q2[where.index]];
    coder.PutDecision(length > j, p);
  }
  if (length < 2 || length == bits) return;
  coder.PutDecision((magnitude >> (length - 2) & 1) != 0, kLevelProbability[parameters_.m]);
  for (unsigned left = length - 2; left > 0;) {
    const unsigned part = std::min(left, kMaxRawBits);
    left -= part;
    coder.PutRaw(magnitude >> left & LowMask(part), part);
  }
}

void TightEncoder::PutBlock(size_t block, Passage& passage, RangeEncoder& coder) {
  const BlockWork& work = chunk_.work();
  const size_t elements = chunk_.BlockElements(block);
  passage.StartBlock();
  for (uint32_t i = 0; i <= changed_; ++i) {
    const size_t stop = i < changed_ ? work.at[i] : elements;
    PutSkips(elements, stop, passage, coder);
    if (i == changed_) break;
    const uint8_t context = work.contexts[stop];
    const uint32_t weight = chunk_.WeightOf(context);
    const uint64_t before = Survival(passage.sum());
    const uint64_t after = Survival(passage.sum() + weight);
    coder.PutEvent(kCertain - before, before - after);
    PutDifference(context, work.d[i], coder);
    passage.PassChange(weight);
  }
}

void TightEncoder::PutSkips(size_t elements, size_t stop, Passage& passage, RangeEncoder& coder) {
  for (;;) {
    if (passage.sum() >= kSkipAt) {
      if (passage.at() == elements) return;  // the skip is due at the next block's first element
      const uint64_t left = Survival(passage.sum());
      coder.PutEvent(kCertain - left, left);
      passage.Skip();
    }
    Passage end = passage;
    end.MoveTo(stop);
    if (end.sum() < kSkipAt) {
      passage = end;
      return;
    }
    passage.Seek(elements, kNoPoint);
  }
}

size_t TightEncoder::PutGroups(uint8_t* out, size_t capacity) {
  const size_t per_group = size_t{1} << parameters_.group_bits;
  size_t size = 0;
  for (size_t b = 0; b < chunk_.blocks(); ++groups_) {
    RangeEncoder coder(out + size, capacity - size);
    Passage passage(chunk_);
    for (size_t last = std::min(b + per_group, chunk_.blocks()); b < last; ++b) {
      ok_ = ok_ && chunk_.Prepare(b, nullptr) && ReadChanges(b);
      if (!ok_) return 0;
      PutBlock(b, passage, coder);
    }
    const uint64_t left = Survival(passage.sum());
    coder.PutEvent(kCertain - left, left);
    const size_t bytes = coder.Finish();
    group_sizes_[groups_] = static_cast<uint32_t>(bytes);
    size += bytes;
    if (size > capacity) return size;
  }
  return size;
}

size_t TightEncoder::PutFront(ClassFunction function, unsigned depth, uint32_t context,
                              uint8_t* out) const {
  out[0] = kFormat;
  out[1] = static_cast<uint8_t>(Codec::kTight);
  out[2] = static_cast<uint8_t>(chunk_.width());
  out[3] = static_cast<uint8_t>(static_cast<unsigned>(function) | parameters_.group_bits << 4);
  out[4] = static_cast<uint8_t>(parameters_.base);
  out[5] = static_cast<uint8_t>(depth);
  size_t size = kTightHeadBytes;
  if (depth > 0) {
    StoreU32(out + size, context);
    size += kContextBytes;
  }
  BitWriter bits(out + size, kMaxFrontBytes - size);
  parameters_.Write(bits);
  const Column sizes = Column::Of(group_sizes_, groups_, 1);
  bits.Put(sizes.Word(), 32);
  for (size_t g = 0; g < groups_; ++g) bits.Put(group_sizes_[g] - sizes.min, sizes.bits);
  return size + bits.Finish();
}

// --- decoding ---

class TightDecoder {
 public:
  explicit TightDecoder(TightChunk& chunk) : chunk_(chunk) {}

  DecodeStatus ReadFront(Bytes tight, size_t front);
  DecodeStatus GetGroups(Bytes tight, PayloadWriter& writer);

 private:
  /// Decodes the changes of one block into chunk_.work(); false when malformed.
  bool GetBlock(size_t block, Passage& passage, RangeDecoder& coder);
  bool GetDifference(uint8_t context, RangeDecoder& coder, uint64_t* d);
  bool ReadPoint(RangeDecoder& coder);

  TightChunk& chunk_;
  TightParameters parameters_;
  uint32_t group_sizes_[kMaxGroups] = {};
  size_t groups_ = 0;
  size_t streams_ = 0;    ///< offset of the first stream in the payload
  uint32_t changed_ = 0;  ///< changes of the block that was decoded last
  uint64_t point_ = 0;    ///< the largest sum of weights that the next event's point allows
};

DecodeStatus TightDecoder::ReadFront(Bytes tight, size_t front) {
  const uint8_t* p = Ptr(tight);
  parameters_.rows = HighestRow(p[5]);
  parameters_.group_bits = p[3] >> 4;
  parameters_.base = p[4];
  BitReader bits(p + front, tight.size() - front);
  if (!parameters_.Read(bits)) return bits.ok() ? kBad : DecodeStatus::kTruncated;
  Column sizes;
  if (!Column::FromWord(static_cast<uint32_t>(bits.Get(32)), &sizes)) return kBad;
  const size_t per_group = size_t{1} << parameters_.group_bits;
  groups_ = (chunk_.blocks() + per_group - 1) / per_group;
  size_t total = 0;
  for (size_t g = 0; g < groups_; ++g) {
    group_sizes_[g] = sizes.min + static_cast<uint32_t>(bits.Get(sizes.bits));
    total += group_sizes_[g];
  }
  if (!bits.ok()) return DecodeStatus::kTruncated;
  if (Column::Of(group_sizes_, groups_, 1).Word() != sizes.Word()) return kBad;
  const unsigned padding = (8 - bits.position() % 8) % 8;
  if (bits.Get(padding) != 0) return kBad;
  streams_ = front + bits.position() / 8;
  if (tight.size() - streams_ < total) return DecodeStatus::kTruncated;
  if (tight.size() - streams_ > total) return kBad;
  chunk_.SetBase(parameters_.base);
  chunk_.SetWeights(parameters_);
  return DecodeStatus::kOk;
}

bool TightDecoder::ReadPoint(RangeDecoder& coder) {
  const uint64_t point = coder.Point();
  if (point >= kCertain) return false;
  point_ = LargestSum(kCertain - point);
  return true;
}

bool TightDecoder::GetDifference(uint8_t context, RangeDecoder& coder, uint64_t* d) {
  const unsigned cls = ClassOf(context), row = RowOf(context), bits = 8 * chunk_.width();
  bool negative;
  if (row == 0) {
    negative = coder.GetBit();
  } else {
    negative =
        coder.GetDecision(kLevelProbability[parameters_.same[row][cls]]) == WentDown(context);
  }
  unsigned length = 1;
  for (; length < bits; ++length) {
    const LengthContext where = LengthContextOf(cls, length);
    const uint32_t p = where.index < 0
                           ? kBeyondClasses
                           : kLevelProbability[where.first ? parameters_.q1[where.index]
                                                           : parameters_.q2[where.index]];
    if (!coder.GetDecision(p)) break;
  }
  uint64_t magnitude = uint64_t{1} << (length - 1);
  if (length == bits) {
    if (!negative) return false;
  } else if (length >= 2) {
    if (coder.GetDecision(kLevelProbability[parameters_.m])) magnitude |= magnitude >> 1;
    for (unsigned left = length - 2; left > 0;) {
      const unsigned part = std::min(left, kMaxRawBits);
      uint64_t raw = 0;
      if (!coder.GetRaw(part, &raw)) return false;
      left -= part;
      magnitude |= raw << left;
    }
  }
  *d = (negative ? 0 - magnitude : magnitude) & LowMask(bits);
  return true;
}

bool TightDecoder::GetBlock(size_t block, Passage& passage, RangeDecoder& coder) {
  BlockWork& work = chunk_.work();
  const size_t elements = chunk_.BlockElements(block);
  passage.StartBlock();
  changed_ = 0;
  for (;;) {
    passage.Seek(elements, point_);
    const size_t at = passage.at();
    if (at == elements) return true;  // the group ends, or its next block follows
    const uint64_t before = Survival(passage.sum());
    if (passage.sum() >= kSkipAt) {
      coder.TakeEvent(kCertain - before, before);
      passage.Skip();
    } else {
      const uint8_t context = work.contexts[at];
      const uint32_t weight = chunk_.WeightOf(context);
      const uint64_t after = Survival(passage.sum() + weight);
      coder.TakeEvent(kCertain - before, before - after);
      work.at[changed_] = static_cast<uint16_t>(at);
      if (!GetDifference(context, coder, &work.d[changed_])) return false;
      ++changed_;
      passage.PassChange(weight);
    }
    if (!ReadPoint(coder)) return false;
  }
}

DecodeStatus TightDecoder::GetGroups(Bytes tight, PayloadWriter& writer) {
  const size_t per_group = size_t{1} << parameters_.group_bits;
  const uint8_t* stream = Ptr(tight) + streams_;
  BlockWork& work = chunk_.work();
  size_t b = 0;
  for (size_t g = 0; g < groups_; stream += group_sizes_[g++]) {
    RangeDecoder coder(stream, group_sizes_[g]);
    Passage passage(chunk_);
    if (!ReadPoint(coder)) return kBad;
    for (size_t last = std::min(b + per_group, chunk_.blocks()); b < last; ++b) {
      if (!chunk_.Prepare(b, nullptr) || !GetBlock(b, passage, coder)) return kBad;
      writer.Add(chunk_.ops().pack(work.at, work.d, changed_, chunk_.BlockElements(b),
                                   chunk_.width(), reinterpret_cast<uint8_t*>(work.past_d),
                                   writer.cursor()));
    }
    const uint64_t left = Survival(passage.sum());
    coder.TakeEvent(kCertain - left, left);
    if (!coder.AtEnd()) return kBad;
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
  // Head and group sizes stand before the streams, but are known only once the streams are written.
  const size_t capacity = payload.size();
  const size_t stream_bytes = encoder.PutGroups(Ptr(out), capacity);
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
  const DecodeStatus streams = decoder.GetGroups(tight, writer);
  if (streams != DecodeStatus::kOk) return streams;
  *bytes = writer.Finish();
  return *bytes > 0 ? DecodeStatus::kOk : kBad;
}

}  // namespace deltawire::kernels
