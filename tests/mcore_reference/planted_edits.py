"""Known export bugs as small edits of the family files: PLANTED, one entry each.

An edit names a file of configs/models, the [[param]] it is in (texts that only that one has), and a text
that stands there exactly once. `says`: what the refusal must contain; None: nothing tells but the
result, which differs from the expected one. `shows(model, parallel)`: where the bug can
show at all; everywhere there it must be caught. model.hub is the case's HubFile.
"""

from dataclasses import dataclass
from typing import Callable

from .parallel import Placement, padded_vocab

REFUSED_SHAPE = "do not fit the plan"


@dataclass(frozen=True)
class Edit:
    file: str
    marks: tuple  # of the [[param]]; empty: anywhere in the file
    old: str
    new: str

    def apply(self, text):
        if not self.marks:
            blocks, at = [text], 0
        else:
            blocks = text.split("[[param]]")
            found = [i for i, block in enumerate(blocks) if all(mark in block for mark in self.marks)]
            assert len(found) == 1, f"{self.file}.toml: {len(found)} parameters with {self.marks}"
            at = found[0]
        assert blocks[at].count(self.old) == 1, (
            f"{self.file}.toml: {self.old!r} is there {blocks[at].count(self.old)} times")
        blocks[at] = blocks[at].replace(self.old, self.new)
        return "[[param]]".join(blocks)


@dataclass(frozen=True)
class Planted:
    name: str
    family: str  # of the case
    edits: Callable  # model -> edits
    says: str | None = None
    shows: Callable = lambda m, x: True
    change: Callable | None = None  # of the config
    listing: bool = True  # the checkpoint's names, shapes and dtypes are known


PLANTED = []


def plant(name, family, *edits, **more):
    make = edits[0] if callable(edits[0]) else lambda m: edits
    PLANTED.append(Planted(name, family, make, **more))


def in_param(file, *marks):
    return lambda old, new="": Edit(file, marks, old, new)


def anywhere(file, old, new=""):
    return Edit(file, (), old, new)


PER_SHARD = "per_shard = true\n"

# ---- gate and up ----

fc1 = in_param("llama", 'mcore = "mlp.linear_fc1.weight"')
expert_fc1 = in_param("moe", "linear_fc1.weight{e}", "!packed")
expert_fc2 = in_param("moe", "linear_fc2.weight{e}", "!packed")
shared_fc1 = in_param("moe", 'mcore = "mlp.shared_experts.linear_fc1.weight"')
has_dense = lambda m: any(m.mlp(i) == "dense" for i in range(m.layers))
has_moe = lambda m: any(m.mlp(i) == "moe" for i in range(m.layers))

plant("gate and up swapped", "qwen3",
      fc1('gate_proj.weight", rows = "ffn" },\n  { hf = "mlp.up_proj',
          'up_proj.weight", rows = "ffn" },\n  { hf = "mlp.gate_proj'))
plant("gate and up of experts swapped", "qwen3_moe",
      expert_fc1('{gate}.weight", rows = "expert_ffn" },\n  { hf = "{experts}{e}.{up}',
                 '{up}.weight", rows = "expert_ffn" },\n  { hf = "{experts}{e}.{gate}'),
      shows=lambda m, x: has_moe(m))
plant("fc1 put together plainly", "qwen3", fc1(PER_SHARD), shows=lambda m, x: x.tp > 1)
plant("experts' fc1 put together plainly", "qwen3_moe",
      expert_fc1(PER_SHARD), expert_fc1('block = "glu_interleave"\n'),
      shows=lambda m, x: x.etp > 1 and not x.glu_interleave and has_moe(m))
plant("shared expert's fc1 put together plainly", "deepseek_v3",
      shared_fc1(PER_SHARD), shared_fc1('block = "shared_glu_interleave"\n'),
      shows=lambda m, x: x.tp > 1 and not x.shared_glu_interleave)
