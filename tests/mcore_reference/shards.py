"""What each Megatron rank holds of an HF checkpoint: mcore_shards(config, parallel, hf).

Each mcore tensor is one expression over HF tensors and the row formulas of rows.py. Beside the copies
that count, ranks hold what Megatron really has there and an export must leave alone: padding rows
(values.PAD), and duplicates of embedding and head, given stale values here.
"""

import copy
import functools

import numpy as np

from .model import BOTH, CSA, DENSE, FULL, GDN, MAMBA, MLA, MOE, NOTHING, VISION_PREFIX, Model
from .parallel import Placement, padded_vocab
from .renamed import Renamed
from .rows import chunk_rows, component_rows, glu_rows, qkv_rows, qwen3_next_gdn_rows
from .values import PAD, mcore_out_norm, stale


def mcore_shards(config, parallel, hf):
    """(rank, vpp chunk) -> {mcore's name within the chunk: array}, for every rank of the world.

    hf holds the whole HF checkpoint, bf16 as uint16 and F32 as uint32. Ranks that hold the same
    share the array, so treat them as read-only.
    """
    model = Model(config)
    place, build = Placement(model, parallel), _Builder(model, parallel, Renamed(model, hf))
    out = {}
    for rank in range(parallel.world):
        t, _, _, p = parallel.dense_coordinates(rank)
        et, e, _, same_p = parallel.expert_coordinates(rank)
        assert p == same_p
        for v in range(parallel.vpp):
            tensors = {}
            for local, layer in enumerate(place.layers[p, v]):
                for name, array in build.layer(layer, t, et, e).items():
                    tensors[f"decoder.layers.{local}.{name}"] = array
            tensors |= _ends(model, parallel, place, build, (p, v), t)
            if (p, v) == place.mtp:
                tensors |= _mtp(model, parallel, build, t, et, e)
            tensors = {model.mcore_prefix + name: array for name, array in tensors.items()}
            if (p, v) == place.embedding:
                tensors |= build.vision(t)
            out[rank, v] = tensors
    return out


STREAMS_HEAD = ("hc_head_fn", "hc_head_base", "hc_head_scale")


def _ends(model, parallel, place, build, chunk, t):
    """Embedding, final norm and head of a chunk. Before 0.15 the MTP blocks' chunk has a head, too, tied
    or not; since then it has one only where it has the loss."""
    heads = (place.loss, place.mtp) if parallel.minor < 15 else (place.loss,)
    out, embedding, head = {}, "embedding.word_embeddings.weight", "output_layer.weight"
    if chunk == place.embedding:
        out[embedding] = build.vocabulary(f"{model.hf_prefix}embed_tokens.weight", t)
        for mcore, name in (("embedding", "embed_tokens_per_layer"), ("model_proj", "per_layer_model_projection")):
            if model.layer_width:
                out[f"per_layer_{mcore}.weight"] = build.split_rows(build.hf[f"{model.hf_prefix}{name}.weight"], t)
        if model.layer_width:
            out["per_layer_proj_norm.weight"] = build.hf[f"{model.hf_prefix}per_layer_projection_norm.weight"]
    elif chunk == place.mtp:
        out[embedding] = stale(build.vocabulary(f"{model.hf_prefix}embed_tokens.weight", t))
    if chunk == place.final_norm:
        for kind in ("weight", "bias") if model.norm_bias else ("weight",):
            out[f"decoder.{model.final_norm}.{kind}"] = build.hf[f"{model.hf_prefix}norm.{kind}"]
        for name in STREAMS_HEAD if model.csa else ():
            out["decoder." + name] = build.hf[name]
    if chunk in heads and not (model.tied and chunk == place.embedding):
        own = f"{model.hf_prefix}embed_tokens.weight" if model.tied else "lm_head.weight"
        out[head] = build.vocabulary(own, t)
        if model.tied or chunk != place.loss:
            out[head] = stale(out[head])
    return out


