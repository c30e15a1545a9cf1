"""What a vLLM on a CPU lacks for several ranks and for sleep, and one delay. A plug-in of the
tests, no part of deltawire.

vLLM 0.32's CPU communicator has no `all_gatherv` and `reduce_scatterv`, which experts over data
parallel replicas need, and its CPU runner makes no buffers of pipeline stages under
--enforce-eager. With DELTAWIRE_TEST_SKEW_S a call reaches the second replica so many seconds after
the first one, as it may over a network. A CPU's worker keeps its memory in a sleep; here it is
overwritten, and comes back from level 1 only, as on a GPU.
"""

import asyncio
import os


def register():
    _gather()
    _stages()
    _sleep()
    _skew(float(os.environ.get("DELTAWIRE_TEST_SKEW_S", "0")))


def _gather():
    import torch
    import torch.distributed as dist
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def all_gatherv(self, input_, dim=0, sizes=None):
        del dim

        def one(tensor):
            counts = sizes or [tensor.shape[0]] * self.world_size
            padded = torch.zeros((max(counts), *tensor.shape[1:]), dtype=tensor.dtype)
            padded[: tensor.shape[0]] = tensor
            outs = [torch.empty_like(padded) for _ in range(self.world_size)]
            dist.all_gather([out.view(torch.uint8) for out in outs], padded.view(torch.uint8),
                            group=self.cpu_group)
            return torch.cat([out[:count] for out, count in zip(outs, counts)])

        return [one(t) for t in input_] if isinstance(input_, list) else one(input_)

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        del dim
        total = input_.float().contiguous()
        dist.all_reduce(total, group=self.cpu_group)
        counts = sizes or [input_.shape[0] // self.world_size] * self.world_size
        begin = sum(counts[: self.rank_in_group])
        return total[begin: begin + counts[self.rank_in_group]].to(input_.dtype).contiguous()

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


def _stages():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    plain = GPUModelRunner.sync_and_gather_intermediate_tensors
    if plain.__name__ == "with_buffers":  # vLLM calls this more than once
        return

    def with_buffers(self, *args, **kwargs):
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device)
        return plain(self, *args, **kwargs)

    GPUModelRunner.sync_and_gather_intermediate_tensors = with_buffers


def _sleep():
    from vllm.v1.worker.cpu_worker import CPUWorker

    def sleep(self, level=1):
        parameters = list(self.model_runner.get_model().parameters())
        self._test_kept = [p.data.clone() for p in parameters] if level == 1 else []
        for parameter in parameters:
            parameter.data.fill_(7)

    def wake_up(self, tags=None):
        del tags
        for parameter, kept in zip(self.model_runner.get_model().parameters(), self._test_kept):
            parameter.data.copy_(kept)

    CPUWorker.sleep, CPUWorker.wake_up = sleep, wake_up


def _skew(seconds):
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    plain = DPLBAsyncMPClient._call_utility_async
    if not seconds or plain.__name__ == "late":
        return

    async def late(self, method, *args, engine):
        if method == "collective_rpc" and engine != self.core_engines[0]:
            await asyncio.sleep(seconds)
        return await plain(self, method, *args, engine=engine)

    DPLBAsyncMPClient._call_utility_async = late
