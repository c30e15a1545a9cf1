"""Keeps vLLM's linear weights and experts in checkpoint layout on a CPU, as they are on a GPU.

On a CPU vLLM packs linear weights for its own kernels after the load and leaves parameters of size
0, and packs experts within parameters of the same shape; no GPU does so. This plug-in of the tests
puts torch's own matrix product in the place of those kernels, so that what is tested is what a
GPU's vLLM does. It is no part of deltawire.
"""

import os


def register(plain_experts: bool = "DELTAWIRE_TEST_PACKED_EXPERTS" not in os.environ):
    """`plain_experts`: else vLLM packs experts as it does on a CPU."""
    import torch
    import vllm.model_executor.layers.utils as utils
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    def dispatch(layer, remove_weight):
        del remove_weight
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(
            x, layer.weight, bias)

    utils.dispatch_cpu_unquantized_gemm = dispatch
    if not plain_experts:
        return
    CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
    CPUUnquantizedExperts.apply = _experts


def _experts(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, *_, **__):
    """As vLLM's kernel, for gates with SiLU."""
    import torch

    if activation.value != "silu":
        raise NotImplementedError(f"the tests run no experts with {activation.value}")
    output.zero_()
    for expert in range(len(w1)):
        token, place = torch.where(topk_ids == expert)
        if len(token):
            gate, up = torch.nn.functional.linear(hidden_states[token], w1[expert]).chunk(2, -1)
            made = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, w2[expert])
            weight = topk_weights[token, place].unsqueeze(-1)
            output.index_add_(0, token, (made * weight).to(output.dtype))
