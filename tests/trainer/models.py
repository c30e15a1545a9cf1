"""Builds one rank's chunks of a megatron-core model with random distinct weights; runs them."""
import hashlib
import math

import torch

from families import PAD_TO, THETA


def initialize(layout, **more):
    """Makes Megatron's process groups within the running torch.distributed group. Collective."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.expert_tp,
        **more,
    )
    return parallel_state


def padded_vocabulary(hf, layout):
    unit = PAD_TO * layout.tp
    return math.ceil(hf.vocab_size / unit) * unit


def config_of(family, hf, layout, bf16=False):
    import torch.nn.functional as F
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    dtype = torch.bfloat16 if bf16 else torch.float32
    options = dict(
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # All fused kernels need CUDA.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        moe_permute_fusion=False,
        # The all-to-all dispatcher opens CUDA streams.
        moe_token_dispatcher_type="allgather",
        moe_grouped_gemm=False,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=bf16,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.expert_tp,
        num_layers_in_first_pipeline_stage=layout.first,
        num_layers_in_last_pipeline_stage=layout.last,
        account_for_embedding_in_pipeline_split=layout.account_for_embedding,
        account_for_loss_in_pipeline_split=layout.account_for_loss,
    )
    if layout.stages is not None:
        options["pipeline_model_parallel_layout"] = layout.stages
    options.update(family.options(hf))
    return (MLATransformerConfig if family.mla else TransformerConfig)(**options)


def spec_of(family, config, vp_stage):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )
    if family.replicated_down:
        # megatron-core's linear layer without parallelism, in the place of transformer-engine's.
        from megatron.core.post_training.modelopt.layers import Linear

        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.linear_q_down_proj = Linear
            layer.submodules.self_attention.submodules.linear_kv_down_proj = Linear
    return spec


def mtp_spec_of(config, spec, vp_stage):
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_layer_specs,
        get_gpt_mtp_block_spec,
    )

    if not config.mtp_num_layers:
        return None
    if not spec.layer_specs:
        # A stage without decoder layers takes the last one's kind, as Megatron-LM's builder does.
        spec = get_gpt_decoder_layer_specs(
            config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
        )[-1]
    return get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage)


def build(family, hf, layout, seed, bf16=False):
    """Builds this rank's chunks, first virtual stage first; the seed determines their weights."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.process_groups_config import ProcessGroupCollection

    config = config_of(family, hf, layout, bf16)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    if layout.cp > 1:
        # Attention over pieces of a sequence is transformer-engine's; here each rank of a context
        # group sees the whole sequence. The ranks are laid out as with context parallelism.
        rank = torch.distributed.get_rank()
        for other in range(torch.distributed.get_world_size()):
            alone = torch.distributed.new_group([other])
            if other == rank:
                groups.cp = alone
    stage, last = parallel_state.get_pipeline_model_parallel_rank(), layout.pp - 1
    chunks = []
    for v in range(layout.vpp):
        vp_stage = v if layout.vpp > 1 else None
        spec = spec_of(family, config, vp_stage)
        chunk = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            mtp_block_spec=mtp_spec_of(config, spec, vp_stage),
            vocab_size=padded_vocabulary(hf, layout),
            max_sequence_length=hf.max_position_embeddings,
            pre_process=stage == 0 and v == 0,
            post_process=stage == last and v == layout.vpp - 1,
            share_embeddings_and_output_weights=hf.tie_word_embeddings,
            position_embedding_type="rope",
            rotary_base=THETA,
            vp_stage=vp_stage,
            pg_collection=groups,
            **family.model_options,
        )
        chunk.eval()
        randomize(chunk, seed)
        chunks.append(chunk)
    return chunks


