"""Known export bugs, one class each: the HF result as an exporter with that bug would write it.

PLANTED maps a short name to a subclass of Reassembly. run_planted returns the result, None where the
bug does not show in a case (e.g. at TP 1), or "loud" where it trips over shapes that do not fit.
A test that compares with the expected HF values must reject every result that is returned.
"""

import numpy as np

from .model import Model
from .reassemble import Reassembly
from .values import add_one, round_to_bf16, widen

PLANTED = {}


def planted(needs=lambda m, x: True):
    """needs: what of model and split the bug cannot show without."""
    def keep(cls):
        PLANTED[cls.__name__] = cls
        cls.needs = staticmethod(needs)
        return cls
    return keep


def run_planted(name, case, shards):
    """The buggy result of a case.Case; None: nothing shows; "loud": the bug trips over itself."""
    config, parallel, right, listed = case.config, case.parallel, case.hf, case.listed
    if not PLANTED[name].needs(Model(config), parallel):
        return None
    try:
        wrong = PLANTED[name](config, parallel, shards, listed).run()
    except (ValueError, IndexError, KeyError, StopIteration, AssertionError):
        return "loud"
    same = wrong.keys() == right.keys() and all(
        a.dtype == wrong[n].dtype and np.array_equal(a, wrong[n]) for n, a in right.items())
    return None if same else wrong


# GLU.

@planted()
class GateUpSwapped(Reassembly):
    def gate_and_up(self, parts, interleave=0):
        gate, up = super().gate_and_up(parts, interleave)
        return up, gate


@planted(lambda m, x: x.tp > 1 or x.etp > 1)
class PlainConcatFc1(Reassembly):
    """[g0 u0 g1 u1 ...] cut in two: the right shape, gate and up mixed."""

    def gate_and_up(self, parts, interleave=0):
        return tuple(np.split(np.concatenate(parts), 2))


@planted(lambda m, x: x.glu_interleave or x.shared_glu_interleave)
class GluInterleaveIgnored(Reassembly):
    def gate_and_up(self, parts, interleave=0):
        return super().gate_and_up(parts, 0)


# Attention.

@planted(lambda m, x: not m.mla)
class QkvByKind(Reassembly):
    """The fused rows read as [all q; all k; all v]."""

    def split_qkv(self, parts):
        q, k, _ = super().split_qkv(parts)
        return tuple(np.split(np.concatenate(parts), [len(q), len(q) + len(k)]))


