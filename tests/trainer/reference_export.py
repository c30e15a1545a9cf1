"""Makes HF tensors of gathered shards, independently of deltawire, by Megatron's layout rules.

It gathers the whole model on rank 0. deltawire's export is compared with its result, and it shows
that the harness tells right from wrong.

Layout rules, in short: a rank of T holds rows [t*n, (t+1)*n) of a column-parallel weight and
columns of a row-parallel one; the fused gate-and-up holds a rank's share of gate, then its share
of up; the fused QKV is group by group, q heads then k then v; experts are cut over their own
tensor-parallel group; expert i of group e is number e*E/EP + i.
"""
import torch


def strip_wrappers(name):
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


class Shards:
    """The shards of every tensor, by (stage, chunk, name); replicas are checked to be equal."""

    def __init__(self, dumps, layout):
        self.layout = layout
        self.dense, self.expert = {}, {}
        for dump in dumps:
            for (chunk, full_name), tensor in dump.tensors.items():
                name = strip_wrappers(full_name)
                key = (dump.pp, chunk, name)
                if ".experts." in name:
                    place, at = self.expert, (key, dump.ep, dump.etp)
                else:
                    place, at = self.dense, (key, dump.tp)
                if at in place:
                    assert torch.equal(place[at], tensor), f"replicas of {key} differ"
                place[at] = tensor

    def names(self):
        return sorted({at[0] for at in self.dense} | {at[0] for at in self.expert})

    def of(self, key, ep=None):
        if ep is None:
            return [self.dense[key, t] for t in range(self.layout.tp)]
        return [self.expert[key, ep, t] for t in range(self.layout.expert_tp)]


def whole(shards):
    for shard in shards[1:]:
        assert torch.equal(shard, shards[0]), "a replicated tensor differs between ranks"
    return shards[0]


def rows(shards):
    return torch.cat(shards, dim=0)


def columns(shards):
    return torch.cat(shards, dim=1)


def gate_up(shards):
    halves = [shard.chunk(2, dim=0) for shard in shards]
    return rows([gate for gate, _ in halves]), rows([up for _, up in halves])


def split_qkv(fused, hf):
    heads, groups = hf.num_attention_heads, hf.num_key_value_heads
    width = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    per_group = heads // groups
    picked = {"q": [], "k": [], "v": []}
    for group in range(groups):
        for j in range(per_group + 2):
            start = (group * (per_group + 2) + j) * width
            kind = "q" if j < per_group else "kv"[j - per_group]
            picked[kind].append(fused[start : start + width])
    return {kind: rows(parts) for kind, parts in picked.items()}


# MLA's tensors, and how each is cut; `maybe`: whole with transformer-engine, cut by the others.
MLA = {
    "linear_q_proj.weight": ("q_proj", "rows"),
    "linear_q_down_proj.weight": ("q_a_proj", "maybe"),
    "linear_q_up_proj.weight": ("q_b_proj", "rows"),
    "q_layernorm.weight": ("q_a_layernorm", "whole"),
    "linear_kv_down_proj.weight": ("kv_a_proj_with_mqa", "maybe"),
    "linear_kv_up_proj.weight": ("kv_b_proj", "rows"),
    "kv_layernorm.weight": ("kv_a_layernorm", "whole"),
    "linear_proj.weight": ("o_proj", "columns"),
}
NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}
MTP = {
    "enorm.weight": ("enorm.weight", whole),
    "hnorm.weight": ("hnorm.weight", whole),
    "eh_proj.weight": ("eh_proj.weight", rows),
    "final_layernorm.weight": ("shared_head.norm.weight", whole),
}


def attention(name, shards, family, hf):
    """Yields (HF name below `self_attn.`, tensor)."""
    if family.mla:
        hf_name, cut = MLA[name]
        if cut == "maybe":
            kv_rows = hf.kv_lora_rank + hf.qk_rope_head_dim
            full = hf.q_lora_rank if hf_name == "q_a_proj" else kv_rows
            cut = "whole" if shards[0].shape[0] == full else "rows"
        yield f"{hf_name}.weight", {"rows": rows, "columns": columns, "whole": whole}[cut](shards)
    elif name.startswith("linear_qkv."):
        for kind, tensor in split_qkv(rows(shards), hf).items():
            yield f"{kind}_proj.{name.rpartition('.')[2]}", tensor
    elif name == "linear_proj.weight":
        yield "o_proj.weight", columns(shards)
    elif name == "linear_proj.bias":
        yield "o_proj.bias", whole(shards)
    elif name in ("q_layernorm.weight", "k_layernorm.weight"):
        yield f"{name[0]}_norm.weight", whole(shards)
    elif name == "core_attention.softmax_offset":
        yield "sinks", rows(shards)
    else:
        raise KeyError(f"no rule for attention's {name}")


def mlp(prefix, name, shards):
    """A dense MLP, a shared expert or one routed expert, as three HF tensors."""
    if name == "linear_fc1.weight":
        gate, up = gate_up(shards)
        yield f"{prefix}.gate_proj.weight", gate
        yield f"{prefix}.up_proj.weight", up
    elif name == "linear_fc2.weight":
        yield f"{prefix}.down_proj.weight", columns(shards)
    else:
        raise KeyError(f"no rule for the MLP's {name}")