def _mtp(model, parallel, build, t, et, e):
    out = {}
    for k in range(model.mtp_layers):
        prefix, first = f"mtp.layers.{k}.", model.layers + k * model.mtp_inner
        own, last = model.hf_layer(first), model.hf_layer(first + model.mtp_inner - 1)
        if model.qwen_mtp:
            names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
        else:
            names = (own + "enorm", own + "hnorm", own + "eh_proj", last + "shared_head.norm")
        if model.csa:
            out |= {prefix + name: build.hf[own + name] for name in STREAMS_HEAD}
            out |= {f"{prefix}{name}.weight": build.hf[f"{own}{name}.weight"] for name in ("enorm", "hnorm")}
            out |= {f"{prefix}{name}.weight": build.split_rows(build.hf[f"{own}{name}.weight"], t)
                    for name in ("e_proj", "h_proj")}
            out[prefix + "final_layernorm.weight"] = build.hf[own + "shared_head.norm.weight"]
            out |= {f"{prefix}{parallel.mtp_inner}.{name}": array
                    for name, array in build.layer(first, t, et, e).items()}
            continue
        enorm, hnorm, eh_proj, norm = (build.hf[name + ".weight"] for name in names)
        out[prefix + "enorm.weight"], out[prefix + "hnorm.weight"] = enorm, hnorm
        # Columns: both worlds have the embedding's first, then the hidden state's.
        if model.kind == "mimo":  # there the other way round
            eh_proj = np.concatenate([eh_proj[:, model.hidden:], eh_proj[:, :model.hidden]], axis=1)
        out[prefix + "eh_proj.weight"] = build.split_rows(eh_proj, t)
        out[prefix + "final_layernorm.weight"] = norm
        for i in range(model.mtp_inner):
            inner = f"{prefix}{parallel.mtp_inner}." + (f"layers.{i}." if model.pattern else "")
            for name, array in build.layer(first + i, t, et, e).items():
                out[inner + name] = array
    return out


