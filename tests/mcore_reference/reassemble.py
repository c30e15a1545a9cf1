"""The way back, written a second time: shards to HF by concatenation and reshaping.

Shares no formula with shards.py (no row numbers here, no Placement), so the two check each other. Each
step is a method of its own: planted.py overrides one at a time with a known bug.
"""

import re

import numpy as np

from .model import BOTH, CSA, DENSE, FULL, MAMBA, MLA, MOE, NOTHING, VISION_PREFIX, Model
from .renamed import Renamed
from .values import add_one, round_to_bf16, widen


class Reassembly:
    """listed: name -> (shape, dtype) of the HF file that is to be written."""

    def __init__(self, config, parallel, shards, listed):
        self.m, self.x, self.shards = Model(config), parallel, shards
        self.listed, self.out = Renamed(self.m, listed), Renamed(self.m, {})

    def run(self):
        m = self.m
        for chunk, local, layer in self.decoder_layers():
            self.block(chunk, f"decoder.layers.{local}.", m.hf_layer(layer), layer)
        for k in range(m.mtp_layers):
            self.mtp(k)
        self.ends()
        self.vision()
        return self.out.tensors

    # Where things are.

    def dense_ranks(self, p):
        """One data-parallel copy's ranks of a stage, by TP rank."""
        first = p * self.x.tp * self.x.cp * self.x.dp
        return [first + t for t in range(self.x.tp)]

    def expert_ranks(self, p, e):
        """One copy's ranks that hold EP rank e's experts, by expert TP rank."""
        first = p * self.x.tp * self.x.cp * self.x.dp
        return [first + e * self.x.etp + et for et in range(self.x.etp)]

    def local_names(self, chunk):
        p, v = chunk
        return self.shards[self.dense_ranks(p)[0], v]

    def chunk_order(self):
        return [(p, v) for v in range(self.x.vpp) for p in range(self.x.pp)]

    def decoder_layers(self):
        """(chunk, layer within it, global layer), counted from the names that the chunks hold."""
        done = 0
        pattern = re.compile(r"(?:thinker\.|llava_model\.)?(?:language_model\.)?decoder\.layers\.(\d+)\.")
        for chunk in self.chunk_order():
            found = {int(x.group(1)) for x in map(pattern.match, self.local_names(chunk)) if x}
            assert found == set(range(len(found)))
            for local in sorted(found):
                yield chunk, local, self.global_layer(done, local)
            done += len(found)

    def global_layer(self, before, local):
        return before + local

    def parts(self, chunk, name):
        p, v = chunk
        return [self.shards[rank, v][self.m.mcore_prefix + name] for rank in self.dense_ranks(p)]

    def has(self, chunk, name):
        return self.m.mcore_prefix + name in self.local_names(chunk)

    def first_with(self, name):
        return next(chunk for chunk in self.chunk_order() if self.has(chunk, name))

    def one(self, chunk, *spellings):
        """A replicated tensor, under whichever name it has."""
        name = next(name for name in spellings if self.has(chunk, name))
        return self.parts(chunk, name)[0]

    def rows(self, chunk, name):
        return np.concatenate(self.parts(chunk, name), axis=0)

    def columns(self, chunk, name):
        return np.concatenate(self.parts(chunk, name), axis=1)

    # Outside the layers.

    def embedding_source(self):
        return self.first_with("embedding.word_embeddings.weight")

    def head(self):
        if self.m.tied:
            return self.out[f"{self.m.hf_prefix}embed_tokens.weight"]
        return self.cut_vocabulary(self.rows(self.chunk_order()[-1], "output_layer.weight"))

    def cut_vocabulary(self, full):
        return full[:self.m.vocab]

    def ends(self):
        m = self.m
        name = "embedding.word_embeddings.weight"
        embedding = self.cut_vocabulary(self.rows(self.embedding_source(), name))
        self.out[f"{m.hf_prefix}embed_tokens.weight"] = embedding
        name = f"decoder.{m.final_norm}.weight"
        self.out[f"{m.hf_prefix}norm.weight"] = self.one(self.first_with(name), name)
        if m.layer_width:
            for mcore, name in (("embedding", "embed_tokens_per_layer"), ("model_proj", "per_layer_model_projection")):
                self.out[f"{m.hf_prefix}{name}.weight"] = self.rows((0, 0), f"per_layer_{mcore}.weight")
            self.out[f"{m.hf_prefix}per_layer_projection_norm.weight"] = self.one((0, 0), "per_layer_proj_norm.weight")
        if m.norm_bias:
            name = "decoder.final_layernorm.bias"
            self.out[f"{m.hf_prefix}norm.bias"] = self.one(self.first_with(name), name)
        if m.csa:
            self.streams_head(self.first_with("decoder.hc_head_fn"), "decoder.", "")
        head = self.head()
        for name in self.listed:
            if name == m.published("lm_head.weight"):
                self.out["lm_head.weight"] = head
            elif name.endswith((".shared_head.head.weight", ".shared_head.output.weight")):
                self.out.tensors[name] = head
            elif re.search(r"layers\.\d+\.embed_tokens\.weight$", name):
                self.out[name] = embedding

    def vision(self):
        if any(name.startswith("vision_model.decoder.") for name in self.shards[0, 0]):
            self.gated_tower() if self.m.gated_tower else self.tower()
            return
        for hf, mcore in VISION_PREFIX.get(self.m.model_type, {}).items():
            for name, array in self.shards[0, 0].items():
                if name.startswith(mcore):
                    self.out[hf + name[len(mcore):]] = array
        projector = "multi_modal_projector."
        if self.out.tensors.pop(projector + "proj.weight", None) is not None:
            self.out[projector + "mm_soft_emb_norm.weight"] = self.out.tensors.pop(
                projector + "mm_soft_embed_norm.weight")
            self.out[projector + "mm_input_projection_weight"] = np.concatenate(
                [part.T for part in self.tower_parts(projector + "proj.weight")], axis=1)

    def tower_parts(self, name):
        return [self.shards[rank, 0][name] for rank in self.dense_ranks(0)]

    def tower_qkv(self, parts):
        """HF's [all q; all k; all v] from the heads' [q; k; v] one after the other."""
        full = np.concatenate(parts)
        heads = self.m.vision["num_heads"]
        by_head = full.reshape(heads, 3, -1, *full.shape[1:])
        return by_head.swapaxes(0, 1).reshape(full.shape)

    def tower(self):
        """Qwen3-VL's vision part of Megatron's own modules."""
        for name in self.shards[0, 0]:
            if not name.startswith("vision_model."):
                continue
            parts, hf = self.tower_parts(name), name.removeprefix("vision_model.")
            if hf.endswith(("linear_fc1.weight", "linear_fc1.bias")):
                whole = np.concatenate(parts)
            elif hf.endswith(("linear_fc2.weight", "linear_proj.weight")):
                whole = np.concatenate(parts, axis=1)
            elif "linear_qkv.layer_norm" not in hf and "linear_qkv" in hf:
                whole = self.tower_qkv(parts)
            else:
                whole = parts[0]
            for mcore, theirs in (("decoder.layers.", "blocks."), ("decoder.deepstack", "deepstack"),
                                  ("patch_norm", "norm"), ("self_attention.linear_qkv.layer_norm_", "norm1."),
                                  ("mlp.linear_fc1.layer_norm_", "norm2."),
                                  ("self_attention.linear_qkv", "attn.qkv"),
                                  ("self_attention.linear_proj", "attn.proj")):
                hf = hf.replace(mcore, theirs)
            self.out["model.visual." + hf] = whole

    def gated_tower(self):
        """EXAONE 4.5's vision part of Megatron's own modules."""
        v, depth = self.m.vision, self.m.vision["depth"]
        whole = lambda name: self.tower_parts("vision_model." + name)[0]
        joined = lambda name, axis=0: np.concatenate(self.tower_parts("vision_model." + name), axis=axis)
        found = {"patch_embed.proj.weight": whole("patch_embed.proj.weight"),
                 "merger.ln_q.weight": whole("merger.patch_norm.weight"),
                 "merger.mlp.0.weight": joined("merger.linear_fc1.weight"),
                 "merger.mlp.0.bias": joined("merger.linear_fc1.bias"),
                 "merger.mlp.2.weight": joined("merger.linear_fc2.weight", 1),
                 "merger.mlp.2.bias": whole("merger.linear_fc2.bias")}
        for layer, block in ((f"decoder.layers.{i}.", f"blocks.{i}.") for i in range(depth)):
            for mcore, name in (("self_attention.linear_qkv", "norm1"), ("mlp.linear_fc1", "norm2")):
                found[f"{block}{name}.weight"] = whole(f"{layer}{mcore}.layer_norm_weight")
            for mcore, name in (("self_attention.linear_proj", "attn.proj"), ("mlp.linear_fc2", "mlp.down_proj")):
                found[f"{block}{name}.weight"] = joined(f"{layer}{mcore}.weight", 1)
                found[f"{block}{name}.bias"] = whole(f"{layer}{mcore}.bias")
            for kind in ("weight", "bias"):
                full = joined(f"{layer}self_attention.linear_qkv.{kind}")
                by_group = full.reshape(v["num_key_value_heads"], -1, v["hidden_size"] // v["num_heads"], *full.shape[1:])
                found[f"{block}attn.qkv.{kind}"] = np.concatenate(
                    [piece.reshape(-1, *full.shape[1:]) for piece in np.split(by_group, [-2, -1], axis=1)])
                found[f"{block}mlp.gate_proj.{kind}"], found[f"{block}mlp.up_proj.{kind}"] = self.gate_and_up(
                    self.tower_parts(f"vision_model.{layer}mlp.linear_fc1.{kind}"))
        for name, array in found.items():
            self.out["model.visual." + name] = array

    def mtp_hf_layer(self, k, inner=0):
        return self.m.hf_layer(self.m.layers + k * self.m.mtp_inner + inner)

    def eh_proj(self, full):
        return np.roll(full, self.m.hidden, axis=1) if self.m.kind == "mimo" else full

    def mtp(self, k):
        m, prefix = self.m, f"mtp.layers.{k}."
        chunk = self.first_with(prefix + "enorm.weight")
        hf = self.mtp_hf_layer(k)
        names = dict(enorm=hf + "enorm", hnorm=hf + "hnorm", eh_proj=hf + "eh_proj",
                     final_layernorm=self.mtp_hf_layer(k, m.mtp_inner - 1) + "shared_head.norm")
        if m.qwen_mtp:
            names = dict(enorm="mtp.pre_fc_norm_embedding", hnorm="mtp.pre_fc_norm_hidden",
                         eh_proj="mtp.fc", final_layernorm="mtp.norm")
        if m.csa:
            del names["eh_proj"]
            self.streams_head(chunk, prefix, hf)
            for name in ("e_proj.weight", "h_proj.weight"):
                self.out[hf + name] = self.rows(chunk, prefix + name)
        for mcore, name in names.items():
            full = (self.eh_proj(self.rows(chunk, prefix + "eh_proj.weight")) if mcore == "eh_proj"
                    else self.one(chunk, f"{prefix}{mcore}.weight"))
            self.out[name + ".weight"] = full
        inner = next(inner for inner in ("transformer_layer.", "mtp_model_layer.")
                     if any(name.startswith(m.mcore_prefix + prefix + inner)
                            for name in self.local_names(chunk)))
        if m.pattern:
            for i, _ in enumerate(m.mtp_pattern):
                self.block(chunk, f"{prefix}{inner}layers.{i}.", self.mtp_hf_layer(k, i),
                           m.layers + k * m.mtp_inner + i)
        else:
            self.block(chunk, prefix + inner, hf, m.layers + k)

    def streams_head(self, chunk, own, hf):
        for name in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
            self.out[hf + name] = self.one(chunk, own + name)

    # A block.

    def block(self, chunk, own, hf, layer):
        whole = self.m
        self.m = whole.at(layer)
        self.one_block(chunk, own, hf, layer)
        self.m = whole

    def one_block(self, chunk, own, hf, layer):
        m, attention = self.m, own + "self_attention."
        if m.kind == "gemma4_text":
            self.gemma4(chunk, own, hf)
        elif m.kind == "gemma4_dense":
            self.gemma4_dense(chunk, own, hf)
        else:
            self.post_norms(chunk, own, hf) if m.post_norms else self.norms(chunk, own, hf)
        if m.indexer(layer):
            self.indexer(chunk, attention + "core_attention.indexer.", hf + "self_attn.indexer.")
        if m.attention(layer) == MLA:
            self.mla(chunk, attention, hf + "self_attn.")
        elif m.attention(layer) == FULL:
            self.full_attention(chunk, attention, hf + "self_attn.")
        elif m.attention(layer) == MAMBA:
            self.mamba(chunk, own + "mixer.", hf + "mamba.")
        elif m.attention(layer) == BOTH:
            self.full_attention(chunk, attention, hf + "self_attn.")
            self.mamba(chunk, own + "mamba_mixer.", hf + "mamba.")
        elif m.attention(layer) == CSA:
            self.csa(chunk, attention, hf + "self_attn.")
            self.streams(chunk, own, hf)
        elif m.attention(layer) != NOTHING:
            self.gdn(chunk, attention, hf + "linear_attn.")
        if m.mlp(layer) == DENSE:
            self.dense_mlp(chunk, own + "mlp.linear_fc", hf + "mlp.")
        elif m.mlp(layer) == MOE:
            self.moe(chunk, own + "mlp.", f"{hf}{m.moe_name}.")

    def gemma4(self, chunk, own, hf):
        for mcore, name in (("self_attention.linear_proj.post_layernorm", "post_attention_layernorm"),
                            ("pre_mlp_layernorm", "pre_feedforward_layernorm_2"),
                            ("pre_shared_expert_layernorm", "pre_feedforward_layernorm"),
                            ("mlp.post_shared_expert_layernorm", "post_feedforward_layernorm_1"),
                            ("mlp.post_moe_layernorm", "post_feedforward_layernorm_2"),
                            ("post_ffn_layernorm", "post_feedforward_layernorm")):
            self.out[f"{hf}{name}.weight"] = self.norm(self.one(chunk, f"{own}{mcore}.weight"))
        self.out[hf + "input_layernorm.weight"] = self.norm(self.one(
            chunk, own + "input_layernorm.weight", own + "self_attention.linear_qkv.layer_norm_weight"))
        self.out[hf + "layer_scalar"] = self.one(chunk, own + "layer_scalar")
        for name in ("scale", "per_expert_scale"):
            self.out[f"{hf}router.{name}"] = self.one(chunk, f"{own}mlp.router.{name}")

    def gemma4_dense(self, chunk, own, hf):
        for mcore, name in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "pre_feedforward_layernorm"),
                            ("post_self_attn_layernorm", "post_attention_layernorm"),
                            ("post_mlp_layernorm", "post_feedforward_layernorm")):
            self.out[f"{hf}{name}.weight"] = self.one(chunk, f"{own}{mcore}.weight")
        for name in ("layer_scalar", "per_layer_input_gate.weight", "per_layer_projection.weight",
                     "post_per_layer_input_norm.weight"):
            if self.has(chunk, own + name):
                self.out[hf + name] = self.one(chunk, own + name)

    def norm(self, array):
        return array

    def post_norms(self, chunk, own, hf):
        for mcore, name in (("self_attention.linear_proj", "attention"), ("mlp.linear_fc2", "feedforward")):
            self.out[f"{hf}post_{name}_layernorm.weight"] = self.one(
                chunk, f"{own}{mcore}.post_layernorm.weight")

    def indexer(self, chunk, own, hf):
        for name in ("wq_b", "wk", "weights_proj"):
            self.out[f"{hf}{name}.weight"] = self.one(chunk, f"{own}linear_{name}.weight")
        for kind in ("weight", "bias"):
            self.out[f"{hf}k_norm.{kind}"] = self.one(chunk, f"{own}k_norm.{kind}")

    def before_mlp(self):
        return "pre_feedforward_layernorm" if self.m.gemma_norms else "post_attention_layernorm"

    def norms(self, chunk, own, hf):
        attention, found = own + "self_attention.", {}
        for name, spellings in (
                ("input_layernorm", (own + "input_layernorm.weight", attention + "linear_qkv.layer_norm_weight",
                                     attention + "in_proj.layer_norm_weight",
                                     attention + "linear_qkv_down_proj.layer_norm_weight",
                                     own + "mixer.in_proj.layer_norm_weight", own + "norm.weight")),
                (self.before_mlp(), (own + "pre_mlp_layernorm.weight", own + "mlp.linear_fc1.layer_norm_weight"))):
            if any(self.has(chunk, text) for text in spellings):  # a hybrid model's layers lack one
                found[name] = self.one(chunk, *spellings)
        if self.m.gemma_norms:
            names = {"post_attention_layernorm", "pre_feedforward_layernorm"} - {self.before_mlp()}
            found[names.pop()] = self.one(
                chunk, own + "post_attention_layernorm.weight",
                attention + "linear_proj.post_layernorm.weight")
            found["post_feedforward_layernorm"] = self.one(
                chunk, own + "post_feedforward_layernorm.weight",
                own + "mlp.linear_fc2.post_layernorm.weight")
        if self.m.glm4_norms:
            for name in ("post_self_attn_layernorm", "post_mlp_layernorm"):
                found[name] = self.one(chunk, f"{own}{name}.weight")
        if self.m.norm_bias:
            for name, spellings in (
                    ("input_layernorm", ("input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias")),
                    ("post_attention_layernorm", ("pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"))):
                self.out[f"{hf}{name}.bias"] = self.one(chunk, *(own + text for text in spellings))
        for name, array in found.items():
            self.out[f"{hf}{name}.weight"] = self.norm(array)

    def split_qkv(self, parts):
        """q, k, v from the ranks' parts of the fused tensor."""
        m = self.m
        full = np.concatenate(parts, axis=0)
        tail, per = full.shape[1:], m.heads // m.groups
        if m.v_head_dim != m.head_dim:
            cuts = np.cumsum([per * m.head_dim, m.head_dim])
            return tuple(piece.reshape(-1, *tail)
                         for piece in np.split(full.reshape(m.groups, -1, *tail), cuts, axis=1))
        group = full.reshape(m.groups, -1, m.head_dim, *tail)
        flat = lambda array: array.reshape(-1, *tail)
        k, v = group[:, -2], group[:, -1]
        if m.head_gate:
            gate = group[:, per:2 * per].reshape(m.heads, m.head_dim, *tail)
            return flat(group[:, :per]), flat(k), flat(v), self.of_head(gate)
        if not m.gated_attention:
            return flat(group[:, :per]), flat(k), flat(v)
        return self.join_gate(group[:, :per], group[:, per:2 * per], tail), flat(k), flat(v)

    def of_head(self, gate):
        """A head's gate of its rows, which are alike."""
        return gate[:, 0]

    def join_gate(self, q, gate, tail):
        """[groups, heads a group, head_dim, ...] each; HF alternates them head by head."""
        return np.stack([q, gate], axis=2).reshape(-1, *tail)

    def sinks(self, parts):
        return np.concatenate(parts)

    def full_attention(self, chunk, own, hf):
        for kind in ("weight", "bias"):
            if self.has(chunk, f"{own}linear_qkv.{kind}"):
                split = self.split_qkv(self.parts(chunk, f"{own}linear_qkv.{kind}"))
                if self.m.fused_qkv:
                    self.out[f"{hf}qkv.{kind}"] = np.concatenate(split)
                    continue
                for name, array in zip("qk" if self.m.keys_only else "qkvg", split):
                    if name == "q" or self.has_keys(hf):
                        self.out[f"{hf}{name}_proj.{kind}"] = array
        self.out[hf + "o_proj.weight"] = self.columns(chunk, own + "linear_proj.weight")
        if self.has(chunk, own + "linear_proj.bias"):
            self.out[hf + "o_proj.bias"] = self.one(chunk, own + "linear_proj.bias")
        for name in "qk":
            if self.has(chunk, f"{own}{name}_layernorm.weight") and self.m.wide_norms:
                self.out[f"{hf}{name}_norm.weight"] = self.rows(chunk, f"{own}{name}_layernorm.weight")
            elif self.has(chunk, f"{own}{name}_layernorm.weight") and (name == "q" or self.has_keys(hf)):
                self.out[f"{hf}{name}_norm.weight"] = self.norm(
                    self.one(chunk, f"{own}{name}_layernorm.weight"))
        if self.m.sinks:
            self.out[hf + "sinks"] = self.sinks(self.parts(chunk, own + "core_attention.softmax_offset"))

    def has_keys(self, hf):
        """Whether the file has this layer's keys: layers that share an earlier one's need none."""
        return not self.m.shares_keys or hf + "k_proj.weight" in self.listed

    def down_projection(self, parts, rows):
        """Whole on every rank, or split: the rows tell."""
        return parts[0] if len(parts[0]) == rows else np.concatenate(parts)

    def split_down_projection(self, parts):
        q, kv = self.m.q_lora, self.m.kv_lora + self.m.rope
        if len(parts[0]) == q + kv:
            parts = parts[:1]
        local = q // len(parts)
        return (np.concatenate([part[:local] for part in parts]),
                np.concatenate([part[local:] for part in parts]))

    def mla(self, chunk, own, hf):
        m, down = self.m, {}
        if self.has(chunk, own + "linear_qkv_down_proj.weight"):
            q, kv = self.split_down_projection(self.parts(chunk, own + "linear_qkv_down_proj.weight"))
            down = {"q_a_proj": q, "kv_a_proj_with_mqa": kv}
        else:
            down["kv_a_proj_with_mqa"] = self.down_projection(
                self.parts(chunk, own + "linear_kv_down_proj.weight"), m.kv_lora + m.rope)
            if m.q_lora is not None:
                down["q_a_proj"] = self.down_projection(
                    self.parts(chunk, own + "linear_q_down_proj.weight"), m.q_lora)
        if m.q_lora is None:
            down["q_proj"] = self.rows(chunk, own + "linear_q_proj.weight")
        else:
            down["q_b_proj"] = self.rows(chunk, own + "linear_q_up_proj.weight")
            down["q_a_layernorm"] = self.one(chunk, own + "linear_q_up_proj.layer_norm_weight",
                                             own + "q_layernorm.weight")
        down["kv_b_proj"] = self.rows(chunk, own + "linear_kv_up_proj.weight")
        down["kv_a_layernorm"] = self.one(chunk, own + "linear_kv_up_proj.layer_norm_weight",
                                          own + "kv_layernorm.weight")
        down["o_proj"] = self.columns(chunk, own + "linear_proj.weight")
        for name, array in down.items():
            self.out[f"{hf}{name}.weight"] = array

    def csa(self, chunk, own, hf):
        core, m = own + "core_attention.", self.m
        for name, mcore, rows in (("wq_a", "linear_q_down_proj", m.q_lora), ("wkv", "linear_kv_proj", m.head_dim)):
            self.out[f"{hf}{name}.weight"] = self.down_projection(self.parts(chunk, f"{own}{mcore}.weight"), rows)
        for name, mcore in (("q_norm.weight", "q_layernorm.weight"), ("kv_norm.weight", "kv_layernorm.weight"),
                            ("wo_a.weight", "linear_o_group_proj")):
            self.out[hf + name] = self.one(chunk, own + mcore)
        self.out[hf + "wq_b.weight"] = self.rows(chunk, own + "linear_q_up_proj.weight")
        self.out[hf + "wo_b.weight"] = self.columns(chunk, own + "linear_proj.weight")
        self.out[hf + "attn_sink"] = self.sinks(self.parts(chunk, core + "attn_sink"))
        for name in self.local_names(chunk):
            if name.startswith((core + "compressor.", core + "indexer.")):
                self.out[hf + name.removeprefix(core).replace("linear_", "")] = self.one(chunk, name)

    def scale(self, scalars):
        return np.concatenate(scalars)

    def streams(self, chunk, own, hf):
        for mcore, name in (("self_attention", "attn"), ("mlp", "ffn")):
            place, to = f"{own}{mcore}_hyper_connection.", f"{hf}hc_{name}_"
            self.out[to + "fn"] = self.one(chunk, place + "mapping_proj.weight")
            self.out[to + "base"] = self.one(chunk, place + "bias")
            self.out[to + "scale"] = self.scale([self.one(chunk, f"{place}alpha_{kind}")
                                                 for kind in ("pre", "post", "res")])

    def components(self, parts, sizes):
        """Each rank's part holds its share of every component, one after the other."""
        cuts = np.cumsum(sizes)[:-1] // self.x.tp
        split = [np.split(part, cuts) for part in parts]
        return [np.concatenate(pieces) for pieces in zip(*split)]

    def by_key_head(self, pieces):
        """Qwen3-Next: the pieces of each key head together."""
        heads = self.m.gdn_k_heads
        cut = [piece.reshape(heads, -1, piece.shape[-1]) for piece in pieces]
        return np.concatenate(cut, axis=1).reshape(-1, pieces[0].shape[-1])

    def out_norm(self, array, dtype):
        bits = add_one(widen(array))
        return bits if dtype == "F32" else round_to_bf16(bits)

    def gdn(self, chunk, own, hf):
        m = self.m
        keys, values, heads = m.gdn_k_heads * m.gdn_k_dim, m.gdn_v_heads * m.gdn_v_dim, m.gdn_v_heads
        q, k, v, z, b, a = self.components(self.parts(chunk, own + "in_proj.weight"),
                                           [keys, keys, values, values, heads, heads])
        if m.kind == "qwen3_next":
            self.out[hf + "in_proj_qkvz.weight"] = self.by_key_head([q, k, v, z])
            self.out[hf + "in_proj_ba.weight"] = self.by_key_head([b, a])
        else:
            for name, array in (("qkv", np.concatenate([q, k, v])), ("z", z), ("b", b), ("a", a)):
                self.out[f"{hf}in_proj_{name}.weight"] = array
        conv = self.components(self.parts(chunk, own + "conv1d.weight"), [keys, keys, values])
        self.out[hf + "conv1d.weight"] = np.concatenate(conv)
        for name in ("A_log", "dt_bias"):
            full = self.rows(chunk, own + name)
            self.out[hf + name] = widen(full) if self.listed[hf + name][1] == "F32" else full
        name = hf + "norm.weight"
        self.out[name] = self.out_norm(self.one(chunk, own + "out_norm.weight"), self.listed[name][1])
        self.out[hf + "out_proj.weight"] = self.columns(chunk, own + "out_proj.weight")

    def mamba(self, chunk, own, hf):
        m = self.m
        width, states = m.mamba_width, m.mamba_states
        self.out[hf + "in_proj.weight"] = np.concatenate(self.components(
            self.parts(chunk, own + "in_proj.weight"), [width, width, states, states, m.mamba_heads]))
        for kind in ("weight", "bias"):
            for name in (f"conv1d_{kind}", f"conv1d.{kind}"):
                if self.has(chunk, own + name):
                    self.out[f"{hf}conv1d.{kind}"] = np.concatenate(self.components(
                        self.parts(chunk, own + name), [width, states, states]))
        for name in ("A_log", "D", "dt_bias"):
            full = self.rows(chunk, own + name)
            self.out[hf + name] = widen(full) if self.listed[hf + name][1] == "F32" else full
        if self.has(chunk, own + "norm.weight"):
            self.out[hf + "norm.weight"] = self.rows(chunk, own + "norm.weight")
        self.out[hf + "out_proj.weight"] = self.columns(chunk, own + "out_proj.weight")

    # MLPs.

    def gate_and_up(self, parts, interleave=0):
        """The two halves of a GLU's fc1 from the ranks' parts."""
        gates, ups = [], []
        for part in parts:
            if interleave:
                turns = part.reshape(-1, 2, interleave, *part.shape[1:])
                gate, up = (turns[:, i].reshape(-1, *part.shape[1:]) for i in (0, 1))
            else:
                gate, up = np.split(part, 2)
            gates.append(gate)
            ups.append(up)
        return np.concatenate(gates), np.concatenate(ups)

    def dense_mlp(self, chunk, own, hf):
        for kind in ("weight", "bias"):
            if not self.has(chunk, f"{own}1.{kind}"):
                continue
            if not self.m.glu:
                self.out[f"{hf}up_proj.{kind}"] = self.rows(chunk, f"{own}1.{kind}")
                continue
            gate, up = self.gate_and_up(self.parts(chunk, f"{own}1.{kind}"))
            if self.m.fused_dense_gate_up:
                self.out[f"{hf}gate_up_proj.{kind}"] = np.concatenate([gate, up])
            else:
                self.out[f"{hf}gate_proj.{kind}"], self.out[f"{hf}up_proj.{kind}"] = gate, up
        self.out[hf + "down_proj.weight"] = self.columns(chunk, own + "2.weight")
        if self.has(chunk, own + "2.bias"):
            self.out[hf + "down_proj.bias"] = self.one(chunk, own + "2.bias")

    def correction_bias(self, array):
        return array

    def shared_parts(self, chunk, name):
        return self.parts(chunk, name)

    def moe(self, chunk, own, hf):
        m = self.m
        router = hf + ("router" if m.kind == "gpt_oss" else "gate")
        self.out[router + ".weight"] = self.one(chunk, own + "router.weight")
        if self.has(chunk, own + "router.bias"):
            self.out[router + ".bias"] = self.one(chunk, own + "router.bias")
        if self.has(chunk, own + "router.expert_bias"):
            self.out[router + ".e_score_correction_bias"] = self.correction_bias(
                self.one(chunk, own + "router.expert_bias")).reshape(
                    self.listed[router + ".e_score_correction_bias"][0])
        for name in ("fc1_latent_proj.weight", "fc2_latent_proj.weight"):
            if self.has(chunk, own + name):
                self.out[hf + name] = self.one(chunk, own + name)
        shared = own + "shared_experts."
        if self.has(chunk, shared + "linear_fc1.weight") and not m.glu:
            name = f"{hf}{m.shared_name}."
            self.out[name + "up_proj.weight"] = np.concatenate(
                self.shared_parts(chunk, shared + "linear_fc1.weight"))
            self.out[name + "down_proj.weight"] = np.concatenate(
                self.shared_parts(chunk, shared + "linear_fc2.weight"), axis=1)
        elif self.has(chunk, shared + "linear_fc1.weight") and m.fused_dense_gate_up:
            self.out[hf + "gate_up_proj.weight"] = np.concatenate(self.gate_and_up(
                self.shared_parts(chunk, shared + "linear_fc1.weight"), self.x.shared_glu_interleave))
            self.out[hf + "down_proj.weight"] = np.concatenate(
                self.shared_parts(chunk, shared + "linear_fc2.weight"), axis=1)
        elif self.has(chunk, shared + "linear_fc1.weight"):
            gate, up = self.gate_and_up(self.shared_parts(chunk, shared + "linear_fc1.weight"),
                                        self.x.shared_glu_interleave)
            name = f"{hf}{m.shared_name}."
            self.out[name + "gate_proj.weight"], self.out[name + "up_proj.weight"] = gate, up
            self.out[name + "down_proj.weight"] = np.concatenate(
                self.shared_parts(chunk, shared + "linear_fc2.weight"), axis=1)
        if self.has(chunk, shared + "gate_weight"):
            self.out[hf + "shared_expert_gate.weight"] = self.one(chunk, shared + "gate_weight")
        self.experts(chunk, own + "experts.", hf + "experts.")

    def expert_parts(self, chunk, e, name):
        return [self.shards[rank, chunk[1]][self.m.mcore_prefix + name]
                for rank in self.expert_ranks(chunk[0], e)]

    def global_expert(self, ep, local):
        return ep * (self.m.experts // self.x.ep) + local

    def expert_down(self, parts):
        return np.concatenate(parts, axis=1)

    def experts(self, chunk, own, hf):
        """Collects gate, up, down (and biases) of all experts, then writes them as the file has them."""
        m, whole = self.m, {}
        for ep in range(self.x.ep):
            for local in range(self.m.experts // self.x.ep):
                name = (lambda fc, kind: f"{own}linear_{fc}.{kind}{local}")
                if self.x.experts == "sequential":
                    name = (lambda fc, kind: f"{own}local_experts.{local}.linear_{fc}.{kind}")
                one, fc1 = {}, self.expert_parts(chunk, ep, name("fc1", "weight"))
                if m.glu:
                    one["gate"], one["up"] = self.gate_and_up(fc1, self.x.glu_interleave)
                else:
                    one["up"] = np.concatenate(fc1)
                one["down"] = self.expert_down(self.expert_parts(chunk, ep, name("fc2", "weight")))
                if self.has(chunk, name("fc1", "bias")):
                    one["gate_bias"], one["up_bias"] = self.gate_and_up(
                        self.expert_parts(chunk, ep, name("fc1", "bias")), self.x.glu_interleave)
                    one["down_bias"] = self.expert_parts(chunk, ep, name("fc2", "bias"))[0]
                whole[self.global_expert(ep, local)] = one
        self.write_experts(hf, [whole[e] for e in sorted(whole)])

    def turns(self, gate, up):
        """gpt-oss: gate 0, up 0, gate 1, up 1, ... along the last axis."""
        return np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)

    def transposed(self, array):
        return array.swapaxes(-1, -2)

    def write_experts(self, hf, experts):
        m = self.m
        if hf + "gate_up_proj" not in self.listed and m.kind != "step3p5":
            names = dict(gate="gate_proj", up="up_proj", down="down_proj")
            if m.moe_name == "block_sparse_moe":
                names = dict(gate="w1", up="w3", down="w2")
            for e, one in enumerate(experts):
                for kind, name in (item for item in names.items() if item[0] in one):
                    self.out[f"{hf}{e}.{name}.weight"] = one[kind]
            return
        pack = {kind: np.stack([one[kind] for one in experts]) for kind in experts[0]}
        if m.kind == "step3p5":
            for kind, array in pack.items():
                self.out[f"{hf}{kind}_proj"] = array
            return
        if m.kind == "gpt_oss":
            self.out[hf + "gate_up_proj"] = self.turns(self.transposed(pack["gate"]),
                                                       self.transposed(pack["up"]))
            self.out[hf + "down_proj"] = self.transposed(pack["down"])
            self.out[hf + "gate_up_proj_bias"] = self.turns(pack["gate_bias"], pack["up_bias"])
            self.out[hf + "down_proj_bias"] = pack["down_bias"]
            return
        both = np.concatenate([pack["gate"], pack["up"]], axis=1)
        if m.kind == "llama4_text" or m.model_type == "qwen3_vl_moe" and self.listed[hf + "gate_up_proj"][0][1:] + self.listed[
                hf + "down_proj"][0][1:] == (m.hidden, 2 * m.expert_ffn, m.expert_ffn, m.hidden):
            both, pack["down"] = self.transposed(both), self.transposed(pack["down"])
        self.out[hf + "gate_up_proj"], self.out[hf + "down_proj"] = both, pack["down"]
