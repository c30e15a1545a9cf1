"""Stand-ins for TransformerEngine's modules, to build mcore's TE spec where TE is not installed.

They hold parameters and compute nothing. What is TE's own is stated here (fused norms, grouped experts'
names, replicated MLA projections); every size comes from mcore's code that builds them.
"""

import contextlib
import functools
from unittest import mock

import torch
from megatron.core.models import backends
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import experts
from megatron.core.transformer.torch_norm import WrappedTorchNorm

try:
    from megatron.core.transformer import mla_qk_norm_config as mla_norms
except ImportError:  # before 0.18
    mla_norms = multi_latent_attention


def empty(*shape):
    return torch.nn.Parameter(torch.empty(*shape))


class Linear(torch.nn.Module):
    def __init__(self, input_size, output_size, *, parallel_mode, **_):
        super().__init__()
        assert parallel_mode == "duplicated"
        self.weight = empty(output_size, input_size)


class NormColumnLinear(ColumnParallelLinear):
    def __init__(self, input_size, output_size, **options):
        super().__init__(input_size, output_size, **options)
        self.layer_norm_weight = empty(input_size)


class GroupedLinear(torch.nn.Module):
    def __init__(self, count, input_size, output_size, *, bias, pg_collection, **_):
        super().__init__()
        split = pg_collection.expt_tp.size()
        rows = output_size // split if self.column else output_size
        columns = input_size if self.column else input_size // split
        for i in range(count):
            self.register_parameter(f"weight{i}", empty(rows, columns))
            if bias:
                self.register_parameter(f"bias{i}", empty(rows))


class GroupedColumnLinear(GroupedLinear):
    column = True


class GroupedRowLinear(GroupedLinear):
    column = False


class Provider(backends.LocalSpecProvider):
    def linear(self):
        return Linear

    def fuse_layernorm_and_linear(self):
        return True

    def column_parallel_layer_norm_linear(self):
        return NormColumnLinear

    def layer_norm(self, rms_norm=False, for_qk=False, has_residual=False):
        return WrappedTorchNorm

    def grouped_mlp_modules(self, moe_use_grouped_gemm, *legacy):
        module, column, row = experts.SequentialMLP, ColumnParallelLinear, RowParallelLinear
        if moe_use_grouped_gemm:
            module, column, row = experts.TEGroupedMLP, GroupedColumnLinear, GroupedRowLinear
        submodules = MLPSubmodules(linear_fc1=column, linear_fc2=row)
        # Versions before 0.18 take a pair.
        return (module, submodules) if legacy else functools.partial(module, submodules=submodules)


@contextlib.contextmanager
def instead_of_transformer_engine():
    with mock.patch.object(gpt_layer_specs, "TESpecProvider", Provider, create=True), \
            mock.patch.object(gpt_layer_specs, "TENorm", WrappedTorchNorm, create=True), \
            mock.patch.object(variants, "TESpecProvider", Provider, create=True), \
            mock.patch.object(multi_latent_attention, "TELinear", Linear), \
            mock.patch.object(mla_norms, "get_backend", lambda _: Provider(), create=True):
        yield
