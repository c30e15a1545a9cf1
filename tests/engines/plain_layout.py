"""Keeps vLLM's linear weights in checkpoint layout on a CPU, as they are on a GPU.

On a CPU vLLM packs linear weights for its own kernels after the load and leaves parameters of size
0; no GPU does so. This plug-in of the tests puts torch's own matrix product in the place of those
kernels, so that what is tested is what a GPU's vLLM does. It is no part of deltawire.
"""


def register():
    import torch
    import vllm.model_executor.layers.utils as utils

    def dispatch(layer, remove_weight):
        del remove_weight
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(
            x, layer.weight, bias)

    utils.dispatch_cpu_unquantized_gemm = dispatch
