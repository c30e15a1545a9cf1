"""What megatron-core's Python takes for granted of CUDA, put right for a run on CPU and Gloo.

Only the harness does this, in the processes that it starts; no weight and no layout is touched.
`apply()` is called once in each process, after megatron is imported and before a model is built.
"""
import contextlib

import torch


def apply():
    cpu = torch.device("cpu")

    # `torch.empty(..., device=torch.cuda.current_device())` is how megatron-core makes the buffers of
    # collectives, the router's buffers, the rotary tables and DDP's gradient buffers.
    torch.cuda.current_device = lambda: cpu

    # Tied embeddings across stages do `weight.data = weight.data.cuda()` before their all-reduce.
    torch.Tensor.cuda = lambda self, *args, **kwargs: self

    # Barriers around process groups and pipelines wait for the GPU.
    torch.cuda.synchronize = lambda *args, **kwargs: None

    # Dropout (of probability 0 here) is computed under a forked CUDA random state; there is none.
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda self, *args, **kwargs: contextlib.nullcontext()

    # The sliding window's mask is made on device "cuda" by name.
    from megatron.core.fusions import fused_softmax

    def window_mask(rows, columns, window):
        # True: not to be looked at. `window` says how many tokens back and ahead are.
        ahead = torch.arange(columns).unsqueeze(0) - torch.arange(rows).unsqueeze(1)
        ahead = ahead - (columns - rows)
        return (ahead < -window[0]) | (ahead > window[1])

    fused_softmax.get_sliding_window_causal_mask = window_mask
