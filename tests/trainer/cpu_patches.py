"""Patches what megatron-core's Python takes for granted of CUDA, so that it runs on CPU and Gloo.

Only the harness does this, in the processes that it starts; no weight and no layout is touched.
`apply()` is called once in each process, after megatron is imported and before a model is built.
"""
import contextlib

import torch


def apply():
    cpu = torch.device("cpu")

    # `torch.empty(..., device=torch.cuda.current_device())` is how megatron-core makes the buffers
    # of collectives, the router's buffers, the rotary tables and DDP's gradient buffers.
    torch.cuda.current_device = lambda: cpu

    # Tied embeddings across stages do `weight.data = weight.data.cuda()` before their all-reduce.
    torch.Tensor.cuda = lambda self, *args, **kwargs: self

    # Barriers around process groups and pipelines wait for the GPU.
    torch.cuda.synchronize = lambda *args, **kwargs: None

    # Dropout (of probability 0 here) is computed under a forked CUDA random state; there is none.
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda self, *args, **kwargs: contextlib.nullcontext()

    # megatron-core makes the sliding window's mask on the device that is named "cuda".
    from megatron.core.fusions import fused_softmax

    def window_mask(rows, columns, window):
        # True: attention leaves this token out. `window`: how many tokens back and ahead it takes.
        ahead = torch.arange(columns).unsqueeze(0) - torch.arange(rows).unsqueeze(1)
        ahead = ahead - (columns - rows)
        return (ahead < -window[0]) | (ahead > window[1])

    fused_softmax.get_sliding_window_causal_mask = window_mask

    # The router asks whether transformer-engine has a GEMM for it by a name that is only defined
    # where transformer-engine could be imported.
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None

    # MLA passes the widths of keys and values to its core attention, but only transformer-engine's
    # accepts them. The local one needs the width of values, and reads it from kv_channels.
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    constructor = DotProductAttention.__init__

    def with_widths(self, config, *args, k_channels=None, v_channels=None, **kwargs):
        assert v_channels in (None, config.kv_channels), "kv_channels must be the width of values"
        constructor(self, config, *args, **kwargs)

    DotProductAttention.__init__ = with_widths

    # MLA believes that transformer-engine is there when only megatron-core's wrapper of it can be
    # imported, and then calls isinstance with something that is no class.
    from megatron.core.transformer import multi_latent_attention

    if not isinstance(multi_latent_attention.TELinear, type):
        multi_latent_attention.HAVE_TE = False


def apply_to_optimizer():
    """The same for megatron-core's optimizer: it asks whether parameters are CUDA's, by the name of
    their type, and makes its scalars on "cuda"."""
    kind = torch.Tensor.type

    def as_cuda(self, *args, **kwargs):
        found = kind(self, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    def here(make):
        return lambda *args, device=None, **kwargs: make(
            *args, device=None if device == "cuda" else device, **kwargs
        )

    torch.Tensor.type = as_cuda
    torch.tensor, torch.zeros = here(torch.tensor), here(torch.zeros)
