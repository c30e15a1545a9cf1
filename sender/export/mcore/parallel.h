// The cut of a Megatron job: the sizes of the parallel dimensions, each rank's place, the layers of
// each pipeline chunk. The rules come from Megatron-LM's rank order "tp-cp-ep-dp-pp" and its layer
// offsets. Errors name the field and the legal values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire::mcore {

/// The Megatron module family that built the layers. Their parameter names differ.
enum class Spec : uint8_t { kTransformerEngine, kLocal };
/// One parameter per local expert of a grouped module, or one module per expert.
enum class ExpertModules : uint8_t { kGrouped, kSequential };

/// A version of megatron-core: 0.`minor`.
struct CoreVersion {
  /// Since this version the MTP layers' stage has an output layer only if it also computes the
  /// loss. No release before 0.16 allows MTP layers on another stage.
  static constexpr uint32_t kMtpWithoutHead = 15;
  /// Since this version: mtp_model_layer. and Megatron-Bridge's visual.
  static constexpr uint32_t kNewNames = 19;

  uint32_t minor = 16;  ///< the version that the tests run

  /// Parses "0.16" or "0.16.1".
  static StatusOr<CoreVersion> Parse(std::string_view text);
  bool operator==(const CoreVersion&) const = default;
};

struct ParallelConfig {
  uint32_t tp = 1;   ///< tensor
  uint32_t pp = 1;   ///< pipeline
  uint32_t vpp = 1;  ///< chunks (virtual stages) per pipeline rank
  uint32_t ep = 1;   ///< expert
  uint32_t etp = 0;  ///< expert tensor; 0: the same as tp, Megatron's default
  uint32_t cp = 1;   ///< context; holds copies
  uint32_t dp = 0;   ///< data; holds copies; 0: the smallest possible

  uint32_t first_stage_layers = 0;  ///< num_layers_in_first_pipeline_stage; 0: not set
  uint32_t last_stage_layers = 0;   ///< num_layers_in_last_pipeline_stage; 0: not set
  bool account_for_embedding = false;
  bool account_for_loss = false;
  std::string layout;  ///< pipeline_model_parallel_layout, e.g. "Ettt|(tt|)*29,m|L"

  uint32_t vocab_divisor = 128;  ///< make_vocab_size_divisible_by
  uint64_t padded_vocab = 0;     ///< rows of the padded vocabulary; 0: by the divisor

  Spec spec = Spec::kTransformerEngine;
  ExpertModules experts = ExpertModules::kGrouped;
  uint32_t glu_interleave = 0;         ///< moe_mlp_glu_interleave_size; 0: off
  uint32_t shared_glu_interleave = 0;  ///< moe_shared_expert_glu_interleave_size; 0: off
  bool mla_down_fusion = false;        ///< mla_down_proj_fusion
  bool mtp = true;     ///< the job has config.json's MTP layers; false: they stay unchanged
  bool vision = true;  ///< the same for modules that a family passes through (vision towers)
  CoreVersion core;    ///< names and the MTP stage's parameters depend on it

  /// Parses "tp=4,pp=2,ep=8,world=64,spec=local", or a JSON object with the same keys (`deltawire
  /// convert` writes one beside shards). `world` sets dp. A repeated key is an error. The error for
  /// an unknown key lists the keys, and so does docs/model_families.md.
  static StatusOr<ParallelConfig> Parse(std::string_view text);
  /// Parses the same, or reads a file with the JSON object.
  static StatusOr<ParallelConfig> Open(const std::string& text_or_path);
  std::string ToJson() const;

  /// Fills in etp and dp, and checks that the dimensions are compatible.
  Status Complete();

  uint32_t world() const { return tp * cp * dp * pp; }  ///< REQUIRES: Complete
  uint32_t expert_dp() const { return tp * cp * dp / (etp * ep); }

  /// Returns the writer of the dense shard `t` of pipeline rank `p`: the first of its copies.
  uint32_t DensePrimary(uint32_t t, uint32_t p) const { return t + tp * cp * dp * p; }
  /// Returns the same for shard `et` of the experts of expert-parallel rank `e`.
  uint32_t ExpertPrimary(uint32_t et, uint32_t e, uint32_t p) const {
    return et + etp * (e + ep * expert_dp() * p);
  }
};

struct RankPlace {
  uint32_t tp = 0, cp = 0, dp = 0, pp = 0;
  uint32_t etp = 0, ep = 0, expert_dp = 0;
};
RankPlace PlaceOf(const ParallelConfig& config, uint32_t rank);

/// The contents of chunk v (of V) of pipeline rank p (of P).
struct PipelineChunk {
  uint32_t first_layer = 0;  ///< number of its first decoder layer, over the whole model
  uint32_t layers = 0;
  uint32_t first_mtp = 0;
  uint32_t mtp_layers = 0;
  bool embedding = false;
  bool final_norm = false;
  bool head = false;  ///< the output layer
};

/// Returns all chunks, at index v * P + p: the order in which layers run. `layers` and `mtp_layers`
/// are the model's. Sizes that do not divide, or a layout string with other numbers of layers, are
/// errors.
StatusOr<std::vector<PipelineChunk>> CutPipeline(const ParallelConfig& config, uint32_t layers,
                                                 uint32_t mtp_layers);

/// Returns a layout string's stages with all repetition expanded, e.g. {"Ett", "tt", "mL"}.
StatusOr<std::vector<std::string>> ExpandLayout(std::string_view layout);

}  // namespace deltawire::mcore