def randomize(chunk, seed):
    """Fills each tensor from a hash of its name in the whole model and of its shard's number.

    megatron-core's own initialization gives equal norms, and equal weights to the ranks of an
    expert group and to pipeline stages: a tensor in another's place would go unnoticed.
    """
    from megatron.core import parallel_state

    tp = parallel_state.get_tensor_model_parallel_rank()
    etp = parallel_state.get_expert_tensor_parallel_rank()
    ep = parallel_state.get_expert_model_parallel_rank()
    layer_numbers = {
        f"decoder.layers.{i}.": layer.layer_number for i, layer in enumerate(chunk.decoder.layers)
    }

    def fill(name, tensor, sharded):
        key = name
        for prefix, number in layer_numbers.items():
            if name.startswith(prefix):
                key = f"layer {number} {name[len(prefix):]}"
        shard = 0
        if ".experts." in name:
            key, shard = f"expert group {ep} {key}", etp if sharded else 0
        elif sharded or name.endswith("softmax_offset"):  # cut, but without the attribute
            shard = tp
        if name == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
            key = "embedding.word_embeddings.weight"
        digest = hashlib.sha256(f"{seed} {key} {shard}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        values = torch.randn(tensor.shape, generator=generator)
        if "layernorm.weight" in name:
            values = 1 + 0.3 * values
        elif name.endswith("router.weight"):
            values = 0.5 * values
        else:
            values = (0.05 if name.endswith("expert_bias") else 0.12) * values
        tensor.data.copy_(values)

    for name, parameter in chunk.named_parameters():
        fill(name, parameter, getattr(parameter, "tensor_model_parallel", False))
    for name, buffer in persistent_buffers(chunk):
        fill(name, buffer, False)


def persistent_buffers(module):
    """Yields (name, buffer) for the buffers that a checkpoint holds: what routers learn without a
    gradient, for example."""
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer


def wrap(chunks, config, bf16=False, distributed_optimizer=False, **options):
    """Wraps chunks as a trainer does: in Float16Module if the model is in bf16, then in DDP.
    `options` are DDP's."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )
    from megatron.core.transformer.module import Float16Module

    if bf16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed_optimizer,
        **{"overlap_grad_reduce": False, **options},
    )
    return [
        DistributedDataParallel(
            config=config, ddp_config=settings, module=chunk, disable_bucketing=i > 0
        )
        for i, chunk in enumerate(chunks)
    ]


def logits(chunks, hf, layout, tokens):
    """Returns [batch, length, vocabulary] on the last stage's ranks, None elsewhere. Collective.

    Stages are driven by hand: chunks run in the model's order, and each sends its output to the
    next.
    """
    from megatron.core import parallel_state

    stage = parallel_state.get_pipeline_model_parallel_rank()
    ranks = torch.distributed.get_process_group_ranks(
        parallel_state.get_pipeline_model_parallel_group()
    )
    batch, length = tokens.shape
    positions = torch.arange(length).unsqueeze(0).expand(batch, -1)
    mask = torch.ones(length, length).triu(1).bool().reshape(1, 1, length, length)
    for chunk in chunks:
        # MTP layers, which predict further tokens, run for a loss only and need labels.
        chunk.config.mtp_num_layers, chunk.mtp_process = None, False
    steps = [(v, p) for v in range(layout.vpp) for p in range(layout.pp)]
    output = None
    for step, (v, p) in enumerate(steps):
        if p != stage:
            continue
        chunk = chunks[v]
        if step > 0:
            previous = steps[step - 1][1]
            if previous != p:
                hidden = torch.empty(length, batch, hf.hidden_size)
                torch.distributed.recv(hidden, src=ranks[previous])
            else:
                hidden = output
            chunk.set_input_tensor(hidden)
        with torch.no_grad():
            output = chunk(tokens, positions, mask)
        if step + 1 < len(steps) and steps[step + 1][1] != p:
            torch.distributed.send(output.contiguous(), dst=ranks[steps[step + 1][1]])
    if stage != layout.pp - 1:
        return None
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(output) for _ in range(layout.tp)]
    torch.distributed.all_gather(parts, output.contiguous(), group=group)
    return torch.cat(parts, dim=-1)[..., : hf.vocab_size]
