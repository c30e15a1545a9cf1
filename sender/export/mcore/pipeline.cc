// The pipeline's part of parallel.h: the layers of each chunk.
#include <algorithm>
#include <charconv>
#include <numeric>

#include "sender/export/mcore/parallel.h"

namespace deltawire::mcore {
namespace {

constexpr size_t kMaxLayoutChars = 1 << 20;

Status BadLayout(std::string_view layout, std::string_view why) {
  return Errorf(StatusCode::kInvalidArgument, "pipeline layout \"{}\": {}", layout, why);
}

/// Reads "*n" at `at` and moves past it. Returns 1 if there is none, 0 if it is malformed.
uint32_t Repeats(std::string_view text, size_t* at) {
  if (*at >= text.size() || text[*at] != '*') return 1;
  uint32_t n = 0;
  const char* begin = text.data() + *at + 1;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), n);
  if (error != std::errc{}) return 0;
  *at = static_cast<size_t>(end - text.data());
  return n;
}

/// Returns the number of layers of each pipeline rank, if no layout string is given.
StatusOr<std::vector<uint32_t>> StageSizes(const ParallelConfig& c, uint32_t layers) {
  const uint32_t first = c.first_stage_layers, last = c.last_stage_layers;
  std::vector<uint32_t> sizes(c.pp, 0);
  if (first == 0 && last == 0) {
    const uint32_t counted =
        layers + (c.account_for_embedding ? 1 : 0) + (c.account_for_loss ? 1 : 0);
    if (counted % (c.pp * c.vpp) != 0) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{} layers{} cannot be cut evenly into {} stages of {} chunks; give "
                    "first_stage_layers, last_stage_layers or layout",
                    layers, counted != layers ? " (with the embedding and the loss counted)" : "",
                    c.pp, c.vpp);
    }
    std::fill(sizes.begin(), sizes.end(), counted / c.pp);
    return sizes;
  }
  if (c.account_for_embedding || c.account_for_loss) {
    return absl::InvalidArgumentError(
        "first_stage_layers and last_stage_layers do not go with account_for_embedding and "
        "account_for_loss; drop one of them");
  }
  const uint32_t set = (first != 0 ? 1 : 0) + (last != 0 ? 1 : 0);
  if (c.pp < set || first + last > layers) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "first_stage_layers={} and last_stage_layers={} do not fit {} layers on {} stages", first,
        last, layers, c.pp);
  }
  const uint32_t middle = c.pp - set, left = layers - first - last;
  if ((middle == 0) != (left == 0) || (middle != 0 && left % middle != 0)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the {} layers beside the first and the last stage's cannot be cut evenly over "
                  "{} stages",
                  left, middle);
  }
  std::fill(sizes.begin(), sizes.end(), middle == 0 ? 0 : left / middle);
  if (first != 0) sizes.front() = first;
  if (last != 0) sizes.back() = last;
  for (const uint32_t n : sizes) {
    if (n % c.vpp != 0) {
      return Errorf(StatusCode::kInvalidArgument,
                    "a stage of {} layers cannot be cut into {} chunks", n, c.vpp);
    }
  }
  return sizes;
}

/// Checks megatron-core's rules for the places of layers (pipeline_parallel_layer_layout.py,
/// validate_layer_layout). Stage i is chunk i / pp of rank i % pp.
Status CheckPlaces(const ParallelConfig& c, const std::vector<std::string>& stages) {
  const std::string all = fmt::format("{}", fmt::join(stages, ""));
  if (!all.starts_with('E')) return BadLayout(c.layout, "the first layer must be E, the embedding");
  if (!all.ends_with('L')) return BadLayout(c.layout, "the last layer must be L, the output layer");
  for (const char once : {'E', 'L'}) {
    if (std::count(all.begin(), all.end(), once) == 1) continue;
    return BadLayout(c.layout, fmt::format("{} must be there exactly once", once));
  }
  const size_t mtp = all.find('m');
  if (mtp == std::string::npos) return absl::OkStatus();
  if (all.find('t', mtp) != std::string::npos) {
    return BadLayout(c.layout, "decoder layers (t) must stand before MTP layers (m)");
  }
  size_t with_mtp = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].find('m') == std::string::npos) continue;
    ++with_mtp;
    if (i / c.pp + 1 != c.vpp) {
      return BadLayout(c.layout, "MTP layers must stand in the last virtual stage of their rank");
    }
  }
  if (with_mtp > 1) return BadLayout(c.layout, "all MTP layers must stand in one stage");
  return absl::OkStatus();
}