@planted(lambda m, x: m.groups < x.tp)
class QkvSplitOnEachRank(Reassembly):
    """Each rank's rows taken for whole groups: wrong where a rank holds less than a group."""

    def split_qkv(self, parts):
        m, ranks = self.m, len(parts)
        if m.groups % ranks == 0:
            return super().split_qkv(parts)
        width = (2 if m.gated_attention else 1) * m.heads // m.groups + 2
        pieces = [np.split(part, [len(part) * (width - 2) // width, len(part) * (width - 1) // width])
                  for part in parts]
        return tuple(np.concatenate(kind) for kind in zip(*pieces))


@planted(lambda m, x: m.gated_attention)
class GateAfterAllQueries(Reassembly):
    """HF's q_proj written as [all q; all gates]."""

    def join_gate(self, q, gate, tail):
        return np.concatenate([q.reshape(-1, *tail), gate.reshape(-1, *tail)])


@planted(lambda m, x: m.sinks and x.tp > 1)
class SinksOfOneRank(Reassembly):
    """No TP attribute, so taken for replicated."""

    def sinks(self, parts):
        return parts[0]


@planted(lambda m, x: m.mla and x.tp > 1)
class DownProjectionGathered(Reassembly):
    """MLA's replicated projections carry a TP attribute in older versions: T copies."""

    def down_projection(self, parts, rows):
        return np.concatenate(parts)


@planted(lambda m, x: m.mla and x.spec == "local" and x.tp > 1)
class DownProjectionOfOneRank(Reassembly):
    """The local spec's split projections taken for replicated."""

    def down_projection(self, parts, rows):
        return parts[0]


@planted(lambda m, x: x.mla_fusion_sharded and x.tp > 1)
class FusedDownPlainConcat(Reassembly):
    def split_down_projection(self, parts):
        q, kv = self.m.q_lora, self.m.kv_lora + self.m.rope
        full = parts[0] if len(parts[0]) == q + kv else np.concatenate(parts)
        return full[:q], full[q:]


@planted(lambda m, x: m.gated_attention and x.tp > 1)
class GdnPlainConcat(Reassembly):
    """in_proj and conv1d: ranks put one after the other, then cut into components."""

    def components(self, parts, sizes):
        return np.split(np.concatenate(parts), np.cumsum(sizes)[:-1])


@planted(lambda m, x: m.kind == "qwen3_next")
class GdnNotByKeyHead(Reassembly):
    """Qwen3-Next's in_proj_qkvz and _ba written flat, as Qwen3.5 has them."""

    def by_key_head(self, pieces):
        return np.concatenate(pieces)


@planted(lambda m, x: m.gated_attention)
class OutNormWithoutOne(Reassembly):
    def out_norm(self, array, dtype):
        return widen(array) if dtype == "F32" else array


@planted(lambda m, x: m.gated_attention)
class OutNormTruncated(Reassembly):
    """The sum's lower half cut off instead of rounded."""

    def out_norm(self, array, dtype):
        bits = add_one(widen(array))
        return bits if dtype == "F32" else (bits >> 16).astype(np.uint16)


@planted()
class OneAddedToEveryNorm(Reassembly):
    def norm(self, array):
        return round_to_bf16(add_one(widen(array)))


@planted(lambda m, x: m.gemma_norms)
class GemmaNormsSwapped(Reassembly):
    """The norm before the MLP called post_attention_layernorm, as in other families."""

    def before_mlp(self):
        return "post_attention_layernorm"


# Modules beside the language model.

@planted(lambda m, x: m.has_tower and x.minor >= 19)
class TowerQkvLeftByHead(Reassembly):
    def tower_qkv(self, parts):
        return np.concatenate(parts)


@planted(lambda m, x: m.has_tower and x.minor >= 19 and x.tp > 1)
class TowerQkvOfEachRank(Reassembly):
    """Heads put in order on each rank and then joined."""

    def tower_qkv(self, parts):
        heads = self.m.vision["num_heads"] // self.x.tp
        return np.concatenate([part.reshape(heads, 3, -1, *part.shape[1:]).swapaxes(0, 1).reshape(part.shape)
                               for part in parts])


# Experts.

@planted(lambda m, x: m.model_type in ("gpt_oss", "qwen3_vl_moe"))
class ExpertsNotTransposed(Reassembly):
    """Packed experts in mcore's own orientation. Silent where they are square."""

    def transposed(self, array):
        return array


@planted(lambda m, x: m.kind == "gpt_oss")
class PackedHalvesNotInterleaved(Reassembly):
    """gpt-oss's last axis written as [gate | up]."""

    def turns(self, gate, up):
        return np.concatenate([gate, up], axis=-1)


@planted(lambda m, x: m.experts and x.etp > 1)
class ExpertTpNotGathered(Reassembly):
    """One expert-TP rank's shard sent as if it were whole."""

    def expert_parts(self, chunk, e, name):
        return super().expert_parts(chunk, e, name)[:1]


@planted(lambda m, x: m.experts and x.etp > 1)
class ExpertTpRepeated(Reassembly):
    """The same, with the buffer filled up: the right shape."""

    def expert_parts(self, chunk, e, name):
        return super().expert_parts(chunk, e, name)[:1] * self.x.etp


@planted(lambda m, x: m.experts and (x.etp != x.tp or x.ep > 1))
class ExpertsOverDenseTp(Reassembly):
    """Gathered from the dense TP group, which is another one where ETP differs from TP or EP > 1."""

    def expert_ranks(self, p, e):
        return self.dense_ranks(p)


@planted(lambda m, x: m.experts and x.etp > 1)
class ExpertFc2OnRows(Reassembly):
    """TransformerEngine's partition_dim of 0 believed."""

    def expert_down(self, parts):
        return np.concatenate(parts, axis=0).reshape(super().expert_down(parts).shape)


@planted(lambda m, x: x.ep > 1)
class ExpertsDealtInTurn(Reassembly):
    """Global id as local * EP + ep."""

    def global_expert(self, ep, local):
        return local * self.x.ep + ep


@planted(lambda m, x: x.ep > 1)
class FirstEpRanksExpertsOnly(Reassembly):
    """Every EP rank's experts published under the first one's ids."""

    def expert_ranks(self, p, e):
        return super().expert_ranks(p, 0)


@planted(lambda m, x: x.ep > 1 and x.etp != x.tp)
class ExpertGridWithDenseStride(Reassembly):
    """EP ranks taken to be a dense TP size apart."""

    def expert_ranks(self, p, e):
        stage = self.x.tp * self.x.cp * self.x.dp
        return [p * stage + (e * self.x.tp + et) % stage for et in range(self.x.etp)]


@planted(lambda m, x: m.shared_ffn and x.etp < x.tp)
class SharedExpertOverExpertTp(Reassembly):
    """The shared expert, split by TP, gathered as if split by expert TP."""

    def shared_parts(self, chunk, name):
        return super().shared_parts(chunk, name)[:self.x.etp]


@planted(lambda m, x: m.correction_bias)
class CorrectionBiasThroughBf16(Reassembly):
    def correction_bias(self, array):
        return widen(round_to_bf16(array))


@planted(lambda m, x: m.correction_bias)
class CorrectionBiasMissing(Reassembly):
    def correction_bias(self, array):
        return np.zeros_like(array)


# Pipeline, vocabulary, ends.

@planted(lambda m, x: x.pp > 1)
class LocalLayerNumbers(Reassembly):
    def global_layer(self, before, local):
        return local


@planted(lambda m, x: x.vpp > 1)
class ChunksInRankOrder(Reassembly):
    """Both chunks of rank 0, then both of rank 1: every layer is there, in the wrong place."""

    def chunk_order(self):
        return [(p, v) for p in range(self.x.pp) for v in range(self.x.vpp)]


@planted()
class PaddingKept(Reassembly):
    def cut_vocabulary(self, full):
        return full


@planted(lambda m, x: x.tp > 1)
class PaddingCutOnEachRank(Reassembly):
    """Padding taken to be at the end of every rank's rows: shape-correct, rows shifted."""

    def cut_vocabulary(self, full):
        ranks, pad = self.x.tp, len(full) - self.m.vocab
        keep = [part[:len(part) - pad // ranks] for part in np.split(full, ranks)]
        return np.concatenate(keep)[:self.m.vocab] if pad % ranks == 0 else full[pad:]


@planted(lambda m, x: m.tied and x.pp > 1)
class StaleTiedHead(Reassembly):
    """output_layer.weight exported though tied."""

    def head(self):
        last = self.chunk_order()[-1]
        if self.m.tied and self.has(last, "output_layer.weight"):
            full = self.cut_vocabulary(self.rows(last, "output_layer.weight"))
            self.out["lm_head.weight"] = full
            return full
        return super().head()


@planted(lambda m, x: m.mtp_layers and x.pp > 1)
class EmbeddingOfTheMtpStage(Reassembly):
    def embedding_source(self):
        name = "embedding.word_embeddings.weight"
        return [chunk for chunk in self.chunk_order() if self.has(chunk, name)][-1]


@planted(lambda m, x: m.mtp_layers)
class MtpLayerOffByOne(Reassembly):
    def mtp_hf_layer(self, k, inner=0):
        return super().mtp_hf_layer(k, inner + 1)


@planted(lambda m, x: m.mtp_layers)
class MtpHalvesSwapped(Reassembly):
    def eh_proj(self, full):
        return np.concatenate(np.split(full, 2, axis=1)[::-1], axis=1)