def router(name, shards, names):
    if name == "expert_bias":
        yield f"{names.router}.e_score_correction_bias", whole(shards)
    else:
        yield f"{names.router}.{name}", whole(shards)


def experts(entries, family, layout, count):
    """All experts of a layer. `entries`: {(ep, local, name): shards}."""
    names = family.names
    per_group = count // layout.ep
    found = {}
    for (ep, local, name), shards in entries.items():
        found[ep * per_group + local, name] = shards
    assert {e for e, _ in found} == set(range(count)), "an expert is missing"
    if names.packed:
        yield from packed_experts(found, names, count)
        return
    gate_name, up_name, down_name = names.parts
    for (e, name), shards in sorted(found.items()):
        if name == "linear_fc1.weight":
            gate, up = gate_up(shards)
            yield f"{names.expert.format(e=e, part=gate_name)}.weight", gate
            yield f"{names.expert.format(e=e, part=up_name)}.weight", up
        elif name == "linear_fc2.weight":
            yield f"{names.expert.format(e=e, part=down_name)}.weight", columns(shards)
        else:
            raise KeyError(f"no rule for an expert's {name}")


def packed_experts(found, names, count):
    """gpt-oss: [E, in, out], gate and up alternating in the last dimension; biases [E, out]."""
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        both, down = [], []
        for e in range(count):
            gate, up = gate_up(found[e, f"linear_fc1.{kind}"])
            both.append(torch.stack([gate, up], dim=1).flatten(0, 1))
            fc2 = found[e, f"linear_fc2.{kind}"]
            down.append(columns(fc2) if kind == "weight" else whole(fc2))
        if kind == "weight":
            both, down = [t.T for t in both], [t.T for t in down]
        yield f"{names.expert}.gate_up_proj{suffix}", torch.stack(both).contiguous()
        yield f"{names.expert}.down_proj{suffix}", torch.stack(down).contiguous()


def hf_tensors(dumps, family, hf, layout):
    """{HF name: tensor} of the whole model."""
    shards = Shards(dumps, layout)
    for dump in dumps:
        for (chunk, local), number in dump.layer_numbers.items():
            stated = layout.layer_offset(hf.num_hidden_layers, dump.pp, chunk) + local
            assert stated == number, (dump.pp, chunk, local, stated, number)
    result, by_layer = {}, {}

    def add(name, tensor):
        assert name not in result, f"{name} comes from two places"
        result[name] = tensor.contiguous()

    for key in shards.names():
        stage, chunk, name = key
        if name == "embedding.word_embeddings.weight":
            if stage > 0 or chunk > 0:  # a copy, for MTP
                continue
            add("model.embed_tokens.weight", rows(shards.of(key))[: hf.vocab_size])
        elif name == "output_layer.weight":
            if not hf.tie_word_embeddings:
                add("lm_head.weight", rows(shards.of(key))[: hf.vocab_size])
        elif name == "decoder.final_layernorm.weight":
            add("model.norm.weight", whole(shards.of(key)))
        else:
            block, _, local, rest = name.split(".", 3)
            if block == "mtp":  # behind the last decoder layer, wherever its stage is
                layer = hf.num_hidden_layers + int(local)
                rest = rest.removeprefix("transformer_layer.").removeprefix("mtp_model_layer.")
            else:
                layer = layout.layer_offset(hf.num_hidden_layers, stage, chunk) + int(local)
            prefix = f"model.layers.{layer}"
            if rest.startswith("mlp.experts.local_experts."):
                expert, part = rest[len("mlp.experts.local_experts.") :].split(".", 1)
                for ep in range(layout.ep):
                    by_layer.setdefault(prefix, {})[ep, int(expert), part] = shards.of(key, ep)
            else:
                for hf_name, tensor in layer_tensor(rest, shards.of(key), family, hf):
                    add(f"{prefix}.{hf_name}", tensor)
    count = getattr(hf, "num_local_experts", None) or getattr(hf, "num_experts", None)
    count = count or getattr(hf, "n_routed_experts", None)
    for prefix, entries in by_layer.items():
        for hf_name, tensor in experts(entries, family, layout, count):
            add(f"{prefix}.{hf_name}", tensor)
    return result


def layer_tensor(rest, shards, family, hf):
    """Yields (HF name below the layer, tensor) of what is not a routed expert."""
    names = family.names
    if rest in MTP:
        name, join = MTP[rest]
        yield name, join(shards)
    elif rest in NORMS:
        yield NORMS[rest], whole(shards)
    elif rest.startswith("self_attention."):
        for name, tensor in attention(rest[len("self_attention.") :], shards, family, hf):
            yield f"self_attn.{name}", tensor
    elif rest.startswith("mlp.router."):
        yield from router(rest[len("mlp.router.") :], shards, names)
    elif rest == "mlp.shared_experts.gate_weight":
        yield "mlp.shared_expert_gate.weight", whole(shards)
    elif rest.startswith("mlp.shared_experts."):
        yield from mlp(names.shared, rest[len("mlp.shared_experts.") :], shards)
    elif rest.startswith("mlp."):
        yield from mlp("mlp", rest[len("mlp.") :], shards)
    else:
        raise KeyError(f"no rule for {rest}")