StatusOr<std::vector<PipelineChunk>> FromLayout(const ParallelConfig& c) {
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> stages, ExpandLayout(c.layout));
  if (stages.size() != size_t{c.pp} * c.vpp) {
    return BadLayout(c.layout, fmt::format("has {} stages; pp * vpp is {}", stages.size(),
                                           size_t{c.pp} * c.vpp));
  }
  DW_RETURN_IF_ERROR(CheckPlaces(c, stages));
  std::vector<PipelineChunk> chunks(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    for (const char letter : stages[i]) {
      switch (letter) {
        case 'E':
          chunks[i].embedding = true;
          break;
        case 't':
          ++chunks[i].layers;
          break;
        case 'm':
          ++chunks[i].mtp_layers;
          break;
        case 'L':
          chunks[i].head = true;
          break;
        default:
          return BadLayout(c.layout, fmt::format("'{}' is none of E, t, m, L", letter));
      }
    }
  }
  return chunks;
}

}  // namespace

StatusOr<std::vector<std::string>> ExpandLayout(std::string_view layout) {
  std::string text(layout);
  std::erase_if(text, [](char c) { return c == ',' || c == ' '; });
  const auto too_long = [&] { return BadLayout(layout, "is too long when written out"); };
  // Expand innermost groups first.
  for (size_t close; (close = text.find(')')) != std::string::npos;) {
    const size_t open = text.rfind('(', close);
    if (open == std::string::npos) return BadLayout(layout, "has a ')' without '('");
    size_t end = close + 1;
    const uint32_t n = Repeats(text, &end);
    if (n == 0) return BadLayout(layout, "has a '*' without a positive number");
    const std::string body = text.substr(open + 1, close - open - 1);
    if (body.size() * n > kMaxLayoutChars) return too_long();
    std::string repeated;
    for (uint32_t i = 0; i < n; ++i) repeated += body;
    text.replace(open, end - open, repeated);
    if (text.size() > kMaxLayoutChars) return too_long();
  }
  std::vector<std::string> stages(1);
  size_t total = 0;
  for (size_t i = 0; i < text.size();) {
    const char letter = text[i++];
    if (letter == '(' || letter == '*') return BadLayout(layout, "is not balanced");
    const uint32_t n = Repeats(text, &i);
    if (n == 0) return BadLayout(layout, "has a '*' without a positive number");
    if ((total += n) > kMaxLayoutChars) return too_long();
    for (uint32_t k = 0; k < n; ++k) {
      if (letter == '|') {
        stages.emplace_back();
      } else {
        stages.back() += letter;
      }
    }
  }
  return stages;
}

StatusOr<std::vector<PipelineChunk>> CutPipeline(const ParallelConfig& c, uint32_t layers,
                                                 uint32_t mtp_layers) {
  std::vector<PipelineChunk> chunks(size_t{c.pp} * c.vpp);
  if (!c.layout.empty()) {
    if (c.first_stage_layers != 0 || c.last_stage_layers != 0 || c.account_for_embedding ||
        c.account_for_loss) {
      return absl::InvalidArgumentError(
          "a pipeline layout says all of it; drop first_stage_layers, last_stage_layers, "
          "account_for_embedding and account_for_loss");
    }
    DW_ASSIGN_OR_RETURN(chunks, FromLayout(c));
  } else {
    DW_ASSIGN_OR_RETURN(const std::vector<uint32_t> sizes, StageSizes(c, layers));
    for (size_t i = 0; i < chunks.size(); ++i) chunks[i].layers = sizes[i % c.pp] / c.vpp;
    // If the embedding and the loss count as layers, each uses the place of one.
    const auto take = [&](PipelineChunk& chunk) {
      if (chunk.layers > 0) --chunk.layers;
    };
    if (c.account_for_embedding) take(chunks.front());
    if (c.account_for_loss) take(chunks.back());
    chunks.front().embedding = true;
    chunks.back().head = true;
    chunks.back().mtp_layers = mtp_layers;
  }
  uint32_t next = 0, next_mtp = 0;
  for (PipelineChunk& chunk : chunks) {
    chunk.first_layer = next;
    chunk.first_mtp = next_mtp;
    next += chunk.layers;
    next_mtp += chunk.mtp_layers;
  }
  const auto count = [&](auto member) {
    return std::count_if(chunks.begin(), chunks.end(), [&](const auto& k) { return k.*member; });
  };
  if (next != layers || next_mtp != mtp_layers || count(&PipelineChunk::embedding) != 1 ||
      count(&PipelineChunk::head) != 1) {
    return Errorf(StatusCode::kInvalidArgument,
                  "the pipeline's stages hold {} layers and {} MTP layers, {} embeddings and {} "
                  "output layers; the model has {} and {}, and one of each",
                  next, next_mtp, count(&PipelineChunk::embedding), count(&PipelineChunk::head),
                  layers, mtp_layers);
  }
  // Without MTP the final norm is before the output layer. With MTP it is on the last decoder
  // layer's chunk, because the MTP layers read the normed states.
  for (PipelineChunk& chunk : chunks) {
    chunk.final_norm = mtp_layers == 0
                           ? chunk.head
                           : chunk.layers > 0 && chunk.first_layer + chunk.layers == layers;
  }
  return chunks;
}

}  // namespace deltawire::mcore
