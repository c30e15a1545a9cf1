"""offload_fsdp with real torch.distributed processes (gloo): FSDP2 shards of every kind.

Each worker writes its own rows, and also gathers the model the ordinary way; the receiver's bytes
must be the gathered ones. Without arguments this is the test, with them a worker:
    fsdp_test.py RANK WORLD STORE ENDPOINT OUT CASE,...
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("torch.distributed.tensor")
deltawire = support.need("deltawire")

VERSIONS = (1, 2, 3)


class Net(torch.nn.Module):
    """Has 37 rows, which no world size divides, 3 rows, fewer than four ranks, one row, which a
    single rank holds, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(24, 37)
        self.second = torch.nn.Linear(37, 3)
        self.third = torch.nn.Linear(3, 16, bias=False)
        self.value = torch.nn.Linear(24, 1, bias=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


class Even(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)


def shard(case: str, world: int) -> torch.nn.Module:
    """The same model on every rank, cut as the case says."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(7)
    case = case.removesuffix("-beside")
    if case == "full":  # nothing is cut: an FSDP1-style full state dict on every rank
        return Net()
    if case == "rows":
        return fully_shard(Net(), mesh=init_device_mesh("cpu", (world,)))
    if case == "masters":  # mixed precision: computes in bf16, and has its parameters in fp32
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh("cpu", (world,))
        return fully_shard(Net().float(), mesh=mesh, mp_policy=policy)
    if case == "hybrid":  # two replicas of two shards
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(Net(), mesh=mesh)
    if case == "columns":
        mesh = init_device_mesh("cpu", (world,))
        columns = lambda p: Shard(1) if p.ndim == 2 else Shard(0)  # noqa: E731
        return fully_shard(Even(), mesh=mesh, shard_placement_fn=columns)
    assert case == "tensor", case  # FSDP over tensor parallelism
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return fully_shard(parallelize_module(Even(), mesh["tp"], plan), mesh=mesh["dp"])


def worker(rank: int, world: int, store: str, endpoint: str, out: pathlib.Path, cases: list[str]):
    import torch.distributed as dist

    torch.set_default_dtype(torch.bfloat16)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for case in cases:
        model = f"{case}-{world}"
        if case == "alone":
            refused(rank, world, endpoint, model, out)
            continue
        net = shard(case, world)
        manager = deltawire.WeightManager(endpoint, model=model, rank=rank, world=world, timeout=120)
        options = {"dtype": torch.bfloat16} if case.startswith("masters") else {}
        if case.endswith("-beside"):
            options["wait"] = False
        for version in VERSIONS:
            with torch.no_grad():
                for i, p in enumerate(net.parameters()):
                    p.add_(version + i)
            # offload_fsdp takes a module or its state dict.
            given = net if version == 1 else net.state_dict()
            done = manager.offload_fsdp(given, version, **options)
            if "wait" in options:
                with torch.no_grad():  # the copies are what is published
                    kept = [p.detach().clone() for p in net.parameters()]
                    for p in net.parameters():
                        p.zero_()
                done = done.result()
                with torch.no_grad():
                    for p, values in zip(net.parameters(), kept):
                        p.copy_(values)
            manager.wait_published(version)
        full = {
            n: (t.full_tensor() if hasattr(t, "full_tensor") else t)
            for n, t in net.state_dict().items()
        }
        if case.startswith("masters"):
            assert full["first.weight"].dtype == torch.float32
            full = {n: t.bfloat16() if t.is_floating_point() else t for n, t in full.items()}
        if rank == 0:
            torch.save({n: t.detach().contiguous() for n, t in full.items()}, out / f"{model}.pt")
        (out / f"{model}.{rank}").write_text(str(done.bytes_written))
        dist.barrier()
    dist.destroy_process_group()


def refused(rank: int, world: int, endpoint: str, model: str, out: pathlib.Path):
    """Publishes with a manager that takes this rank for the only one; notes what that says."""
    net = shard("rows", world)
    manager = deltawire.WeightManager(endpoint, model=model, timeout=120)
    try:
        manager.offload_fsdp(net, 1)
        said = "published"
    except deltawire.Error as error:
        said = str(error)
    (out / f"{model}.{rank}").write_text(f"{manager.register(net.state_dict())} {said}")


class FsdpTest(unittest.TestCase):
    def run_world(self, world: int, cases: list[str], check=None):
        with support.Cluster() as cluster:
            out = cluster.root / "out"
            out.mkdir()
            logs = [out / f"log{rank}" for rank in range(world)]
            workers = []
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            for rank in range(world):
                args = [str(rank), str(world), str(out / "store"), cluster.endpoint, str(out)]
                command = [sys.executable, __file__, *args, ",".join(cases)]
                with open(logs[rank], "w") as log:
                    workers.append(
                        support.spawn(command, stdout=log, stderr=subprocess.STDOUT, env=env)
                    )
            try:
                codes = [w.wait(timeout=400) for w in workers]
            finally:
                for w in workers:
                    w.kill()
            text = "".join(f"--- rank {r}\n{log.read_text()}" for r, log in enumerate(logs))
            self.assertEqual(codes, [0] * world, text)
            for case in cases:
                with self.subTest(case=case, world=world):
                    (check or self.check)(cluster, out, f"{case}-{world}", world, case)

    def check(self, cluster, out, model, world, case):
        want = torch.load(out / f"{model}.pt")
        got = cluster.content(model)
        self.assertEqual(set(got), set(want))
        for name, tensor in want.items():
            flat = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            self.assertEqual(got[name][1:], (tuple(tensor.shape), flat), name)
        # Each byte was written once: no rank has gathered, no replica has written again.
        written = [int((out / f"{model}.{rank}").read_text()) for rank in range(world)]
        total = sum(t.numel() * t.element_size() for t in want.values())
        self.assertEqual(sum(written), total)
        if case != "full":
            self.assertLess(max(written), total)

    def test_two_processes(self):
        self.run_world(2, ["rows", "full", "masters", "rows-beside", "masters-beside"])

    def test_a_rank_does_not_publish_its_part_as_the_whole(self):
        def check(cluster, out, model, world, case):
            for rank in range(world):
                said = (out / f"{model}.{rank}").read_text()
                self.assertTrue(said.startswith("0 "), said)  # nothing is published
                self.assertIn("is cut over 2 ranks, and the manager is rank 0 of 1", said)

        self.run_world(2, ["alone"], check)

    def test_four_processes(self):
        self.run_world(4, ["rows", "hybrid", "columns", "tensor"])


if __name__ == "__main__":
    if len(sys.argv) > 6:
        rank, world, store, endpoint, out, cases = sys.argv[1:]
        worker(int(rank), int(world), store, endpoint, pathlib.Path(out), cases.split(","))
    else:
        unittest.main()
