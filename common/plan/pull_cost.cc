#include "common/plan/pull_cost.h"

#include <algorithm>
#include <map>

#include "common/delta/codec_choice.h"
#include "common/delta/delta.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/wire/frame.h"

namespace deltawire::plan {
namespace {

using kernels::Codec;

double ForBytes(double bytes, double per_second) { return bytes / per_second; }

/// The speeds of all threads of each end together.
struct EndSpeeds {
  CoderSpeeds encode, decode;
};

EndSpeeds SpeedsOf(const Speeds& speeds, const Coding& coding) {
  EndSpeeds ends;
  for (const Coder& coder : Coders()) {
    const ThreadSpeeds& one = speeds.codecs[coder.codec];
    const bool history = coding.history && coder.read_need != nullptr;
    ends.encode[coder.codec] = coding.encode_threads * (history ? one.history_encode : one.encode);
    ends.decode[coder.codec] = coding.decode_threads * (history ? one.history_decode : one.decode);
  }
  return ends;
}

/// Returns sizes over fast's, with the values of the fleet's file.
PerCodec<double> RatiosOf(const Changes& changes, bool history) {
  const ChangeShape shape = ShapeOf(changes.kind);
  PerCodec<double> ratio;
  for (const Coder& coder : Coders()) ratio[coder.codec] = coder.usual_ratio;
  ratio[Codec::kTight] = history ? changes.history_ratio.value_or(shape.history_ratio)
                                 : changes.tight_ratio.value_or(shape.tight_ratio);
  return ratio;
}

class Adder {
 public:
  Adder(const Fleet& fleet, PullCost* cost) : fleet_(fleet), speeds_(fleet.speeds), cost_(*cost) {}

  void Whole(const ChunkSize& size, double count) {
    Frames(kFull, size.bytes, count);
    Seen(0, Receiving(size.bytes));
  }
  struct Delta {
    Codec codec = Codec::kFast;
    double bytes = 0, fast_bytes = 0, changes = 0;
    double encode_seconds = 0, decode_seconds = 0;
  };
  void OfDelta(const ChunkSize& size, double count, const Delta& d) {
    Frames(kernels::FormOf(d.codec), d.bytes, count);
    const double apply =
        size.bytes / speeds_.apply_bytes_per_s + d.changes / speeds_.apply_changes_per_s;
    const double validate = d.changes / speeds_.validate_changes_per_s;
    cost_.fast_bytes += count * d.fast_bytes;
    cost_.encode_seconds += count * d.encode_seconds;
    cost_.decode_seconds += count * d.decode_seconds;
    cost_.receive_seconds += count * (d.decode_seconds + validate);
    cost_.apply_seconds += count * apply;
    Seen(d.encode_seconds, Receiving(d.bytes) + d.decode_seconds + validate);
  }

 private:
  static constexpr size_t kFull = 0;

  double Tls(double bytes) const { return fleet_.tls ? bytes / speeds_.tls_bytes_per_s : 0; }
  double Receiving(double bytes) const {
    return bytes / speeds_.receive_bytes_per_s + Tls(bytes) + speeds_.frame_seconds;
  }
  void Frames(size_t form, double bytes, double count) {
    cost_.chunks[form] += count;
    cost_.bytes[form] += count * bytes;
    cost_.frames += count;
    cost_.payload_bytes += count * bytes;
    cost_.wire_bytes += count * (bytes + wire::kFrameHeaderBytes);
    cost_.send_seconds +=
        count * (bytes / speeds_.send_bytes_per_s + Tls(bytes) + speeds_.frame_seconds);
    cost_.receive_seconds += count * Receiving(bytes);
  }
  void Seen(double first, double last) {
    cost_.first_chunk_seconds = std::max(cost_.first_chunk_seconds, first);
    cost_.last_chunk_seconds = std::max(cost_.last_chunk_seconds, last);
  }

