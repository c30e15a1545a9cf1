"""offload_fsdp over several nodes: two senders that share no memory, four ranks (gloo).

    fsdp_nodes_test.py [COUNT]      random meshes; without COUNT a few, and no deaths
    fsdp_nodes_test.py RANK WORLD STORE OUT ENDPOINTS CASE,...    a worker
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("torch.distributed.tensor")
deltawire = support.need("deltawire")

from daemons import until  # noqa: E402  # found by `support`
from deltawire import TensorMeta, control  # noqa: E402
from deltawire._parts import (  # noqa: E402
    ABSENT,
    CHUNK_BYTES,
    WHOLE,
    Cut,
    Description,
    Plan,
)

WORLD, PER_NODE = 4, 2
AHEAD = 4  # cases that the ranks may be ahead of what is compared, so that a sender has few models
ROW = 1 << 20  # elements of bf16: a row is one chunk


def tensors_of_case(case: str, mesh_of):
    """name -> (whole tensor, mesh, placements); the same on every rank."""
    from torch.distributed.tensor import Replicate, Shard

    number = int(case.partition("-")[2] or 0)
    kind = case.partition("-")[0]
    draw = random.Random(f"{kind} {number}")
    maker = torch.Generator().manual_seed(number)

    def full(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=maker, dtype=torch.float32).to(dtype)

    flat = mesh_of((WORLD,))
    if kind == "rows":  # 2.4 chunks a rank, which no node's end falls on; fewer rows than ranks
        return {
            "uneven": (full(37, 70_001), flat, [Shard(0)]),
            "few": (full(3, ROW // 2 + 3), flat, [Shard(0)]),
            "one": (full(1, 77), flat, [Shard(0)]),
            "none": (full(0, 5), flat, [Shard(0)]),
            "small": (full(8, 3, dtype=torch.float32), flat, [Shard(0)]),
            "scalar": (full(), flat, [Replicate()]),
        }
    if kind == "columns":
        return {"w": (full(1500, 1030), flat, [Shard(1)]), "v": (full(5, 7, 11), flat, [Shard(2)])}
    if kind == "empty":  # one chunk: one node's sender has all of the model
        return {"some": (full(9, 3), flat, [Shard(0)]), "none": (full(0, 5), flat, [Shard(0)])}
    if kind == "hybrid":
        two = mesh_of((2, 2))
        return {f"w{i}": (full(300 + i, 4001), two, [Replicate(), Shard(0)]) for i in range(4)}
    if kind == "experts":  # experts over expert parallelism and FSDP, the rest over FSDP alone
        two = mesh_of((2, 2))
        return {
            "experts": (full(6, 517, 801), two, [Shard(0), Shard(1)]),
            "turned": (full(6, 517, 801), two, [Shard(1), Shard(0)]),
            "dense": (full(801, 1733), flat, [Shard(0)]),
        }
    made = {"some": (full(9, 3), flat, [Shard(0)])}
    dtypes = (torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.float8_e4m3fn)
    if draw.random() < 0.4:  # ends some bytes before or after a chunk's end, wherever it begins
        dtype = draw.choice(dtypes)
        count = draw.randint(1, 2) * CHUNK_BYTES // dtype.itemsize + draw.randint(-9, 9)
        made["edge"] = (full(count, dtype=dtype), flat, [Shard(0)])
    for i in range(draw.randint(1, 3)):
        ndim = draw.randint(1, 3)
        most = draw.choice((900, 300_000, 3_000_000))  # elements: some chunks at most
        shape = [draw.randint(1, 5) for _ in range(ndim)]
        shape[draw.randrange(ndim)] = draw.randint(1, max(1, most // 25))
        if draw.random() < 0.1:
            shape[draw.randrange(ndim)] = 0
        mesh = draw.choice(((4,), (2, 2), (4, 1), (1, 4), (2, 1, 2)))
        some = [Shard(d) for d in range(ndim)] + [Replicate()]
        placements = [draw.choice(some) for _ in mesh]
        made[f"t{i}"] = (full(*shape, dtype=draw.choice(dtypes)), mesh_of(mesh), placements)
    return made


def shard(whole, mesh, placements):
    """A DTensor cut without communication, as its placements say."""
    from torch.distributed.tensor import DTensor

    local, at = whole, mesh.get_coordinate()
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            parts = list(torch.chunk(local, mesh.size(axis), placement.dim))
            empty = local.narrow(placement.dim, 0, 0)
            local = parts[at[axis]] if at[axis] < len(parts) else empty
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False,
                              shape=whole.shape, stride=whole.stride())


def stepped(made: dict, version: int) -> dict:
    """The tensors of the next version. There is no sum in fp8."""
    return {n: ((w.float() + version).to(w.dtype) if w.dtype == torch.float8_e4m3fn else
                (w + version).to(w.dtype), m, p) for n, (w, m, p) in made.items()}


def worker(rank: int, world: int, store: str, out: pathlib.Path, endpoints: list[str],
           cases: list[str]):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    meshes = {}

    def mesh_of(shape):
        if shape not in meshes:
            meshes[shape] = init_device_mesh("cpu", shape)
        return meshes[shape]

    node = rank // PER_NODE
    here = range(node * PER_NODE, (node + 1) * PER_NODE)
    for number, case in enumerate(cases):
        before = cases[max(0, number - AHEAD)]
        while number >= AHEAD and (out / f"{before}.{rank}").exists():  # until it has been compared
            time.sleep(0.02)
        if case == "refused":
            refused(endpoints[node], here, rank, mesh_of((WORLD,)))
            continue
        made = tensors_of_case(case.removeprefix("dying-"), mesh_of)
        with deltawire.WeightManager(endpoints[node], model=case, timeout=120,
                                     node_ranks=here) as manager:
            offload(manager, made, rank, out, case)
    dist.barrier()
    dist.destroy_process_group()


def refused(endpoint, here, rank, mesh):
    from torch.distributed.tensor import DTensor, Partial, Shard

    whole = torch.zeros(8, 8)
    bad = [Partial()] if rank == 2 else [Shard(0)]
    local = whole if rank == 2 else whole[:2]
    state = {"w": DTensor.from_local(local, mesh, bad, run_check=False)}
    try:
        deltawire.WeightManager(endpoint, model="refused", node_ranks=here).offload_fsdp(state, 1)
    except deltawire.Error as error:
        print(error)
    good = {"w": DTensor.from_local(whole[:2], mesh, [Shard(0)], run_check=False)}
    try:  # one rank's machine lacks the directory
        deltawire.WeightManager(endpoint, model="refused", node_ranks=here).register(
            good, hf_dir="no/such/place" if rank == 3 else None)
    except deltawire.Error as error:
        print(error)


def offload(manager, made, rank, out, case):
    for version in (1, 2):
        made = stepped(made, version)
        state = {n: shard(*how) for n, how in made.items()}
        if case.startswith("dying-") and version == 2:
            while not (out / "go").exists():
                time.sleep(0.02)
        if case.startswith("dying-") and version == 2 and rank == int(case[-1]) % WORLD:
            die_in_an_exchange(int(case.rpartition("-")[2]), len(manager._nodes.plan.pieces))
        done = manager.offload_fsdp(state, version)
        assert manager._nodes.plan is not None
        if manager._nodes.plan.part:
            manager.wait_published(version)
    if rank == 0:
        owned = manager._nodes.plan.owned  # a model of one chunk has one owner
        (out / f"{case}.parts").write_text("".join(str(i) for i, o in enumerate(owned) if o))
        torch.save({n: w for n, (w, _, _) in made.items()}, out / f"{case}.pt")
    written = out / f"{case}.{rank}"
    written.with_suffix(f".{rank}.new").write_text(str(done.bytes_written))
    written.with_suffix(f".{rank}.new").rename(written)


def die_in_an_exchange(seed: int, calls: int):
    """Has this process die before one of the calls that follow, the last of which says ready."""
    import torch.distributed as dist

    left = [random.Random(seed).randrange(calls + 1)]
    for owner, name in ((dist, "isend"), (dist, "irecv"), (deltawire._core.Offload, "ready")):
        def dying(*args, _call=getattr(owner, name), **more):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return _call(*args, **more)
        setattr(owner, name, dying)


class NodesTest(unittest.TestCase):
    def run_cases(self, cases: list[str], codes=None):
        with support.Cluster() as cluster:
            second = cluster.start_sender(cluster.root / "s2")
            out = cluster.root / "out"
            out.mkdir()
            endpoints = f"{cluster.endpoint},{cluster.root / 's2'}"
            workers = []
            logs = [out / f"log{rank}" for rank in range(WORLD)]
            env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            for rank in range(WORLD):
                command = [sys.executable, __file__, str(rank), str(WORLD), str(out / "store"),
                           str(out), endpoints, ",".join(cases)]
                with open(logs[rank], "w") as log:
                    workers.append(
                        support.spawn(command, stdout=log, stderr=subprocess.STDOUT, env=env))
            if codes == self.check_whole:  # version 1 is received before the rank dies
                early = cluster.start_receiver(
                    [cluster.control, second], cases[0], cluster.root / f"r-{cases[0]}")
                early.await_version(1)
                (out / "go").touch()
            try:
                if codes is None:
                    for case in cases:
                        self.check_case(cluster, second, out, case, workers, logs)
                ended = [w.wait(timeout=600) for w in workers]
            finally:
                for w in workers:
                    w.kill()
            text = "".join(f"--- rank {r}\n{log.read_text()}" for r, log in enumerate(logs))
            if codes is None:
                self.assertEqual(ended, [0] * WORLD, text)
            for case in cases if codes is not None else ():
                with self.subTest(case=case):
                    if codes == self.check_whole:
                        codes(early.content(), out, case, ended, text)
                        continue
                    if case == "refused":
                        for log in logs:
                            self.assertIn("rank 2 has failed: TensorError: tensor \"w\" is a partial sum"
                                          if log != logs[2] else "is a partial sum", log.read_text())
                            self.assertIn("rank 3 has failed: " if log != logs[3] else "no/such/place",
                                          log.read_text())

    def check_case(self, cluster, second, out, case, workers, logs):
        """While the ranks go on with the next case. The senders are asked to forget this one."""
        def written():
            failed = [log.read_text() for w, log in zip(workers, logs) if w.poll()]
            self.assertFalse(failed, "".join(failed))
            return all((out / f"{case}.{rank}").exists() for rank in range(WORLD))

        until(written, f"the ranks have written {case}", 300)
        senders = [cluster.control, second]
        owners = [senders[int(node)] for node in (out / f"{case}.parts").read_text()]
        folder = cluster.root / f"r-{case}"
        receiver = cluster.start_receiver(owners, case, folder, "--no-follow")
        receiver.sync()
        self.check(receiver.content(), out, case)
        print(case, end=" ", flush=True)
        cluster.end_last()
        shutil.rmtree(folder)

        def forgotten():
            try:
                return sender.unregister(case)
            except deltawire.RefusedError:  # the sender sees the trainers' end a moment later
                return None

        for address in owners:
            with control.Sender(address) as sender:
                until(forgotten, f"{case} is unregistered")
        for written in out.glob(f"{case}.*"):
            written.unlink()

    def check(self, got, out, case):
        want = torch.load(out / f"{case}.pt")
        self.assertEqual(set(got), set(want), case)
        for name, tensor in want.items():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            self.assertEqual(got[name][1], tuple(tensor.shape), name)
            self.assertTrue(got[name][2] == flat, f"{case}: {name}: other bytes")
        written = [int((out / f"{case}.{rank}").read_text()) for rank in range(WORLD)]
        total = sum(t.numel() * t.element_size() for t in want.values())
        self.assertEqual(sum(written), total)  # every byte once

    def test_meshes_of_every_kind(self):
        self.assertEqual(ROW * 2, CHUNK_BYTES)
        self.run_cases(["rows", "columns", "hybrid", "experts", "empty"])

    def test_the_guides_script(self):
        example = pathlib.Path(__file__).resolve().parents[2] / "python/examples/fsdp2_nodes.py"
        with support.Cluster() as cluster:
            second = cluster.start_sender(cluster.root / "s2")
            endpoints = [cluster.endpoint, str(cluster.root / "s2")]
            receiver = cluster.start_receiver(
                [cluster.control, second], "policy", cluster.root / "r")
            port = str(support.free_port())
            workers = []
            for rank in range(WORLD):
                env = os.environ | {
                    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": port,
                    "MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(WORLD),
                    "LOCAL_RANK": str(rank % PER_NODE), "LOCAL_WORLD_SIZE": str(PER_NODE),
                    "DELTAWIRE_ENDPOINT": endpoints[rank // PER_NODE]}
                workers.append(support.spawn([sys.executable, str(example)], env=env))
            try:
                self.assertEqual([w.wait(timeout=300) for w in workers], [0] * WORLD)
            finally:
                for w in workers:
                    w.kill()
            receiver.await_version(3)
            torch.manual_seed(7)
            model = torch.nn.Sequential(
                torch.nn.Linear(1001, 4003), torch.nn.Linear(4003, 1001)).bfloat16()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.01).mul_(1.01).mul_(1.01)
            for name, (_, _, got) in receiver.content().items():
                want = model.state_dict()[name].reshape(-1).view(torch.uint8).numpy().tobytes()
                self.assertTrue(got == want, name)

    def test_random_meshes(self):
        self.run_cases([f"random-{seed}" for seed in range(COUNT)])


    def test_a_rank_that_is_killed_leaves_no_mixture(self):
        """A receiver has version 1, or version 2 where all parts of it came, and never both."""
        for seed in range(DEATHS):
            case = f"dying-columns-{seed}"
            with self.subTest(seed=seed):
                self.run_cases([case], self.check_whole)

    def check_whole(self, got, out, case, ended, text):
        from types import SimpleNamespace

        no_mesh = SimpleNamespace()
        made = tensors_of_case(case.removeprefix("dying-"), lambda _: no_mesh)
        self.assertIn(-signal.SIGKILL, ended, text)
        matches = []
        for version in (1, 2):
            made = stepped(made, version)
            matches.append(all(
                got[n][2] == w.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                for n, (w, _, _) in made.items()))
        self.assertEqual(sum(matches), 1, f"{case}: {matches}\n{text}")
        self.assertTrue(all(code != 0 for code in ended) or matches[1], text)


    def test_what_one_rank_refuses_is_raised_on_all(self):
        self.run_cases(["refused"], lambda *_: None)


class PlanTest(unittest.TestCase):
    """Without processes: every byte once, also in layouts that torch would not make."""

    def plans(self, metas, described):
        return [Plan(metas, described, [(0, 1), (2, 3)], rank) for rank in range(WORLD)]

    def test_shards_that_do_not_make_up_a_tensor_are_named(self):
        meta = TensorMeta("w", "BF16", (8, 8))
        half = Cut((0, 1), (2,), (0,), (0,))
        rows = Cut((0, 1, 2, 3), (4,), (0,), (0,))
        for described, words in (
            ([((0,), Description([half], [0])), ((1, 2, 3), Description([], [ABSENT]))],
             'tensor "w" is cut over ranks 0, 1, and rank 1 does not give its shard'),
            ([((0, 1, 2), Description([rows], [0])), ((3,), Description([], [WHOLE]))],
             'tensor "w" is whole at rank 3 and a shard at rank 0'),
        ):
            with self.assertRaisesRegex(deltawire.TensorError, words):
                self.plans([meta], described)

    def test_every_node_owns_a_chunk(self):
        cut = Cut((0, 1), (2,), (0,), (0,))
        metas = [TensorMeta("w", "BF16", (8, ROW // 2))]
        described = [((0, 1), Description([cut], [0])), ((2, 3), Description([], [ABSENT]))]
        plans = self.plans(metas, described)
        self.assertEqual([p.owned for p in plans], [[[(0, 3)], [(3, 4)]]] * WORLD)
        self.assertEqual([(p.chunk, p.source) for p in plans[1].pieces], [(3, 1)])


COUNT = 8
DEATHS = 0  # by COUNT, since each takes half a minute

if __name__ == "__main__":
    if len(sys.argv) > 6:
        rank, world, store, out, endpoints, cases = sys.argv[1:]
        status = 1
        try:
            worker(int(rank), int(world), store, pathlib.Path(out), endpoints.split(","),
                   cases.split(","))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:  # a group with a dead rank takes its time to end
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    else:
        if len(sys.argv) > 1 and sys.argv[1].isdigit():
            COUNT = int(sys.argv.pop(1))
            DEATHS = COUNT // 10
        unittest.main()
