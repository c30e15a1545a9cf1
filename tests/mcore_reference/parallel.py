"""How a trainer splits a model over ranks: grids of ranks, pipeline chunks, and which splits are legal."""

import dataclasses
import re
from dataclasses import dataclass

from .model import BOTH, CSA, FULL, GDN, MAMBA, MLA, MOE


@dataclass(frozen=True)
class Parallel:
    """0 and "" mean: not set."""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    cp: int = 1
    dp: int = 1
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    account_for_embedding: bool = False
    account_for_loss: bool = False
    layout: str = ""
    vocab_divisor: int = 128
    spec: str = "te"  # or "local": how norms are spelled, and how MLA's down projections are split
    experts: str = "grouped"  # or "sequential"
    glu_interleave: int = 0
    shared_glu_interleave: int = 0
    mla_down_fusion: bool = False
    core_version: str = "0.16"  # whose names are written; all are read
    # Told by the shards' own names and shapes, so not in parallel.json:
    mtp_inner: str = "transformer_layer"  # or "mtp_model_layer"
    gemma_norms: str = "linear"  # post norms under the linear before them; or "layer"
    mla_fusion_sharded: bool = False  # the fused down projection is column parallel

    NOT_IN_JSON = ("mtp_inner", "gemma_norms", "mla_fusion_sharded")

    def as_json(self):
        return {key: value for key, value in dataclasses.asdict(self).items()
                if key not in self.NOT_IN_JSON}

    @property
    def minor(self):
        return int(self.core_version.split(".")[1])

    @property
    def world(self):
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_dp(self):
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    def dense_coordinates(self, rank):
        """(t, c, d, p): tp varies fastest, then cp, dp, pp."""
        t, rest = rank % self.tp, rank // self.tp
        c, rest = rest % self.cp, rest // self.cp
        d, p = rest % self.dp, rest // self.dp
        return t, c, d, p

    def expert_coordinates(self, rank):
        """(et, e, ed, p) with rank = et + etp*(e + ep*(ed + expert_dp*p))."""
        et, rest = rank % self.etp, rank // self.etp
        e, rest = rest % self.ep, rest // self.ep
        ed, p = rest % self.expert_dp, rest // self.expert_dp
        return et, e, ed, p