plant("glu_interleave ignored", "qwen3_moe", expert_fc1('block = "glu_interleave"\n'),
      shows=lambda m, x: 0 < x.glu_interleave < m.expert_ffn // x.etp and has_moe(m))
plant("shared_glu_interleave ignored", "deepseek_v3",
      shared_fc1('block = "shared_glu_interleave"\n'),
      shows=lambda m, x: 0 < x.shared_glu_interleave < m.shared_ffn // x.tp)

# ---- experts: orientation, order, expert TP ----


def square(language):
    """Down projections of [H, H]."""
    key = "moe_intermediate_size" if "moe_intermediate_size" in language else "intermediate_size"
    language[key] = language["hidden_size"]


def square_gate_up(language):
    """gate_up_proj of [H, H]."""
    language["hidden_size"] = 2 * language["moe_intermediate_size"]


plant("square down projections as Megatron has them", "gpt_oss",
      in_param("gpt_oss", "linear_fc2.weight{e}")("transpose = true\n"), change=square)
plant("square down projections as Megatron has them", "qwen3_vl_moe",
      in_param("moe", "linear_fc2.weight{e}", "transpose")('transpose = "turned"\n'), change=square,
      shows=lambda m, x: has_moe(m) and m.hub.packed and not m.hub.resaved)
plant("square gate_up as Megatron has it", "qwen3_vl_moe",
      in_param("moe", "linear_fc1.weight{e}", "transpose")('transpose = "turned"\n'),
      change=square_gate_up,
      shows=lambda m, x: has_moe(m) and m.hub.packed and not m.hub.resaved)
for change, kind in ((square, "down"), (square_gate_up, "gate_up")):
    plant(f"square {kind} saved again read as published", "qwen3_vl_moe",
          in_param("moe", f"linear_fc{2 if kind == 'down' else 1}.weight{{e}}", "transpose")('"turned"', '"1"'),
          change=change, shows=lambda m, x: has_moe(m) and m.hub.packed and m.hub.resaved)
plant("down projections as Megatron has them", "gpt_oss",
      in_param("gpt_oss", "linear_fc2.weight{e}")("transpose = true\n"),
      says="in the checkpoint, and", shows=lambda m, x: m.hidden != m.expert_ffn)
halves = in_param("gpt_oss", "linear_fc1.weight{e}")
plant("columns of gate and up in turn read as halves", "gpt_oss",
      halves(', runs = "expert_ffn", pitch = 2 }', " }"),
      halves('runs = "expert_ffn", pitch = 2, at = 1 }', 'at = "expert_ffn" }'))
plant("experts' fc1 of one expert-TP rank", "qwen3_moe",
      expert_fc1('split = "rows"', 'split = "none"'), says=REFUSED_SHAPE,
      shows=lambda m, x: x.etp > 1 and has_moe(m))
plant("experts' fc2 of one expert-TP rank", "qwen3_moe",
      expert_fc2('split = "columns"', 'split = "none"'), says=REFUSED_SHAPE,
      shows=lambda m, x: x.etp > 1 and has_moe(m))
plant("experts' fc2 cut by rows", "qwen3_moe",
      expert_fc2('split = "columns"', 'split = "rows"'), says=REFUSED_SHAPE,
      shows=lambda m, x: x.etp > 1 and m.hidden % x.etp == 0 and has_moe(m))

# ---- attention ----

plant("QKV as [all q; all k; all v]", "qwen3",
      in_param("llama", 'mcore = "self_attention.linear_qkv.weight"')('groups = "kv_heads"\n'),
      shows=lambda m, x: m.groups > 1)
plant("QKV bias as [all q; all k; all v]", "qwen2",
      in_param("llama", 'mcore = "self_attention.linear_qkv.bias"')('groups = "kv_heads"\n'),
      shows=lambda m, x: m.groups > 1)
gated = in_param("qwen3_next", 'mcore = "self_attention.linear_qkv.weight"')
GATE = ('  { hf = "self_attn.q_proj.weight", rows = "heads * head_dim", runs = "heads", '
        'pitch = "2 * head_dim", at = "head_dim" },\n')
has_full = lambda m: any(m.attention(i) == "full" for i in range(m.layers))
has_linear = lambda m: any(m.attention(i) == "gdn" for i in range(m.layers))
plant("attention's output gate left out", "qwen3_next", gated(GATE),
      says="are written by no rank", shows=lambda m, x: has_full(m))
plant("q and its gate as [all q; all gates]", "qwen3_next",
      gated(', runs = "heads", pitch = "2 * head_dim" }', " }"),
      gated('runs = "heads", pitch = "2 * head_dim", at = "head_dim" }', 'at = "heads * head_dim" }'),
      shows=lambda m, x: has_full(m) and m.heads > 1)
for family, file in (("qwen3_next", "qwen3_next"), ("qwen3_5", "qwen3_5_text")):
    plant("linear attention's in_proj put together plainly", family,
          in_param(file, 'mcore = "self_attention.in_proj.weight"')(PER_SHARD),
          shows=lambda m, x: x.tp > 1 and has_linear(m))
plant("linear attention's conv1d put together plainly", "qwen3_next",
      in_param("qwen3_next", 'mcore = "self_attention.conv1d.weight"')(PER_SHARD),
      shows=lambda m, x: x.tp > 1 and has_linear(m))
divides = lambda m, x: m.q_lora and m.q_lora % x.tp == 0 and (m.kv_lora + m.rope) % x.tp == 0
for name in ("q_down", "kv_down"):
    plant(f"MLA: {name} projection cut though whole", "deepseek_v2",
          in_param("deepseek_v2", f'mcore = "self_attention.linear_{name}_proj.weight"')(
              '{ te = "none", local = "rows" }', '"rows"'), says=REFUSED_SHAPE,
          shows=lambda m, x: x.tp > 1 and x.spec == "te" and not x.mla_down_fusion and divides(m, x))
    plant(f"MLA: {name} projection of one rank though cut", "deepseek_v2",
          in_param("deepseek_v2", f'mcore = "self_attention.linear_{name}_proj.weight"')(
              '{ te = "none", local = "rows" }', '"none"'), says=REFUSED_SHAPE,
          shows=lambda m, x: x.tp > 1 and x.spec == "local" and m.q_lora)
plant("MLA: fused down projection put together plainly", "deepseek_v2",
      in_param("deepseek_v2", "linear_qkv_down_proj.weight")(PER_SHARD),
      shows=lambda m, x: x.tp > 1 and x.mla_fusion_sharded)
plant("sinks of one rank", "gpt_oss",
      in_param("gpt_oss", "softmax_offset")('split = "rows"', 'split = "none"'),
      says=REFUSED_SHAPE, shows=lambda m, x: x.tp > 1)

# ---- norms ----

plant("no + 1 on linear attention's norm", "qwen3_next",
      in_param("qwen3_next", "out_norm.weight")("add = 1\n"), shows=lambda m, x: has_linear(m))
plant("+ 1 on Gemma's norms", "gemma2",
      in_param("gemma2", "linear_fc1.layer_norm_weight")('rows = "hidden"',
                                                         'add = 1\nrows = "hidden"'))
plant("+ 1 on Qwen3-Next's q norm", "qwen3_next",
      in_param("llama", "q_layernorm.weight")('rows = "head_dim"', 'add = 1\nrows = "head_dim"'),
      shows=lambda m, x: has_full(m))

# ---- router ----

bias = in_param("moe", 'mcore = "mlp.router.expert_bias"')
has_bias = lambda m, x: m.correction_bias and has_moe(m)
plant("correction bias written as bf16", "deepseek_v3", bias('dtype = "F32"', 'dtype = "BF16"'),
      listing=False, says="would round its values", shows=has_bias)
plant("no correction bias", "deepseek_v3",
      anywhere("deepseek_v3", 'correction_bias = ["topk_method.is.noaux_tc", "1"]',
               'correction_bias = "0"'), says="e_score_correction_bias", shows=has_bias)

# ---- layers, vocabulary, ends ----

plant("layers numbered within the stage", "qwen3",
      anywhere("qwen3", 'extends = "llama"\n',
               'extends = "llama"\nnames = { layer_hf = "{root}layers.{k}." }\n'),
      says="{k} is neither in [texts]")
plant("the trainer's layers numbered over the model", "qwen3",
      anywhere("qwen3", 'extends = "llama"\n',
               'extends = "llama"\nnames = { layer_mcore = "decoder.layers.{n}." }\n'),
      says=REFUSED_SHAPE, shows=lambda m, x: x.pp > 1)
for scope in ("embedding", "head"):
    plant(f"padding of the vocabulary kept: {scope}", "qwen3",
          in_param("llama", f'scope = "{scope}"', *(['"!tied"'] if scope == "head" else []))(
              "padded = true\n"), says=REFUSED_SHAPE,
          shows=lambda m, x: padded_vocab(m.vocab, x) != m.vocab and m.vocab % x.tp == 0 and
          (scope == "embedding" or not m.tied))
tied_head = in_param("llama", 'when = "tied && pp > 1"')
plant("stale output layer written over the tied embedding", "qwen3", tied_head("drop = true\n"),
      says="are written by more than one rank", shows=lambda m, x: m.tied and x.pp > 1)
for listed, says in ((True, None), (False, "the checkpoint has no such tensor")):
    plant(f"stale output layer written as lm_head{'' if listed else ', unlisted'}", "qwen3",
          tied_head("drop = true\n"), tied_head("{root}{embedding}.weight", "lm_head.weight"),
          anywhere("llama", 'copies = [{ of = "{root}{embedding}.weight", '
                   'hf = "{lm_head}", when = "tied" }]\n'), says=says,
          shows=lambda m, x, listed=listed: (m.tied and x.pp > 1 and
                                             m.hub.lists_tied_head == listed))
embedding = in_param("llama", 'scope = "embedding"')
on_last = lambda m, x: (m.mtp_layers and x.pp > 1 and
                        Placement(m, x).mtp == Placement(m, x).loss)
plant("embedding of the MTP stage", "glm4_moe", embedding('"embedding"', '"head"'),
      says="embedding.word_embeddings.weight (chunk 0) is unknown", shows=on_last)
plant("embedding of the MTP stage, the first stage's ignored", "glm4_moe",
      embedding('"embedding"', '"head"'),
      anywhere("llama", 'not_exported = [', 'not_exported = ["embedding.*", '), shows=on_last)
plant("MTP layer one too far", "deepseek_v3",
      lambda m: [anywhere("deepseek_v3", 'extends = "deepseek_v2"\n',
                          'extends = "deepseek_v2"\nnames = { mtp_hf = "{root}layers.%d." }\n'
                          % (m.layers + 1))],
      says="the checkpoint has no such tensor", shows=lambda m, x: m.mtp_layers == 1)
plant("MTP layer numbered from 0", "glm4_moe",
      anywhere("glm4_moe", 'extends = "moe"\n',
               'extends = "moe"\nnames = { mtp_hf = "{root}layers.{n}." }\n'),
      says="would not be written exactly once", shows=lambda m, x: m.mtp_layers == 1)
plant("eh_proj cut by columns", "glm4_moe",
      in_param("moe", 'mcore = "eh_proj.weight"')('split = "rows"', 'split = "columns"'),
      says=REFUSED_SHAPE, shows=lambda m, x: m.mtp_layers and x.tp > 1)

# ---- families of today ----

several_groups = lambda m, x: 1 < m.groups < m.heads
for family in ("bailing_moe_v2", "phi3"):
    plant(f"one tensor of q, k and v not cut by group: {family}", family,
          anywhere(family, 'groups = "kv_heads"', 'groups = 1'), shows=several_groups)
for family in ("minimax_m2", "olmo3"):
    for name in "qk":
        plant(f"the norm over all {name} heads not cut: {family}", family,
              in_param(family, f'mcore = "self_attention.{name}_layernorm.weight"')('split = "rows"\n'),
              says=REFUSED_SHAPE, shows=lambda m, x: x.tp > 1)
plant("norms behind attention and feed-forward exchanged", "exaone4",
      in_param("exaone4", 'hf = "post_attention_layernorm.weight"')(
          'hf = "post_attention_layernorm.weight"', 'hf = "post_feedforward_layernorm.weight#"'),
      in_param("exaone4", 'hf = "post_feedforward_layernorm.weight"\n')(
          'hf = "post_feedforward_layernorm.weight"\n', 'hf = "post_attention_layernorm.weight"\n'),
      anywhere("exaone4", "weight#", "weight"))
plant("a norm's bias raised by 1", "nemotron",
      in_param("nemotron", 'hf = "input_layernorm.bias"')('rows = "hidden"', 'add = 1\nrows = "hidden"'))
plant("the indexer cut by rows", "deepseek_v32",
      in_param("deepseek_v32", "indexer.linear_wq_b")('rows =', 'split = "rows"\nrows ='), says=REFUSED_SHAPE,
      shows=lambda m, x: x.tp > 1)
plant("an indexer in every layer", "glm_moe_dsa",
      anywhere("deepseek_v32", '  "listed.indexer",\n'),
      anywhere("deepseek_v32", '"mtp || indexer_types.is.full"', '"1"'),
      says="the checkpoint has no such tensor",
      shows=lambda m, x: not all(map(m.indexer, range(m.layers))))

# ---- MTP with the columns of eh_proj in HF's other order ----

halves = in_param("mimo", 'mcore = "eh_proj.weight"')
with_mtp = lambda m, x: m.mtp_layers > 0
plant("eh_proj's halves as HF has them", "mimo", halves("swap_halves = true\n"), shows=with_mtp)
plant("eh_proj's halves exchanged where HF has them alike", "glm4_moe",
      in_param("moe", 'mcore = "eh_proj.weight"')('split = "rows"\n', 'split = "rows"\nswap_halves = true\n'),
      shows=with_mtp)
plant("eh_proj with exchanged halves cut by columns", "mimo", halves('"rows"', '"columns"'), says=REFUSED_SHAPE,
      shows=lambda m, x: m.mtp_layers and x.tp > 1)
plant("eh_proj with exchanged halves whole", "mimo", halves('split = "rows"\n'), says=REFUSED_SHAPE,
      shows=lambda m, x: m.mtp_layers and x.tp > 1)
plant("eh_proj of half its width", "mimo", halves('"2 * hidden"', '"hidden"'), says="in the checkpoint, and",
      shows=with_mtp)
plant("MTP layers counted on after the decoder's", "mimo",
      anywhere("mimo", 'mtp_hf = "{root}mtp_layers.{n}."', 'mtp_hf = "{root}mtp_layers.{l}."'),
      says="the checkpoint has no such tensor", shows=with_mtp)
plant("the norms of an MTP layer exchanged", "mimo",
      in_param("mimo", '"enorm.weight"')("token_layernorm", "hidden#"),
      in_param("mimo", '"hnorm.weight"')("hidden_layernorm", "token_layernorm"),
      anywhere("mimo", "hidden#", "hidden_layernorm"), shows=with_mtp)
plant("an MTP layer's final norm is the model's", "mimo",
      in_param("mimo", '"final_layernorm.weight"')("{root}mtp_layers.{n}.final_layernorm", "{root}norm"),
      says="would not be written exactly once", shows=with_mtp)
plant("an MTP layer's norms without their layer", "mimo",
      in_param("mimo", '"enorm.weight"')("mtp_layers.{n}", "mtp_layers.0"), says="would not be written exactly once",
      shows=lambda m, x: m.mtp_layers == 2)
plant("no MTP layers", "mimo",
      anywhere("mimo", 'mtp_layers = ["num_nextn_predict_layers", "0"]', 'mtp_layers = "0"'),
      says="is made by no parameter", shows=with_mtp)

# ---- modules beside the language model ----

native = lambda m, x: x.minor >= 19
cut_tower = lambda m, x: x.minor >= 19 and x.tp > 1
tower = lambda *marks: in_param("qwen3_vl", *marks)
for kind in ("weight", "bias"):
    plant(f"the tower's q, k and v not cut by head: {kind}", "qwen3_vl",
          tower(f"linear_qkv.{kind}")('groups = "eyes"', "groups = 1"), shows=native)
plant("the tower's k and v exchanged", "qwen3_vl",
      tower("linear_qkv.weight")('rows = "sight", at = "sight"', 'rows = "sight", at = "#"'),
      tower("linear_qkv.weight")('at = "2 * sight"', 'at = "sight"'), anywhere("qwen3_vl", '"#"', '"2 * sight"'),
      shows=native)
plant("the tower's norms exchanged", "qwen3_5",
      tower("linear_qkv.layer_norm_weight")("norm1", "norm#"),
      tower("mlp.linear_fc1.layer_norm_weight")("norm2", "norm1"), anywhere("qwen3_vl", "norm#", "norm2"),
      shows=native)
plant("the tower's fc1 whole on every rank", "qwen3_vl",
      tower("mlp.linear_fc1.weight")('split = "rows"\n'), says=REFUSED_SHAPE, shows=cut_tower)
plant("the tower's proj cut by rows", "qwen3_vl_moe",
      tower("linear_proj.weight")('"columns"', '"rows"'), says=REFUSED_SHAPE, shows=cut_tower)
plant("the last merger's fc2 cut by rows", "qwen3_vl",
      tower('"vision_model.merger.linear_fc2.weight')('"columns"', '"rows"'), says=REFUSED_SHAPE,
      shows=lambda m, x: cut_tower(m, x) and m.hidden % x.tp == 0)
plant("a layer of the tower too few", "qwen3_vl",
      tower("mlp.linear_fc2.bias")('"vision.depth"', '"vision.depth - 1"'), says="do not fit the plan", shows=native)
plant("a norm of the other mergers as wide as the last one's", "qwen3_vl",
      tower("deepstack_merger_list.{n}.patch_norm.weight")('"merged"', '"sight"'), says="in the checkpoint, and",
      shows=lambda m, x: native(m, x) and m.vision["spatial_merge_size"] > 1 and m.vision["deepstack_visual_indexes"])
plant("every layer's merger written as the last one", "qwen3_vl",
      tower("deepstack_merger_list.{n}.linear_fc2.bias")("visual.deepstack_merger_list.{n}", "visual.merger"),
      says="would not be written exactly once",
      shows=lambda m, x: native(m, x) and m.vision["deepstack_visual_indexes"])
plant("the projector as HF has it", "gemma3",
      in_param("gemma3", "proj.weight")("transpose = true\n"), says="in the checkpoint, and",
      shows=lambda m, x: native(m, x) and m.hidden != m.vision["hidden_size"])
plant("the projector whole on every rank", "gemma3",
      in_param("gemma3", "proj.weight")('split = "rows"\n'), says=REFUSED_SHAPE, shows=cut_tower)

# ---- Mamba layers, layers by character, MTP layers of several layers ----

mixer = lambda name: in_param("mamba", "mcore = " + name.replace("mixer.", "{owner}"))
has_mamba = lambda m: any(m.attention(i) == "mamba" for i in range(m.layers))
cut_mamba = lambda m, x: has_mamba(m) and x.tp > 1
several_states = lambda m, x: has_mamba(m) and m.mamba_states > 0
for family in ("nemotron_h", "granite4_h"):
    plant(f"Mamba's in_proj put together plainly: {family}", family, mixer('"mixer.in_proj.weight"')(PER_SHARD),
          shows=cut_mamba)
plant("Mamba's z and x exchanged", "nemotron_h",
      mixer('"mixer.in_proj.weight"')('rows = "width" },', 'rows = "width", at = "#" },'),
      mixer('"mixer.in_proj.weight"')('at = "width" }', 'at = "0" }'), anywhere("mamba", '"#"', '"width"'),
      shows=lambda m, x: has_mamba(m))
plant("Mamba's B and C exchanged", "nemotron_h",
      mixer('"mixer.in_proj.weight"')('at = "2 * width" }', 'at = "#" }'),
      mixer('"mixer.in_proj.weight"')('at = "2 * width + states" }', 'at = "2 * width" }'),
      anywhere("mamba", '"#"', '"2 * width + states"'), shows=lambda m, x: has_mamba(m))
plant("Mamba's dt left out", "nemotron_h",
      mixer('"mixer.in_proj.weight"')('  { hf = "{mixer}in_proj.weight", rows = "mamba_heads", '
                                      'at = "2 * width + 2 * states" },\n'),
      says="in the checkpoint, and", shows=lambda m, x: has_mamba(m))
for newer in (True, False):
    for kind in ("weight", "bias"):
        plant(f"Mamba's conv1d {kind} put together plainly, {'newer' if newer else 'older'}", "nemotron_h",
              mixer(f'["mixer.conv1d{"_" if newer else "."}{kind}"')(PER_SHARD),
              shows=lambda m, x, newer=newer: cut_mamba(m, x) and m.conv_bias and (x.minor >= 19) == newer)
plant("Mamba's A_log and D exchanged", "nemotron_h",
      mixer('"mixer.A_log"')("{mixer}A_log", "{mixer}#"), mixer('"mixer.D"')("{mixer}D", "{mixer}A_log"),
      anywhere("mamba", "{mixer}#", "{mixer}D"), shows=lambda m, x: has_mamba(m))
for name in ("A_log", "norm.weight"):
    plant(f"Mamba's {name} whole on every rank", "nemotron_h", mixer(f'"mixer.{name}"')('split = "rows"\n'),
          says=REFUSED_SHAPE, shows=cut_mamba)
nemotron = lambda *marks: in_param("nemotron_h", *marks)
plant("a layer of experts taken for a feed-forward", "nemotron_h",
      anywhere("nemotron_h", '"kind == 69"', '"kind == 45"'), anywhere("nemotron_h", 'dense = "kind == 45"',
                                                                       'dense = "kind == 69"'),
      says="would not be written exactly once", shows=lambda m, x: "E" in m.pattern)
plant("MTP layers by the decoder's pattern", "nemotron_h",
      anywhere("nemotron_h", '"mtp ? mtp_kind : decoder_kind"', '"decoder_kind"'),
      says="would not be written exactly once",
      shows=lambda m, x: m.mtp_layers and m.pattern[:m.mtp_inner] != m.mtp_pattern)
many = lambda m, x: m.mtp_layers and m.mtp_inner > 1
plant("MTP layers' norms with the last of their layers", "nemotron_h",
      nemotron('"enorm.weight"')("inner == 0", "inner == mtp_inner_layers - 1"),
      says="the checkpoint has no such tensor", shows=many)
plant("an MTP layer's final norm with the first of its layers", "nemotron_h",
      nemotron('"final_layernorm.weight"', 'scope = "mtp"')("inner == mtp_inner_layers - 1", "inner == 0"),
      says="the checkpoint has no such tensor", shows=many)
plant("the layers of an MTP layer counted within the chunk", "nemotron_h",
      anywhere("nemotron_h", '"transformer_layer.layers.{i}.", "mtp_model_layer.layers.{i}."',
               '"transformer_layer.layers.0.", "mtp_model_layer.layers.0."'),
      says=REFUSED_SHAPE, shows=many)
plant("experts as wide as the model", "nemotron_h",
      anywhere("nemotron_h", 'expert_width = ["moe_latent_size", "hidden"]', 'expert_width = "hidden"'),
      says="in the checkpoint, and", shows=lambda m, x: m.latent and "E" in m.pattern)
plant("gate and up of packed experts swapped: granite4_h", "granite4_h",
      in_param("granite4", '{ grouped = "mlp.experts.linear_fc1')(
          'rows = "expert_ffn" },', 'rows = "expert_ffn", at = "#" },'),
      in_param("granite4", '{ grouped = "mlp.experts.linear_fc1')('at = "expert_ffn" }', 'at = "0" }'),
      anywhere("granite4", '"#"', '"expert_ffn"'), shows=lambda m, x: m.experts > 0)

# ---- a gate of one number a head, layers with heads of their own, experts' gates apart from their ups ----

head_gate = in_param("step3p5", 'when = "gated"')
GATES = '  { hf = "self_attn.g_proj.weight", rows = "heads * head_dim", repeat = "head_dim" },\n'
Q = '  { hf = "self_attn.q_proj.weight", rows = "heads * head_dim" },\n'
is_gated = lambda m, x: m.head_gate
plant("the gate of every dimension", "step3p5", head_gate(', repeat = "head_dim"'), says="in the checkpoint, and",
      shows=is_gated)
plant("as many rows of the gate as there are heads", "step3p5", head_gate('repeat = "head_dim"', 'repeat = "heads"'),
      says="in the checkpoint, and", shows=lambda m, x: m.head_gate and m.heads != m.head_dim)
plant("the gate before the queries", "step3p5", head_gate(Q + GATES, GATES + Q), shows=is_gated)
plant("the gate behind the values", "step3p5",
      head_gate(GATES, ""), head_gate('"kv_heads * head_dim" },\n]', '"kv_heads * head_dim" },\n' + GATES + "]"),
      shows=is_gated)
plant("the gate not by group", "step3p5", head_gate('groups = "kv_heads"', "groups = 1"),
      shows=lambda m, x: m.head_gate and all(m.at(i).groups > 1 for i in range(m.layers)))
plant("the gate only filled", "step3p5", head_gate('repeat = "head_dim" }', 'repeat = "head_dim", filled = true }'),
      says="is made by no parameter", shows=is_gated)
plant("the values only filled", "step3p5",
      head_gate('v_proj.weight", rows = "kv_heads * head_dim" }', 'v_proj.weight", rows = "kv_heads * head_dim", '
                'filled = true }'), says="is made by no parameter", shows=is_gated)
for name, own in (("heads", lambda m: m.heads), ("attention_groups", lambda m: m.groups)):
    plant(f"sliding layers with the other layers' {name}", "step3p5",
          anywhere("step3p5", f"sliding ? attention_other_setting.num_{'attention_heads' if name == 'heads' else name} : ",
                   ""), says=("in the checkpoint, and", "rows cannot be cut into"),
          shows=lambda m, x, own=own: any(own(m.at(i)) != own(m) for i in range(m.layers)))
plant("experts in every layer", "step3p5", anywhere("step3p5", '"!mtp && moe_layers_enum.has"', '"!mtp"'),
      says="the checkpoint has no such tensor", shows=lambda m, x: any(m.mlp(i) == "dense" for i in range(m.layers)))
plant("gates and ups of all experts exchanged", "step3p5",
      in_param("step3p5", "moe.gate_proj")("gate_proj", "#_proj"), in_param("step3p5", "moe.#_proj")(
          "moe.up_proj", "moe.gate_proj"), anywhere("step3p5", "#_proj", "up_proj"),
      shows=lambda m, x: has_moe(m))
plant("an MTP layer's norm beside its transformer", "step3p5",
      anywhere("step3p5", '"transformer.shared_head.norm"', '"shared_head.norm"'),
      says="the checkpoint has no such tensor", shows=with_mtp)

# ---- layers that each have sizes of their own, or lack a part ----

deci = lambda old, new: anywhere("llama_nemotron", old, new)
attends = lambda m, i: m.attention(i) == "full"
feeds = lambda m, i: m.mlp(i) == "dense"
some = lambda which: lambda m, x: any(which(m, i) for i in range(m.layers))
plant("every layer has keys for all heads", "llama_nemotron",
      deci('"heads / block_configs.attention.n_heads_in_group", ', ""), says="in the checkpoint, and",
      shows=some(lambda m, i: attends(m, i) and m.at(i).groups != m.heads))
plant("as many keys as heads in a group", "llama_nemotron",
      deci("heads / block_configs.attention.n_heads_in_group", "block_configs.attention.n_heads_in_group"),
      says="would not be written exactly once",
      shows=some(lambda m, i: attends(m, i) and m.at(i).groups ** 2 != m.heads and
                 m.heads % (m.heads // m.at(i).groups) == 0))
plant("feed-forwards of no round size", "llama_nemotron", deci('"least + (256 - least % 256) % 256"', '"least"'),
      says="in the checkpoint, and", shows=lambda m, x: x.tp == 1 and any(
          feeds(m, i) and int(2 * m.text["block_configs"][i]["ffn"]["ffn_mult"] * m.hidden / 3) % 256
          for i in range(m.layers)))
plant("feed-forwards a block too large", "llama_nemotron",
      deci('"least + (256 - least % 256) % 256"', '"least + 512 - least % 256"'), says="in the checkpoint, and",
      shows=some(feeds))
plant("attention in every layer", "llama_nemotron", deci('["block_configs.attention.no_op", "0"]', '"0"'),
      says="the checkpoint has no such tensor", shows=some(lambda m, i: not attends(m, i)))
plant("attention in no layer", "llama_nemotron", deci('["block_configs.attention.no_op", "0"]', '"1"'),
      says="is made by no parameter", shows=some(attends))
plant("a feed-forward in every layer", "llama_nemotron", deci('["block_configs.ffn.no_op", "0"]', '"0"'),
      says="no field", shows=some(lambda m, i: not feeds(m, i)))
plant("a feed-forward in no layer", "llama_nemotron", deci('["block_configs.ffn.no_op", "0"]', '"1"'),
      says="is made by no parameter", shows=some(feeds))
plant("gate and up of a layer's own width swapped", "llama_nemotron",
      fc1('gate_proj.weight", rows = "ffn" },\n  { hf = "mlp.up_proj',
          'up_proj.weight", rows = "ffn" },\n  { hf = "mlp.gate_proj'), shows=some(feeds))
plant("a layer's own groups ignored", "llama_nemotron",
      in_param("llama", 'mcore = "self_attention.linear_qkv.weight"')('groups = "kv_heads"\n'),
      shows=some(lambda m, i: attends(m, i) and m.at(i).groups > 1))

# ---- rows that no HF tensor has ----

keys_only = lambda m, i: m.at(i).keys_only
g4 = lambda old, new="": anywhere("gemma4_text", old, new)
g4a = lambda old, new="": anywhere("gemma4_attention", old, new)
plant("keys exported as values, too", "gemma4_text", g4a(", filled = true"), says="are written by more than one rank",
      shows=some(keys_only))
plant("values where keys are values", "gemma4_text", g4a('["whole && attention_k_eq_v", "0"]', '"0"'),
      says="would not be written exactly once", shows=some(keys_only))
plant("keys as values in every layer", "gemma4_text", g4a('["whole && attention_k_eq_v", "0"]', '"attention_k_eq_v"'),
      says="would not be written exactly once",
      shows=lambda m, x: m.text["attention_k_eq_v"] and not all(map(m.is_whole, range(m.layers))))
plant("neither keys nor values exported", "gemma4_text",
      in_param("gemma4_attention", 'when = "keys_only"')('k_proj.weight", rows = "kv_heads * head_dim" }',
                                                    'k_proj.weight", rows = "kv_heads * head_dim", filled = true }'),
      says="is made by no parameter", shows=some(keys_only))
plant("wide layers with the others' heads", "gemma4_text",
      g4a('["whole ? global_head_dim : head_dim", "per_layer_config.head_dim", '
         '"whole && !per_layer_config.given ? 512 : head_dim"]', '"head_dim"'),
      says="in the checkpoint, and", shows=some(lambda m, i: m.at(i).head_dim != m.head_dim))
plant("wide layers with the others' groups", "gemma4_text",
      g4a('["keys_are_values ? num_global_key_value_heads : all_kv_heads", "per_layer_config.num_key_value_heads", '
         '"all_kv_heads"]', '"all_kv_heads"'),
      says="would not be written exactly once",
      shows=some(lambda m, i: m.at(i).groups != m.groups))
plant("every sixth layer attends to everything", "gemma4_text",
      g4a('["layer_types.is.full_attention", "(layer + 1) % 6 == 0"]', '"(layer + 1) % 6 == 0"'),
      says="would not be written exactly once",
      shows=some(lambda m, i: m.is_whole(i) != ((i + 1) % 6 == 0) and m.at(i).head_dim * (
          1 if m.is_whole(i) else 0) != m.head_dim))
plant("the norms before experts and feed-forward exchanged", "gemma4_text",
      g4('"pre_feedforward_layernorm_2.weight"', '"#"'),
      g4('"pre_feedforward_layernorm.weight"', '"pre_feedforward_layernorm_2.weight"'),
      g4('"#"', '"pre_feedforward_layernorm.weight"'))
plant("the norms behind experts and feed-forward exchanged", "gemma4_text",
      g4('"post_feedforward_layernorm_1.weight"', '"#"'),
      g4('"post_feedforward_layernorm_2.weight"', '"post_feedforward_layernorm_1.weight"'),
      g4('"#"', '"post_feedforward_layernorm_2.weight"'))
plant("a layer's scalar left out", "gemma4_text",
      g4a('[[param]]\nmcore = "layer_scalar"\nrows = 1\nhf = "layer_scalar"\n'), says="is made by no parameter")
plant("the router's scales exchanged", "gemma4_text",
      g4('"router.scale"', '"#"'), g4('hf = "router.per_expert_scale"', 'hf = "router.scale"'),
      g4('"#"', '"router.per_expert_scale"'), says="in the checkpoint, and",
      shows=lambda m, x: m.hidden != m.experts)

# ---- layers that share an earlier layer's keys and values ----

no_keys = lambda m, x: not m.hub.unused_keys and any(m.at(i).shares_keys for i in range(m.layers))
unused = lambda m, x: m.hub.unused_keys and any(m.at(i).shares_keys for i in range(m.layers))
wide = lambda m, i: m.at(i).ffn != m.ffn
layered = lambda m, x: m.layer_width > 0
qkv = in_param("gemma4_attention", "linear_qkv", 'when = "!has_keys"')
zero_rows = "  { zero = true, rows = \"kv_heads * head_dim\" },\n"
dense = lambda old, new="": anywhere("gemma4_dense_text", old, new)
plant("queries alone where keys are shared", "gemma4_dense_text", qkv(2 * zero_rows, ""), says=REFUSED_SHAPE,
      shows=no_keys)
plant("no values where keys are shared", "gemma4_dense_text", qkv(2 * zero_rows, zero_rows), says=REFUSED_SHAPE,
      shows=no_keys)
plant("shared keys before the queries", "gemma4_dense_text",
      qkv('  { hf = "self_attn.q_proj.weight", rows = "heads * head_dim" },\n' + 2 * zero_rows,
          2 * zero_rows + '  { hf = "self_attn.q_proj.weight", rows = "heads * head_dim" },\n'), shows=no_keys)
plant("keys of their own for layers that share them", "gemma4_dense_text",
      g4a('["!shares_keys || listed.keys", "!shares_keys"]', '"1"'), says="the checkpoint has no such tensor",
      shows=no_keys)
plant("keys left out that the file lists", "gemma4_dense_text",
      g4a('["!shares_keys || listed.keys", "!shares_keys"]', '"!shares_keys"'), says="is made by no parameter",
      shows=unused)
plant("a layer fewer shares keys", "gemma4_dense_text",
      g4a("layers - num_kv_shared_layers", "layers + 1 - num_kv_shared_layers"),
      says="the checkpoint has no such tensor", shows=no_keys)
plant("shared layers' queries of one group", "gemma4_dense_text", qkv('groups = "kv_heads"\n'),
      shows=lambda m, x: no_keys(m, x) and any(
          m.at(i).shares_keys and m.at(i).groups > 1 for i in range(m.layers)))
plant("an unused norm of keys exported as the queries'", "gemma4_dense_text",
      in_param("gemma4_attention", "k_layernorm", 'when = "!has_keys"')(
          "zero = true", 'hf = "self_attn.q_norm.weight"'), says="are written by more than one rank", shows=no_keys)
plant("every feed-forward twice as wide", "gemma4_dense_text",
      dense("use_double_wide_mlp && shares_keys ?", "use_double_wide_mlp ?"), says="in the checkpoint, and",
      shows=lambda m, x: m.text.get("use_double_wide_mlp") and not all(wide(m, i) for i in range(m.layers)))
plant("no feed-forward twice as wide", "gemma4_dense_text",
      dense('["use_double_wide_mlp && shares_keys ? 2 * intermediate_size : intermediate_size", "intermediate_size"]',
            '"intermediate_size"'), says="in the checkpoint, and", shows=some(wide))
plant("each layer's embedding cut by columns", "gemma4_dense_text",
      in_param("gemma4_dense_text", "per_layer_embedding")('split = "rows"', 'split = "columns"'),
      says=REFUSED_SHAPE, shows=lambda m, x: layered(m, x) and x.tp > 1 and m.layers * m.layer_width % x.tp == 0)
plant("each layer's projection whole on every rank", "gemma4_dense_text",
      in_param("gemma4_dense_text", "per_layer_model_proj")('split = "rows"\n'), says=REFUSED_SHAPE,
      shows=lambda m, x: layered(m, x) and x.tp > 1)
plant("norms around the feed-forward exchanged", "gemma4_dense_text",
      dense('"pre_feedforward_layernorm.weight"', '"#"'),
      dense('"post_feedforward_layernorm.weight"', '"pre_feedforward_layernorm.weight"'),
      dense('"#"', '"post_feedforward_layernorm.weight"'))

# ---- attention and Mamba beside each other ----

falcon = lambda *marks: in_param("falcon_h1", *marks)
plant("q, k and v beside Mamba not by group", "falcon_h1",
      in_param("llama", 'mcore = "self_attention.linear_qkv.weight"')('groups = "kv_heads"\n'),
      shows=lambda m, x: m.groups > 1)
plant("gate and up beside Mamba swapped", "falcon_h1",
      falcon('"mlp.linear_fc1.weight"')("gate_proj", "#_proj"), falcon('"mlp.linear_fc1.weight"')("up_proj", "gate_proj"),
      anywhere("falcon_h1", "#_proj", "up_proj"))
plant("fc1 beside Mamba put together plainly", "falcon_h1", falcon('"mlp.linear_fc1.weight"')(PER_SHARD),
      shows=lambda m, x: x.tp > 1)
plant("in_proj beside attention put together plainly", "falcon_h1", mixer('"mixer.in_proj.weight"')(PER_SHARD),
      shows=lambda m, x: x.tp > 1)
plant("a Mamba norm that is not there", "falcon_h1", anywhere("mamba", '["mamba_rms_norm", "1"]', '"1"'),
      says="the checkpoint has no such tensor", shows=lambda m, x: not m.mamba_norm)
plant("no Mamba norm", "falcon_h1", anywhere("mamba", '["mamba_rms_norm", "1"]', '"0"'),
      says="is made by no parameter", shows=lambda m, x: m.mamba_norm)
plant("the norms of a layer exchanged", "falcon_h1",
      anywhere("falcon_h1", '"input_layernorm.weight"', '"#"'),
      anywhere("falcon_h1", '"pre_ff_layernorm.weight"', '"input_layernorm.weight"'),
      anywhere("falcon_h1", '"#"', '"pre_ff_layernorm.weight"'))
plant("Mamba twice as wide as the model", "falcon_h1",
      anywhere("falcon_h1", '"mamba_d_ssm / mamba_heads", "mamba_d_head", '), says="in the checkpoint, and",
      shows=lambda m, x: m.mamba_width != 2 * m.hidden and 2 * m.hidden % m.mamba_heads == 0)
plant("Mamba by the name of a hybrid model's layer", "falcon_h1",
      anywhere("falcon_h1", '"mamba_mixer."', '"mixer."'), says=REFUSED_SHAPE)
plant("Mamba's out_proj whole on every rank", "falcon_h1", mixer('"mixer.out_proj.weight"')('split = "columns"\n'),
      says=REFUSED_SHAPE, shows=lambda m, x: x.tp > 1)
plant("Mamba's D and dt_bias exchanged", "falcon_h1",
      mixer('"mixer.D"')("{mixer}D", "{mixer}#"), mixer('"mixer.dt_bias"')("{mixer}dt_bias", "{mixer}D"),
      anywhere("mamba", "{mixer}#", "{mixer}dt_bias"))

# ---- values narrower than keys ----

flash = lambda *marks: in_param("mimo_v2_flash", *marks)
flash_qkv, flash_file = flash('"self_attention.linear_qkv.weight"'), lambda old, new: anywhere("mimo_v2_flash", old, new)
narrow = lambda m, x: m.v_head_dim != m.head_dim
unfit = ("in the checkpoint, and", "would not be written exactly once", "the checkpoint has no such tensor",
         "is made by no parameter")
plant("values as wide as keys", "mimo_v2_flash", flash_qkv("* v_head_dim", "* head_dim"), says=unfit, shows=narrow)
plant("the output projection as wide as keys", "mimo_v2_flash",
      flash('"self_attention.linear_proj.weight"')("* v_head_dim", "* head_dim"), says=unfit, shows=narrow)
plant("narrow values not by group", "mimo_v2_flash", flash_qkv('groups = "kv_heads"\n'),
      shows=lambda m, x: m.groups > 1)
plant("sliding layers with the others' groups", "mimo_v2_flash",
      flash_file('["sliding ? swa_num_key_value_heads : num_key_value_heads", '
                 '"sliding ? 2 * num_key_value_heads : num_key_value_heads"]', '"num_key_value_heads"'),
      says=unfit, shows=lambda m, x: any(m.at(i).groups != m.groups for i in range(m.layers)))
plant("an MTP layer of full attention", "mimo_v2_flash",
      flash_file('"mtp || hybrid_layer_pattern.at", "mtp || layer_types',
                 '"hybrid_layer_pattern.at", "layer_types'), says=unfit,
      shows=lambda m, x: m.mtp_layers and m.at(m.layers).groups != m.groups)
any_sinks = lambda m, x: any(m.at(i).sinks for i in range(m.layers))
plant("sinks of some layers whole on every rank", "mimo_v2_flash", flash("softmax_offset")('split = "rows"\n'),
      says=REFUSED_SHAPE, shows=lambda m, x: x.tp > 1 and any_sinks(m, x))
plant("sinks in every layer", "mimo_v2_flash", flash("softmax_offset")('when = "sinks"\n'), says=unfit,
      shows=lambda m, x: not all(m.at(i).sinks for i in range(m.layers)))
plant("sinks in no layer", "mimo_v2_flash", flash("softmax_offset")('"sinks"', '"0"'), says=unfit, shows=any_sinks)
plant("an MTP layer's norm by the decoder's name", "mimo_v2_flash",
      flash('when = "mtp"')('"pre_mlp_layernorm.weight"\n', '"post_attention_layernorm.weight"\n'), says=unfit,
      shows=with_mtp)
plant("one of three MTP layers not counted", "mimo_v2_flash", flash_file(" + listed.third", ""), says=("MTP layers", *unfit),
      shows=lambda m, x: m.mtp_layers == 3)
plant("experts in every layer but MTP layers", "mimo_v2_flash",
      flash_file('["!mtp && moe_layer_freq.at", "!mtp && mlp_layer_types.is.sparse"]', '"!mtp"'), says=unfit,
      shows=lambda m, x: any(m.mlp(i) == "dense" for i in range(m.layers)))
plant("experts in MTP layers, too", "mimo_v2_flash",
      flash_file('["!mtp && moe_layer_freq.at", "!mtp && mlp_layer_types', '["mtp || moe_layer_freq.at", "mtp || mlp_layer_types'),
      says=unfit, shows=with_mtp)

# ---- several scalars in one tensor, compressed keys, an output projection in two steps ----

v4 = lambda *marks: in_param("deepseek_v4", *marks)
v4_file = lambda old, new: anywhere("deepseek_v4", old, new)
attention_alpha = lambda kind: v4(f'"self_attention_hyper_connection.alpha_{kind}"')
plant("two scalars of one tensor exchanged", "deepseek_v4",
      attention_alpha("post")('at = "1"', 'at = "2"'), attention_alpha("res")('at = "2"', 'at = "1"'))
plant("a scalar in another's place", "deepseek_v4", attention_alpha("post")(', at = "1"', ""), says=unfit)
plant("the last of three scalars left out", "deepseek_v4",
      v4('"mlp_hyper_connection.alpha_res"')('[{ hf = "hc_ffn_scale", rows = "1", at = "2" }]',
                                             '[{ hf = "hc_ffn_scale", rows = "1", at = "1" }]'), says=unfit)
plant("scalars of attention and feed-forward exchanged", "deepseek_v4",
      attention_alpha("pre")("hc_attn_scale", "hc_ffn_scale"),
      v4('"mlp_hyper_connection.alpha_pre"')("hc_ffn_scale", "hc_attn_scale"))
plant("sinks of one rank: deepseek_v4", "deepseek_v4", v4("attn_sink")('split = "rows"\n'), says=REFUSED_SHAPE,
      shows=lambda m, x: x.tp > 1)
plant("the groups' output projection cut", "deepseek_v4",
      v4("linear_o_group_proj")('rows = "out_rank"', 'split = "rows"\nrows = "out_rank"'), says=REFUSED_SHAPE,
      shows=lambda m, x: x.tp > 1)
ratios = lambda m: [m.ratio(i) for i in range(m.layers)]
plant("an indexer wherever keys are compressed", "deepseek_v4", v4_file('"ratio == 4"', '"ratio > 0"'), says=unfit,
      shows=lambda m, x: 16 in ratios(m))
plant("keys compressed without overlap", "deepseek_v4", v4_file('"indexer ? 2 : 1"', '"1"'), says=unfit)
plant("keys compressed in every layer", "deepseek_v4", v4_file('compressed = "ratio > 0"', 'compressed = "1"'),
      says="compressor.ape: ", shows=lambda m, x: 0 in ratios(m))
plant("a correction bias where a table routes", "deepseek_v4", v4_file('correction_bias = "!hashed"', 'correction_bias = "1"'),
      says=unfit, shows=lambda m, x: any(map(m.hashed, range(m.layers))))
plant("gate and up by each other's name", "deepseek_v4", v4_file('gate = "w1"\nup = "w3"', 'gate = "w3"\nup = "w1"'))
plant("keys and their gates exchanged", "deepseek_v4",
      v4('core_attention.compressor.linear_wkv')('"attn.compressor.wkv.weight"', '"#"'),
      v4('core_attention.compressor.linear_wgate')('"attn.compressor.wgate.weight"', '"attn.compressor.wkv.weight"'),
      v4_file('"#"', '"attn.compressor.wgate.weight"'))
plant("an MTP layer's two projections exchanged", "deepseek_v4",
      v4_file('.e_proj.weight"\n\n', '.#_proj.weight"\n\n'), v4_file('"mtp.{n}.h_proj.weight"', '"mtp.{n}.e_proj.weight"'),
      v4_file(".#_proj", ".h_proj"), shows=with_mtp)
plant("an MTP layer with the decoder's head of streams", "deepseek_v4",
      v4_file('"mtp.{n}.hc_head_base"', '"hc_head_base"'), says=("are written by more than one rank", *unfit), shows=with_mtp)
plant("MTP layers counted after the decoder's", "deepseek_v4", v4_file('mtp_hf = "mtp.{n}."', 'mtp_hf = "layers.{l}."'),
      says=unfit, shows=with_mtp)

# ---- a vision tower with gates and fewer keys than queries ----

exaone = lambda name: in_param("exaone4_5", f'"vision_model.decoder.layers.{{n}}.{name}"')
exaone_merger = lambda name: in_param("exaone4_5", f'"vision_model.merger.{name}"')
fewer_keys = lambda m, x: native(m, x) and m.vision["num_heads"] > m.vision["num_key_value_heads"]
for kind in ("weight", "bias"):
    plant(f"the gated tower's qkv not by group, {kind}", "exaone4_5",
          exaone(f"self_attention.linear_qkv.{kind}")('groups = "eyes"\n'), shows=native)
plant("as many groups in the gated tower as queries", "exaone4_5",
      anywhere("exaone4_5", 'eyes = ["vision.num_key_value_heads", ', "eyes = ["), says=unfit, shows=fewer_keys)
plant("the gated tower's keys and values exchanged", "exaone4_5",
      exaone("self_attention.linear_qkv.weight")('rows = "pairs", at = "sight" }', 'rows = "pairs", at = "#" }'),
      exaone("self_attention.linear_qkv.weight")('at = "sight + pairs"', 'at = "sight"'),
      anywhere("exaone4_5", '"#"', '"sight + pairs"'), shows=native)
plant("the tower's gate and up exchanged", "exaone4_5",
      exaone("mlp.linear_fc1.weight")("gate_proj", "#_proj"), exaone("mlp.linear_fc1.weight")("up_proj", "gate_proj"),
      anywhere("exaone4_5", "#_proj", "up_proj"), shows=native)
for kind in ("weight", "bias"):
    plant(f"the tower's gate and up put together plainly, {kind}", "exaone4_5",
          exaone(f"mlp.linear_fc1.{kind}")(PER_SHARD), shows=cut_tower)
plant("the gated tower's norms exchanged", "exaone4_5",
      exaone("self_attention.linear_qkv.layer_norm_weight")("norm1", "norm#"),
      exaone("mlp.linear_fc1.layer_norm_weight")("norm2", "norm1"), anywhere("exaone4_5", "norm#", "norm2"),
      shows=native)
plant("the gated tower's fc2 cut by rows", "exaone4_5",
      exaone("mlp.linear_fc2.weight")('"columns"', '"rows"'), says=REFUSED_SHAPE, shows=cut_tower)
plant("the gated tower's merger whole on every rank", "exaone4_5",
      exaone_merger("linear_fc1.bias")('split = "rows"\n'), says=REFUSED_SHAPE, shows=cut_tower)
plant("an MTP layer's two norms exchanged", "exaone4_5",
      anywhere("exaone4_5", "pre_fc_norm_embedding", "pre_fc_norm_#"),
      anywhere("exaone4_5", "pre_fc_norm_hidden", "pre_fc_norm_embedding"),
      anywhere("exaone4_5", "pre_fc_norm_#", "pre_fc_norm_hidden"), shows=with_mtp)