class _Builder:
    def __init__(self, model, parallel, hf):
        self.m, self.x, self.hf = model, parallel, hf
        # Ranks differ only in these numbers, so each is worked out once.
        self._dense_part = functools.lru_cache(None)(self._dense_part)
        self._expert_part = functools.lru_cache(None)(self._expert_part)
        self.vocabulary = functools.lru_cache(None)(self.vocabulary)

    def split_rows(self, array, t):
        return array[chunk_rows(array.shape[0], self.x.tp, t)]

    def split_columns(self, array, t):
        return array[:, chunk_rows(array.shape[1], self.x.tp, t)]

    def vocabulary(self, name, t):
        """Rank t's rows of the padded vocabulary."""
        full = self.hf[name]
        rows = chunk_rows(padded_vocab(full.shape[0], self.x), self.x.tp, t)
        out = np.full((len(rows), full.shape[1]), PAD[full.dtype], full.dtype)
        out[rows < full.shape[0]] = full[rows[rows < full.shape[0]]]
        return out

    def vision(self, t):
        """Modules beside the language model: HF's own, the same on every rank, or Megatron's."""
        m, own = self.m, {}
        if self.x.minor >= 19 and m.has_tower:
            return self._gated_tower(t) if m.gated_tower else self._tower(t)
        if self.x.minor >= 19 and m.has_projector:
            prefix = "multi_modal_projector."
            own = {prefix + "mm_soft_embed_norm.weight": self.hf[prefix + "mm_soft_emb_norm.weight"],
                   prefix + "proj.weight": self.split_rows(self.hf[prefix + "mm_input_projection_weight"].T, t)}
        return own | {mcore + name[len(hf):]: array for name, array in self.hf.tensors.items()
                for hf, mcore in VISION_PREFIX.get(self.m.model_type, {}).items()
                if name.startswith(hf) and not (own and hf == "multi_modal_projector.")}

    def _gated_tower(self, t):
        """EXAONE 4.5's vision part of Megatron's own modules."""
        v, hf = self.m.vision, lambda name: self.hf["model.visual." + name]
        out = {"patch_embed.proj.weight": hf("patch_embed.proj.weight"),
               "merger.patch_norm.weight": hf("merger.ln_q.weight"),
               "merger.linear_fc1.weight": self.split_rows(hf("merger.mlp.0.weight"), t),
               "merger.linear_fc1.bias": self.split_rows(hf("merger.mlp.0.bias"), t),
               "merger.linear_fc2.weight": self.split_columns(hf("merger.mlp.2.weight"), t),
               "merger.linear_fc2.bias": hf("merger.mlp.2.bias")}
        heads = v["num_heads"]
        rows = qkv_rows(heads, v["num_key_value_heads"], v["hidden_size"] // heads, False)
        mine = rows[chunk_rows(len(rows), self.x.tp, t)]
        gates = glu_rows(v["intermediate_size"], self.x.tp, t)
        for i in range(v["depth"]):
            layer, block = f"decoder.layers.{i}.", f"blocks.{i}."
            out[layer + "self_attention.linear_qkv.layer_norm_weight"] = hf(block + "norm1.weight")
            out[layer + "mlp.linear_fc1.layer_norm_weight"] = hf(block + "norm2.weight")
            for kind in ("weight", "bias"):
                out[f"{layer}self_attention.linear_qkv.{kind}"] = hf(f"{block}attn.qkv.{kind}")[mine]
                out[f"{layer}mlp.linear_fc1.{kind}"] = np.concatenate(
                    [hf(f"{block}mlp.{name}_proj.{kind}") for name in ("gate", "up")])[gates]
            out[layer + "self_attention.linear_proj.weight"] = self.split_columns(hf(block + "attn.proj.weight"), t)
            out[layer + "self_attention.linear_proj.bias"] = hf(block + "attn.proj.bias")
            out[layer + "mlp.linear_fc2.weight"] = self.split_columns(hf(block + "mlp.down_proj.weight"), t)
            out[layer + "mlp.linear_fc2.bias"] = hf(block + "mlp.down_proj.bias")
        return {"vision_model." + name: array for name, array in out.items()}

    def _tower(self, t):
        """Qwen3-VL's vision part of Megatron's own modules."""
        v, hf, out = self.m.vision, lambda name: self.hf["model.visual." + name], {}
        for name in ("patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed.weight"):
            out[name] = hf(name)
        heads = v["num_heads"]
        rows = qkv_rows(heads, heads, v["hidden_size"] // heads, False)
        mine = rows[chunk_rows(len(rows), self.x.tp, t)]
        for i in range(v["depth"]):
            layer, block = f"decoder.layers.{i}.", f"blocks.{i}."
            for kind in ("weight", "bias"):
                out[f"{layer}self_attention.linear_qkv.layer_norm_{kind}"] = hf(f"{block}norm1.{kind}")
                out[f"{layer}mlp.linear_fc1.layer_norm_{kind}"] = hf(f"{block}norm2.{kind}")
                out[f"{layer}self_attention.linear_qkv.{kind}"] = hf(f"{block}attn.qkv.{kind}")[mine]
            out |= self._column_then_row(layer + "mlp.", block + "mlp.", t)
            out[f"{layer}self_attention.linear_proj.weight"] = self.split_columns(hf(f"{block}attn.proj.weight"), t)
            out[f"{layer}self_attention.linear_proj.bias"] = hf(f"{block}attn.proj.bias")
        mergers = [f"deepstack_merger_list.{i}." for i in range(len(v.get("deepstack_visual_indexes", [])))]
        for mcore, merger in [("decoder." + name, name) for name in mergers] + [("merger.", "merger.")]:
            for kind in ("weight", "bias"):
                out[f"{mcore}patch_norm.{kind}"] = hf(f"{merger}norm.{kind}")
            out |= self._column_then_row(mcore, merger, t)
        return {"vision_model." + name: array for name, array in out.items()}

    def _column_then_row(self, mcore, own, t):
        """The two linears of a vision MLP, which has no gate."""
        hf = lambda name: self.hf[f"model.visual.{own}{name}"]
        return {mcore + "linear_fc1.weight": self.split_rows(hf("linear_fc1.weight"), t),
                mcore + "linear_fc1.bias": self.split_rows(hf("linear_fc1.bias"), t),
                mcore + "linear_fc2.weight": self.split_columns(hf("linear_fc2.weight"), t),
                mcore + "linear_fc2.bias": hf("linear_fc2.bias")}

    def layer(self, layer, t, et, e):
        return {**self._dense_part(layer, t), **self._expert_part(layer, et, e)}

    def _at(self, layer):
        own = copy.copy(self)
        own.m = self.m.at(layer)
        return own

    # Everything of a layer but its routed experts: depends on the TP rank alone.

    def _dense_part(self, layer, t):
        prefix, self = self.m.hf_layer(layer), self._at(layer)
        m = self.m
        kind = m.attention(layer)
        out = {}
        for one in (FULL, MAMBA) if kind == BOTH else (kind,):
            attention = {FULL: self._full_attention, MLA: self._mla, GDN: self._gdn, MAMBA: self._mamba,
                         NOTHING: lambda prefix, t: {}, CSA: lambda prefix, t: self._csa(layer, prefix, t)}[one](prefix, t)
            owner = ("mamba_mixer" if kind == BOTH else "mixer") if one == MAMBA else "self_attention"
            out |= {f"{owner}.{name}": array for name, array in attention.items()}
        if m.csa:
            out |= self._streams(prefix)
        for name, norm in self._norms(layer, kind).items():
            out[name] = self.hf[f"{prefix}{norm}.weight"]
            if m.norm_bias:
                out[name.removesuffix("weight") + "bias"] = self.hf[f"{prefix}{norm}.bias"]
        if m.indexer(layer):
            for mcore, name in (("linear_wq_b.weight", "wq_b.weight"), ("linear_wk.weight", "wk.weight"),
                                ("k_norm.weight", "k_norm.weight"), ("k_norm.bias", "k_norm.bias"),
                                ("linear_weights_proj.weight", "weights_proj.weight")):
                out[f"self_attention.core_attention.indexer.{mcore}"] = self.hf[
                    f"{prefix}self_attn.indexer.{name}"]
        if m.gemma4:
            out["layer_scalar"] = self.hf[prefix + "layer_scalar"]
        if m.layer_width:
            for name in ("per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"):
                out[name + ".weight"] = self.hf[f"{prefix}{name}.weight"]
        if m.kind == "gemma4_text":
            for name in ("scale", "per_expert_scale"):
                out["mlp.router." + name] = self.hf[f"{prefix}router.{name}"]
        if m.mlp(layer) == DENSE:
            out |= self._dense_mlp(f"{prefix}mlp.", t)
        elif m.mlp(layer) == MOE:
            out |= self._router_and_shared(f"{prefix}{m.moe_name}.", t)
        return out

    def _norms(self, layer, kind):
        """mcore's name -> HF's name of the norms over the hidden size."""
        m, x, te = self.m, self.x, self.x.spec == "te"
        before_attention = "input_layernorm.weight"
        if te and kind == FULL:
            before_attention = "self_attention.linear_qkv.layer_norm_weight"
        elif te and kind == GDN:
            before_attention = "self_attention.in_proj.layer_norm_weight"
        elif kind == MAMBA:
            before_attention = "mixer.in_proj.layer_norm_weight" if te else "norm.weight"
        elif kind == BOTH:
            before_attention = "norm.weight"
        elif kind == MLA and x.mla_down_fusion and x.mla_fusion_sharded:
            before_attention = "self_attention.linear_qkv_down_proj.layer_norm_weight"
        before_mlp = "pre_mlp_layernorm.weight"
        if te and m.mlp(layer) == DENSE:
            before_mlp = "mlp.linear_fc1.layer_norm_weight"
        out = {before_attention: "input_layernorm", before_mlp: "post_attention_layernorm"}
        if kind == NOTHING:
            del out[before_attention]
        if m.mlp(layer) == NOTHING:
            del out[before_mlp]
        if m.kind == "gemma4_text":
            return {before_attention: "input_layernorm",
                    "self_attention.linear_proj.post_layernorm.weight": "post_attention_layernorm",
                    "pre_mlp_layernorm.weight": "pre_feedforward_layernorm_2",
                    "pre_shared_expert_layernorm.weight": "pre_feedforward_layernorm",
                    "mlp.post_shared_expert_layernorm.weight": "post_feedforward_layernorm_1",
                    "mlp.post_moe_layernorm.weight": "post_feedforward_layernorm_2",
                    "post_ffn_layernorm.weight": "post_feedforward_layernorm"}
        if m.kind == "gemma4_dense":  # by modules of its own, with either spec
            return {"input_layernorm.weight": "input_layernorm",
                    "post_self_attn_layernorm.weight": "post_attention_layernorm",
                    "pre_mlp_layernorm.weight": "pre_feedforward_layernorm",
                    "post_mlp_layernorm.weight": "post_feedforward_layernorm"}
        if m.post_norms:
            return {"self_attention.linear_proj.post_layernorm.weight": "post_attention_layernorm",
                    "mlp.linear_fc2.post_layernorm.weight": "post_feedforward_layernorm"}
        if m.gemma_norms:
            out[before_mlp] = "pre_feedforward_layernorm"
            if x.gemma_norms == "linear":
                after = ("self_attention.linear_proj.post_layernorm", "mlp.linear_fc2.post_layernorm")
            else:
                after = ("post_attention_layernorm", "post_feedforward_layernorm")
            out[after[0] + ".weight"] = "post_attention_layernorm"
            out[after[1] + ".weight"] = "post_feedforward_layernorm"
        if m.glm4_norms:
            out["post_self_attn_layernorm.weight"] = "post_self_attn_layernorm"
            out["post_mlp_layernorm.weight"] = "post_mlp_layernorm"
        return out

    def _full_attention(self, prefix, t):
        m, hf, out = self.m, self.hf, {}
        rows = qkv_rows(m.heads, m.groups, m.head_dim, m.gated_attention or m.head_gate, m.v_head_dim)
        # Equal parts of the full fused rows, even where a part ends inside a group or a head.
        mine = rows[chunk_rows(len(rows), self.x.tp, t)]
        own = prefix + "self_attn."
        for kind in ("weight", "bias") if m.qkv_bias else ("weight",):
            if f"{own}k_proj.{kind}" in hf or m.fused_qkv:
                stacked = (hf[f"{own}qkv.{kind}"] if m.fused_qkv else np.concatenate(
                    [hf[f"{own}{name}_proj.{kind}"] for name in ("qkk" if m.keys_only else "qkv")]))
            else:  # Gemma 4's last layers: keys and values are an earlier layer's
                stacked = np.concatenate([hf[f"{own}q_proj.{kind}"], zeros(
                    (2 * m.groups * m.head_dim, m.hidden), hf[f"{own}q_proj.{kind}"])])
            if m.head_gate:  # as many rows of a head's gate as of its q, all alike
                q, rest = np.split(stacked, [m.heads * m.head_dim])
                gate = np.repeat(hf[f"{own}g_proj.{kind}"], m.head_dim, axis=0)
                by_head = [array.reshape(m.heads, m.head_dim, -1) for array in (q, gate)]
                stacked = np.concatenate([np.stack(by_head, axis=1).reshape(-1, q.shape[-1]), rest])
            assert len(stacked) == len(rows)
            out[f"linear_qkv.{kind}"] = stacked[mine]
        out["linear_proj.weight"] = self.split_columns(hf[own + "o_proj.weight"], t)
        if m.o_bias:
            out["linear_proj.bias"] = hf[own + "o_proj.bias"]
        if m.qk_norm:
            for name in "qk":
                norm = hf.get(f"{own}{name}_norm.weight", zeros((m.head_dim,), hf[own + "q_norm.weight"]))
                out[f"{name}_layernorm.weight"] = self.split_rows(norm, t) if m.wide_norms else norm
        if m.sinks:
            out["core_attention.softmax_offset"] = self.split_rows(hf[own + "sinks"], t)
        return out

    def _mla(self, prefix, t):
        m, x, own = self.m, self.x, prefix + "self_attn."
        hf = lambda name: self.hf[f"{own}{name}.weight"]
        down = (lambda a: self.split_rows(a, t)) if x.spec == "local" else (lambda a: a)
        norm = "{}_layernorm.weight" if x.spec == "local" or m.dsa else "linear_{}_up_proj.layer_norm_weight"
        out = {}
        if m.q_lora is None:
            out["linear_q_proj.weight"] = self.split_rows(hf("q_proj"), t)
        else:
            out["linear_q_up_proj.weight"] = self.split_rows(hf("q_b_proj"), t)
            out[norm.format("q")] = hf("q_a_layernorm")
        out["linear_kv_up_proj.weight"] = self.split_rows(hf("kv_b_proj"), t)
        out[norm.format("kv")] = hf("kv_a_layernorm")
        if x.mla_down_fusion:
            both = np.concatenate([hf("q_a_proj"), hf("kv_a_proj_with_mqa")])
            if x.mla_fusion_sharded:
                both = both[component_rows([m.q_lora, m.kv_lora + m.rope], x.tp, t)]
            out["linear_qkv_down_proj.weight"] = both
        else:
            out["linear_kv_down_proj.weight"] = down(hf("kv_a_proj_with_mqa"))
            if m.q_lora is not None:
                out["linear_q_down_proj.weight"] = down(hf("q_a_proj"))
        out["linear_proj.weight"] = self.split_columns(hf("o_proj"), t)
        return out

    def _csa(self, layer, prefix, t):
        """Latent queries, one key that is the value, and what compresses keys: that is whole everywhere."""
        m, own, core = self.m, prefix + "self_attn.", "core_attention."
        hf = lambda name: self.hf[own + name]
        down = (lambda a: self.split_rows(a, t)) if self.x.spec == "local" else (lambda a: a)
        out = {"linear_q_down_proj.weight": down(hf("wq_a.weight")), "q_layernorm.weight": hf("q_norm.weight"),
               "linear_q_up_proj.weight": self.split_rows(hf("wq_b.weight"), t),
               "linear_kv_proj.weight": down(hf("wkv.weight")), "kv_layernorm.weight": hf("kv_norm.weight"),
               "linear_o_group_proj": hf("wo_a.weight"),
               "linear_proj.weight": self.split_columns(hf("wo_b.weight"), t),
               core + "attn_sink": self.split_rows(hf("attn_sink"), t)}
        wholes = [("compressor.", "compressor.")] if m.ratio(layer) else []
        if m.ratio(layer) == 4:
            wholes.append(("indexer.compressor.", "indexer.compressor."))
            out[core + "indexer.linear_wq_b.weight"] = hf("indexer.wq_b.weight")
            out[core + "indexer.linear_weights_proj.weight"] = hf("indexer.weights_proj.weight")
        for mcore, name in wholes:
            for kind in ("wkv", "wgate"):
                out[f"{core}{mcore}linear_{kind}.weight"] = hf(f"{name}{kind}.weight")
            out[core + mcore + "ape"], out[core + mcore + "norm.weight"] = hf(name + "ape"), hf(name + "norm.weight")
        return out

    def _streams(self, prefix):
        """Hyper-connections: three scalars are one tensor in the file."""
        out = {}
        for mcore, name in (("self_attention_hyper_connection.", "hc_attn_"), ("mlp_hyper_connection.", "hc_ffn_")):
            out[mcore + "mapping_proj.weight"] = self.hf[f"{prefix}{name}fn"]
            out[mcore + "bias"] = self.hf[f"{prefix}{name}base"]
            for i, kind in enumerate(("pre", "post", "res")):
                out[f"{mcore}alpha_{kind}"] = self.hf[f"{prefix}{name}scale"][i:i + 1]
        return out

    def _gdn(self, prefix, t):
        m, T, own = self.m, self.x.tp, prefix + "linear_attn."
        hf = lambda name: self.hf[own + name]
        keys, values = m.gdn_k_heads * m.gdn_k_dim, m.gdn_v_heads * m.gdn_v_dim
        if m.kind == "qwen3_next":
            stacked = np.concatenate([hf("in_proj_qkvz.weight"), hf("in_proj_ba.weight")])
            by_component = stacked[qwen3_next_gdn_rows(m.gdn_k_heads, m.gdn_v_heads, m.gdn_k_dim,
                                                       m.gdn_v_dim)]
        else:
            by_component = np.concatenate([hf(f"in_proj_{part}.weight") for part in ("qkv", "z", "b", "a")])
        sizes = [keys, keys, values, values, m.gdn_v_heads, m.gdn_v_heads]  # q, k, v, z, b, a
        return {
            "in_proj.weight": by_component[component_rows(sizes, T, t)],
            "conv1d.weight": hf("conv1d.weight")[component_rows(sizes[:3], T, t)],
            "A_log": self.split_rows(_in_bf16(hf("A_log")), t),
            "dt_bias": self.split_rows(_in_bf16(hf("dt_bias")), t),
            "out_norm.weight": mcore_out_norm(hf("norm.weight")),
            "out_proj.weight": self.split_columns(hf("out_proj.weight"), t),
        }

    def _mamba(self, prefix, t):
        """[z; x; B; C; dt], of which every rank has its share of each."""
        m, T, hf = self.m, self.x.tp, lambda name: self.hf[f"{prefix}mamba.{name}"]
        sizes = [m.mamba_width, m.mamba_width, m.mamba_states, m.mamba_states, m.mamba_heads]
        conv = "conv1d_" if self.x.minor >= 19 else "conv1d."
        out = {"in_proj.weight": hf("in_proj.weight")[component_rows(sizes, T, t)],
               conv + "weight": hf("conv1d.weight")[component_rows(sizes[1:4], T, t)],
               "out_proj.weight": self.split_columns(hf("out_proj.weight"), t)}
        if m.mamba_norm:
            out["norm.weight"] = self.split_rows(hf("norm.weight"), t)
        if m.conv_bias:
            out[conv + "bias"] = hf("conv1d.bias")[component_rows(sizes[1:4], T, t)]
        for name in ("A_log", "D", "dt_bias"):
            out[name] = self.split_rows(_in_bf16(hf(name)), t)
        return out

    def _dense_mlp(self, own, t):
        m, hf, out = self.m, self.hf, {}
        rows = glu_rows(m.ffn, self.x.tp, t)
        if not m.glu:
            out["mlp.linear_fc1.weight"] = self.split_rows(hf[own + "up_proj.weight"], t)
            if m.mlp_bias:
                out["mlp.linear_fc1.bias"] = self.split_rows(hf[own + "up_proj.bias"], t)
        elif m.fused_dense_gate_up:
            out["mlp.linear_fc1.weight"] = hf[own + "gate_up_proj.weight"][rows]
        else:
            for kind in ("weight", "bias") if m.mlp_bias else ("weight",):
                stacked = np.concatenate([hf[f"{own}gate_proj.{kind}"], hf[f"{own}up_proj.{kind}"]])
                out[f"mlp.linear_fc1.{kind}"] = stacked[rows]
        out["mlp.linear_fc2.weight"] = self.split_columns(hf[own + "down_proj.weight"], t)
        if m.mlp_bias:
            out["mlp.linear_fc2.bias"] = hf[own + "down_proj.bias"]
        return out

    def _router_and_shared(self, own, t):
        m, hf = self.m, self.hf
        router = own + ("router" if m.kind == "gpt_oss" else "gate")
        out = {"mlp.router.weight": hf[router + ".weight"]}  # all experts' rows on every rank
        if m.kind == "gpt_oss":
            out["mlp.router.bias"] = hf[router + ".bias"]
        if m.correction_bias:
            out["mlp.router.expert_bias"] = hf[router + ".e_score_correction_bias"].reshape(-1)
        if m.latent:
            for name in ("fc1_latent_proj.weight", "fc2_latent_proj.weight"):
                out["mlp." + name] = hf[own + name]
        if m.shared_ffn and not m.glu:
            shared = f"{own}{m.shared_name}."
            out["mlp.shared_experts.linear_fc1.weight"] = self.split_rows(hf[shared + "up_proj.weight"], t)
            out["mlp.shared_experts.linear_fc2.weight"] = self.split_columns(hf[shared + "down_proj.weight"], t)
        elif m.shared_ffn and m.fused_dense_gate_up:
            rows = glu_rows(m.shared_ffn, self.x.tp, t, self.x.shared_glu_interleave)
            out["mlp.shared_experts.linear_fc1.weight"] = hf[own + "gate_up_proj.weight"][rows]
            out["mlp.shared_experts.linear_fc2.weight"] = self.split_columns(hf[own + "down_proj.weight"], t)
        elif m.shared_ffn:
            shared = f"{own}{m.shared_name}."
            stacked = np.concatenate([hf[shared + "gate_proj.weight"], hf[shared + "up_proj.weight"]])
            rows = glu_rows(m.shared_ffn, self.x.tp, t, self.x.shared_glu_interleave)
            out["mlp.shared_experts.linear_fc1.weight"] = stacked[rows]
            out["mlp.shared_experts.linear_fc2.weight"] = self.split_columns(
                hf[shared + "down_proj.weight"], t)
            if m.shared_gate:
                out["mlp.shared_experts.gate_weight"] = hf[own + "shared_expert_gate.weight"]
        return out

    # The routed experts of a layer: depend on the expert grid alone.

    def _expert_part(self, layer, et, ep):
        m, x, out = self.m, self.x, {}
        if m.mlp(layer) != MOE:
            return out
        own = f"{m.hf_layer(layer)}{m.moe_name}.experts."
        count = m.experts // x.ep
        rows = (glu_rows(m.expert_ffn, x.etp, et, x.glu_interleave) if m.glu
                else chunk_rows(m.expert_ffn, x.etp, et))
        columns = chunk_rows(m.expert_ffn, x.etp, et)
        for i in range(count):
            gate_up, down, gate_up_bias, down_bias = self._expert(own, ep * count + i)
            if x.experts == "grouped":
                name = f"mlp.experts.linear_{{}}.{{}}{i}"
            else:
                name = f"mlp.experts.local_experts.{i}.linear_{{}}.{{}}"
            out[name.format("fc1", "weight")] = gate_up[rows]
            out[name.format("fc2", "weight")] = down[:, columns]
            if gate_up_bias is not None:
                out[name.format("fc1", "bias")] = gate_up_bias[rows]
                out[name.format("fc2", "bias")] = down_bias
        return out

    def _resaved(self, own):
        """Whether packed experts are [E, 2Im, H] and [E, H, Im]: where one tensor is square, the other is not."""
        m = self.m
        gate_up, down = self.hf[own + "gate_up_proj"].shape[1:], self.hf[own + "down_proj"].shape[1:]
        return (gate_up, down) == ((2 * m.expert_ffn, m.hidden), (m.hidden, m.expert_ffn))

    def _expert(self, own, e):
        """One expert as ([gate; up] [2Im, H], down [H, Im], their biases or None)."""
        hf, m = self.hf, self.m
        if not m.glu:
            return hf[f"{own}{e}.up_proj.weight"], hf[f"{own}{e}.down_proj.weight"], None, None
        if m.kind == "step3p5":
            gate, up, down = (hf[f"{own}{name}_proj"][e] for name in ("gate", "up", "down"))
            return np.concatenate([gate, up]), down, None, None
        if own + "gate_up_proj" not in hf:
            mixtral = m.moe_name == "block_sparse_moe"
            gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
            parts = [hf[f"{own}{e}.{name}.weight"] for name in (gate, up, down)]
            return np.concatenate(parts[:2]), parts[2], None, None
        gate_up, down = hf[own + "gate_up_proj"][e], hf[own + "down_proj"][e]
        if m.kind == "gpt_oss":
            # Column 2j is gate j, column 2j+1 is up j; HF has [in, out].
            turns = np.concatenate([np.arange(0, 2 * m.expert_ffn, 2), np.arange(1, 2 * m.expert_ffn, 2)])
            return (gate_up[:, turns].T, down.T, hf[own + "gate_up_proj_bias"][e][turns],
                    hf[own + "down_proj_bias"][e])
        if m.kind == "llama4_text" or (m.model_type == "qwen3_vl_moe" and not self._resaved(own)):
            return gate_up.T, down.T, None, None
        return gate_up, down, None, None  # Qwen3.5: as mcore has it


def zeros(shape, like):
    """Rows that no HF tensor has; numbers of elements stand for none there."""
    return np.full(shape, -1 if like.dtype == np.int64 else 0, like.dtype)


def _in_bf16(array):
    """The bf16 parameter that HF keeps as F32."""
    return (array >> 16).astype(np.uint16) if array.dtype == np.uint32 else array