  const Fleet& fleet_;
  const Speeds& speeds_;
  PullCost& cost_;
};

}  // namespace

StatusOr<CutChunks> CutModel(const Model& model) {
  const unsigned width = DTypeBytes(model.dtype);
  const auto elements = static_cast<uint64_t>(model.bytes) / width;
  const uint64_t tensors = std::min(model.tensors, std::max<uint64_t>(1, elements));
  std::vector<TensorMeta> metas;
  metas.reserve(tensors);
  for (uint64_t t = 0; t < tensors; ++t) {
    const uint64_t more = t < elements % tensors ? 1 : 0;
    metas.push_back({fmt::format("t{}", t), model.dtype, {elements / tensors + more}});
  }
  DW_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(std::move(metas)));
  DW_ASSIGN_OR_RETURN(const ChunkTable table, ChunkTable::Create(layout));
  std::map<std::pair<uint32_t, unsigned>, double> sizes;
  for (uint32_t i = 0; i < table.size(); ++i) sizes[{table[i].bytes, table[i].width}] += 1;
  CutChunks cut;
  for (const auto& [size, count] : sizes) cut.sizes.push_back({size.first, size.second, count});
  cut.chunks = table.size();
  cut.bytes = static_cast<double>(layout.total_bytes());
  cut.elements = cut.bytes / width;
  return cut;
}

bool PullCost::looks_back() const {
  return std::ranges::any_of(Coders(), [this](const Coder& coder) {
    return coder.read_need != nullptr && chunks[kernels::FormOf(coder.codec)] > 0;
  });
}

PullCost FullPull(const Fleet& fleet, const CutChunks& model) {
  PullCost cost;
  Adder adder(fleet, &cost);
  for (const ChunkSize& size : model.sizes) adder.Whole(size, size.count);
  cost.changed_elements = model.elements;
  return cost;
}

PullCost DeltaPull(const Fleet& fleet, const CutChunks& model, const Coding& coding) {
  const Changes& changes = fleet.changes;
  const double density = changes.density / changes.touched;
  const double difference_bits =
      changes.difference_bits.value_or(ShapeOf(changes.kind).difference_bits);
  const PerCodec<double> ratio = RatiosOf(changes, coding.history);
  const auto [encode, decode] = SpeedsOf(fleet.speeds, coding);
  PullCost cost;
  Adder adder(fleet, &cost);
  for (const ChunkSize& size : model.sizes) {
    const uint64_t elements = size.bytes / size.width;
    const double changed = ChunkChanges(elements, density);
    if (changed <= 0) continue;
    const double count = size.count * changes.touched * changed;
    Adder::Delta d;
    d.changes = density * static_cast<double>(elements) / changed;
    d.fast_bytes = d.bytes = FastBytes(size.bytes, size.width,
                                       d.changes / static_cast<double>(elements), difference_bits);
    cost.changed_elements += count * d.changes;
    if (!WorthSending(static_cast<size_t>(d.fast_bytes), size.bytes)) {
      adder.Whole(size, count);
      continue;
    }
    CodecChoiceInputs in;
    in.chunk_bytes = size.bytes;
    in.fast_bytes = static_cast<size_t>(d.fast_bytes);
    in.link_bytes_per_s = coding.link_bytes_per_s;
    in.encode = encode;
    in.decode = decode;
    in.ratio = ratio;
    d.codec = coding.codec ? *coding.codec : ChooseCodec(in);
    if (const Coder* coder = CoderOf(d.codec); coder != nullptr) {
      const double work = coder->work(size.bytes, in.fast_bytes);
      d.bytes = d.fast_bytes * ratio[d.codec];
      d.encode_seconds = work / encode[d.codec] * coding.encode_threads;
      d.decode_seconds = work / decode[d.codec] * coding.decode_threads;
    }
    adder.OfDelta(size, count, d);
  }
  return cost;
}

double PublishSeconds(const Fleet& fleet, const CutChunks& model, bool full) {
  const Speeds& s = fleet.speeds;
  const double left = 1 - fleet.trainer.early_diff;
  const double chunks = static_cast<double>(model.chunks) * s.publish_chunk_seconds;
  const double changes = full ? 0 : model.elements * fleet.changes.density;
  return left *
         (ForBytes(model.bytes, s.diff_bytes_per_s) + changes / s.encode_changes_per_s + chunks);
}

}  // namespace deltawire::plan