def layout_stages(layout):
    """One string of E, t, m, L for each stage of a layout string; stage index is v*P + p."""
    text = layout.replace(",", "")
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    text = re.sub(r"(.)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    return text.split("|")


def padded_vocab(vocab, parallel):
    unit = parallel.vocab_divisor * parallel.tp
    return -(-vocab // unit) * unit


def chunk_sizes(parallel, layers):
    """(v, p) -> number of decoder layers; None where the layers do not divide."""
    P, V = parallel.pp, parallel.vpp
    if parallel.layout:
        stages = layout_stages(parallel.layout)
        if len(stages) != P * V:
            return None
        return {(s // P, s % P): stage.count("t") for s, stage in enumerate(stages)}
    F, Z = parallel.first_stage_layers, parallel.last_stage_layers
    if F or Z:
        middle = P - bool(F) - bool(Z)
        rest = layers - F - Z
        if middle < 0 or rest < 0 or bool(rest) != bool(middle) or (middle and rest % middle):
            return None
        stage = [rest // middle if middle else 0] * P
        if F:
            stage[0] = F
        if Z:
            stage[P - 1] = Z
        if any(n % V for n in stage):
            return None
        return {(v, p): stage[p] // V for v in range(V) for p in range(P)}
    counted = layers + parallel.account_for_embedding + parallel.account_for_loss
    if counted % (P * V):
        return None
    sizes = {(v, p): counted // (P * V) for v in range(V) for p in range(P)}
    sizes[0, 0] -= parallel.account_for_embedding
    sizes[V - 1, P - 1] -= parallel.account_for_loss
    return sizes if min(sizes.values()) >= 0 else None


class Placement:
    """Which chunk (p, v) holds what. Chunks come in the order of (v, p)."""

    def __init__(self, model, parallel):
        P, V = parallel.pp, parallel.vpp
        sizes = chunk_sizes(parallel, model.layers)
        self.layers, start = {}, 0
        for v in range(V):
            for p in range(P):
                self.layers[p, v] = list(range(start, start + sizes[v, p]))
                start += sizes[v, p]
        assert start == model.layers
        self.embedding = (0, 0)
        self.loss = (P - 1, V - 1)
        self.mtp = None
        if model.mtp_layers:
            self.mtp = self.loss
            for s, stage in enumerate(layout_stages(parallel.layout) if parallel.layout else []):
                if "m" in stage:
                    self.mtp = (s % P, s // P)
        # With MTP the final norm stays with the last decoder layer, else it is with the loss. A hybrid
        # model's is always there.
        self.final_norm = self.loss
        if model.mtp_layers and not model.pattern:
            self.final_norm = next(c for c, held in self.layers.items() if model.layers - 1 in held)


def why_invalid(model, parallel):
    """None where Megatron could train the model like this, else the first reason why not."""
    x, T, ET = parallel, parallel.tp, parallel.etp
    if (x.tp * x.cp * x.dp) % (x.etp * x.ep):
        return "expert grid does not fill the ranks of a stage"
    if not model.experts and (x.ep > 1 or x.etp != x.tp):
        return "expert parallelism without experts"
    if x.pp == 1 and (x.vpp > 1 or x.layout or x.first_stage_layers or x.last_stage_layers
                      or x.account_for_embedding or x.account_for_loss):
        return "pipeline options without a pipeline"
    if chunk_sizes(x, model.layers) is None:
        return "layers do not divide"
    if x.layout:
        reason = _layout_reason(model, x)
        if reason:
            return reason
    if model.mtp_layers and model.hidden % T:
        return "eh_proj rows"
    if model.kind == "gemma4_dense" and x.pp > 1:
        return "dense Gemma 4 has no pipeline stages"
    if model.layer_width and (model.layer_vocab % T or model.layers * model.layer_width % T):
        return "the embedding for each layer"
    if x.experts == "grouped" and x.spec == "local":
        return "grouped experts are TransformerEngine's"
    return _attention_reason(model, x) or _mlp_reason(model, x, T, ET)


def _layout_reason(model, x):
    stages = layout_stages(x.layout)
    flat = "".join(stages)
    if flat.count("t") != model.layers or flat.count("m") != model.mtp_layers:
        return "layout has another number of layers"
    if not re.fullmatch("Et+m*L", flat):
        return "layout in another order"
    holders = [s for s, stage in enumerate(stages) if "m" in stage]
    if len(holders) > 1:
        return "MTP in two stages"
    if holders and model.pattern and holders[0] != len(stages) - 1:
        return "a hybrid model's MTP without the loss"
    if holders and (holders[0] % x.pp == 0 or holders[0] // x.pp != x.vpp - 1):
        return "MTP on the first rank or before the rank's last chunk"
    return None


def _attention_reason(model, x):
    kinds = {model.attention(layer) for layer in range(model.layers + model.mtp_layers * model.mtp_inner)}
    T = x.tp
    if model.heads % T:
        return "heads"
    if model.groups % T and T % model.groups:
        return "KV groups"  # TransformerConfig asks for this even if no layer has full attention
    if model.wide_norms and model.groups % T:
        return "norms over all heads of a kind"
    layers = [model.at(layer) for layer in range(model.layers)]
    if any(one.heads % T or (one.groups % T and T % one.groups) for one in layers):
        return "heads of some layers"
    if BOTH in kinds:
        kinds |= {FULL, MAMBA}
    if model.kind == "mimo_v2_flash" and any(one.groups % T for one in [model, *layers]):
        return "KV groups of two kinds of heads"
    if CSA in kinds and (model.out_rank % T or (x.spec == "local" and (model.q_lora % T or model.head_dim % T))):
        return "DeepSeek-V4's projections"
    if FULL in kinds and any(one.fused_qkv_rows() % T for one in layers):
        return "fused QKV rows"
    if MLA in kinds:
        if x.mla_down_fusion and (x.spec == "local" or model.q_lora is None):
            return "fusion of MLA's down projections"
        sharded = x.spec == "local" or (x.mla_down_fusion and x.mla_fusion_sharded)
        if sharded and ((model.q_lora or 0) % T or (model.kv_lora + model.rope) % T):
            return "MLA down projection rows"
    elif x.mla_down_fusion:
        return "fusion of MLA's down projections without MLA"
    if GDN in kinds and x.spec == "local":
        return "GDN is built with TransformerEngine's linears only"
    if GDN in kinds and (model.gdn_k_heads % T or model.gdn_v_heads % T):
        return "GDN heads"
    # Asked of Nemotron-H's config even if no layer is a Mamba layer.
    if (MAMBA in kinds or model.pattern) and (model.mamba_heads % T or model.mamba_groups % T):
        return "Mamba heads or groups"
    return None


def _mlp_reason(model, x, T, ET):
    kinds = {model.mlp(layer) for layer in range(model.layers + model.mtp_layers * model.mtp_inner)}
    if any(one.ffn % T for one in map(model.at, range(model.layers)) if one.ffn):
        return "FFN size"
    if MOE not in kinds:
        return "interleaving without experts" if x.glu_interleave or x.shared_glu_interleave else None
    if model.experts % x.ep:
        return "number of experts"
    if model.expert_ffn % ET or model.shared_ffn % T:
        return "expert FFN size"
    if not model.glu and (x.glu_interleave or x.shared_glu_interleave):
        return "interleaving without a gate"
    if x.glu_interleave and (x.experts != "grouped" or (model.expert_ffn // ET) % x.glu_interleave):
        return "GLU interleave"
    if x.shared_glu_interleave:
        if not model.shared_ffn or (model.shared_ffn // T) % x.shared_glu_interleave:
            return "shared expert's GLU interleave"
    return None


def random_parallel(model, rng, max_world=24):
    """A legal split, drawn until one is found; never fails, since one rank is always legal."""
    for _ in range(2000):
        parallel = _draw(model, rng)
        if parallel.world <= max_world and why_invalid(model, parallel) is None:
            return parallel
    return Parallel(vocab_divisor=rng.choice([1, 4, 16]))


def _draw(model, rng):
    tp, pp = rng.choice([1, 2, 2, 3, 4, 4, 6]), rng.choice([1, 1, 2, 2, 3, 4])
    x = dict(tp=tp, pp=pp, cp=rng.choice([1, 1, 1, 2]), dp=rng.choice([1, 1, 2, 3, 4]), etp=tp,
             vocab_divisor=rng.choice([1, 4, 16, 128]), spec=rng.choice(["te", "te", "local"]),
             mtp_inner=rng.choice(["transformer_layer", "mtp_model_layer"]),
             gemma_norms=rng.choice(["linear", "layer"]),
             core_version=rng.choice(["0.14", "0.16", "0.16", "0.16", "0.19"]))
    x["experts"] = "sequential" if x["spec"] == "local" else rng.choice(["grouped", "grouped", "sequential"])
    if model.experts:
        x["etp"], x["ep"] = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 2, 2, 3, 4])
        if rng.random() < 0.25:
            x["glu_interleave"] = rng.choice([1, 2, 4])
        if rng.random() < 0.25:
            x["shared_glu_interleave"] = rng.choice([1, 2, 3])
    if model.mla and rng.random() < 0.5:
        x["mla_down_fusion"], x["mla_fusion_sharded"] = True, rng.random() < 0.5
    if pp > 1:
        x["vpp"] = rng.choice([1, 2, 3])
        # Only a layout puts MTP layers on a stage without the loss, which holds other parameters.
        mode = rng.choice(["even", "uneven", "layout", "layout", "layout"] if model.mtp_layers else
                          ["even", "even", "uneven", "uneven", "layout"])
        if mode == "even":
            x["account_for_embedding"], x["account_for_loss"] = rng.random() < 0.5, rng.random() < 0.5
        elif mode == "uneven":
            x["first_stage_layers"], x["last_stage_layers"] = rng.choice([0, 1, 2, 3]), rng.choice([0, 1, 2])
        else:
            x["layout"] = random_layout(model, pp * x["vpp"], rng)
    return Parallel(**x)


def random_layout(model, stages, rng):
    """A layout string of so many stages with this model's layers, in the short spelling at times."""
    flat = "E" + "t" * model.layers + "m" * model.mtp_layers + "L"
    block = "m" * model.mtp_layers  # never cut
    cuts = [i for i in range(1, len(flat)) if not (block and flat[i - 1:i + 1] == "mm")]
    around = [flat.index("m"), len(flat) - 1] if block and rng.random() < 0.8 and stages > 2 else []
    others = [i for i in cuts if i not in around]
    cuts = sorted(around + rng.sample(others, min(stages - 1 - len(around), len(others))))
    parts = [flat[a:b] for a, b in zip([0] + cuts, cuts + [len(flat)])]
    text = "|".join(parts)
    if rng.random() < 0.5:
        text = re.sub(r"t{3,}", lambda m: f"t*{len(m.group())}", text)
    if rng.random() < 0.5:
        text = re.sub(r"(?:\|tt(?!t|\*)){2,}", lambda m: f"(|tt)*{len(m.group()) // 3}", text)
    return text.replace("m|", "m,|") if rng.random() < 0.3 else text
