"""An engine's own model class with its own loader, on this machine's CPU, in this process.

No server, no cache, no requests: what a layout needs, and what a load costs. One engine for each
process; its parallel groups stay as long as the process.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
#: Before the engine is imported.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
               "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR", "SGLANG_USE_CPU_ENGINE": "1"}


def vllm_models(directory: pathlib.Path, port: int, plain_experts: bool = True, **options
                ) -> Callable[[], object]:
    """Returns a function that loads a model from the directory. `plain_experts`: else vLLM packs
    them as it does on a CPU. `options`: vLLM's own."""
    os.environ.update(ENVIRONMENT)
    import plain_layout
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    plain_layout.register(plain_experts)

    def config():
        return EngineArgs(model=str(directory), enforce_eager=True, max_model_len=256,
                          skip_tokenizer_init=True, **options).create_engine_config()

    with set_current_vllm_config(config()):
        parallel_state.init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)

    def load():
        # A model's layers are entered in its configuration, under their names.
        load.config = config()
        with set_current_vllm_config(load.config):
            return get_model(vllm_config=load.config)

    return load


def sglang_runner(directory: pathlib.Path):
    """SGLang's own ModelRunner, which holds a model and updates it."""
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, str(HERE / "stand_ins"))
    from sglang.benchmark import one_batch
    from sglang.srt.server_args import PortArgs, ServerArgs

    arguments = ServerArgs(
        model_path=str(directory), device="cpu", attention_backend="torch_native",
        sampling_backend="pytorch", disable_overlap_schedule=True, max_total_tokens=4096,
        mem_fraction_static=0.2, context_length=256, skip_tokenizer_init=True)
    arguments.resolve_once()
    ports = PortArgs.init_new(arguments)
    one_batch.publish(arguments, role="scheduler", ranks=one_batch.SpawnRanks(
        world_rank=one_batch.spawn_world_rank(arguments, tp_rank=0, pp_rank=0), gpu_id=0))
    one_batch._init_process_global_configs()
    config = one_batch.ModelConfig.from_server_args(arguments)
    one_batch.bootstrap.init_parallel_runtime(
        server_args=arguments, device="cpu", dist_port=ports.nccl_port)
    one_batch.bootstrap.init_layer_runtime(model_config=config)
    return one_batch.ModelRunner(model_config=config, mem_fraction_static=0.2, gpu_id=0,
                                 nccl_port=ports.nccl_port, server_args=arguments)


def sglang_models(directory: pathlib.Path) -> Callable[[], object]:
    """Returns a function that loads a model from the directory."""
    runner = sglang_runner(directory)
    first = [runner.model]
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.model_loader import get_model

    def load():
        if first:
            return first.pop()
        return get_model(model_config=runner.model_config, load_config=runner.load_config,
                         device_config=DeviceConfig("cpu", 0))

    return load
