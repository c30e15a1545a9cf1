"""Runs one function in N processes that form a torch.distributed group on Gloo over loopback.

The processes are forked, so that torch and megatron are imported once, by the parent, which must
not have computed with torch (its thread pool would not survive the fork).
"""
import datetime
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import sys
import tempfile
import time
import traceback


class WorkerError(Exception):
    """What the first process that failed said."""


def _worker(rank, world, folder, function, arguments):
    folder = pathlib.Path(folder)
    # This ends with os._exit, because a library's thread that crashes while the interpreter shuts
    # down would hide what this process has reported.
    status = 1
    try:
        import torch

        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
        result = function(rank, *arguments)
        torch.distributed.barrier()
        (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
        torch.distributed.destroy_process_group()
        status = 0
    except BaseException:
        # The file gets its name when it is whole, because the parent kills this process as soon as
        # another has failed.
        (folder / f"writing-{rank}").write_text(f"{time.time()}\n{traceback.format_exc()}")
        (folder / f"writing-{rank}").rename(folder / f"error-{rank}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(world, function, *arguments, limit_s=180):
    """Returns [function(rank, *arguments) for every rank]; raises WorkerError when one fails."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.flush()
        workers = [
            context.Process(target=_worker, args=(rank, world, folder, function, arguments))
            for rank in range(world)
        ]
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + limit_s
        left = list(workers)
        try:
            while left:
                ready = multiprocessing.connection.wait(
                    [worker.sentinel for worker in left], deadline - time.monotonic()
                )
                if not ready:
                    raise WorkerError(f"{len(left)} of {world} processes not done in {limit_s} s")
                left = [worker for worker in left if worker.sentinel not in ready]
                if any(worker.exitcode for worker in workers if worker not in left):
                    break
        finally:
            for worker in left:
                worker.kill()
            for worker in workers:
                worker.join()
        errors = {}
        for rank in range(world):
            path = pathlib.Path(folder) / f"error-{rank}"
            if path.exists():
                when, _, text = path.read_text().partition("\n")
                errors[float(when), rank] = text
        if errors:
            (_, rank), text = min(errors.items())
            raise WorkerError(f"rank {rank} of {world}: {text}")
        codes = [worker.exitcode for worker in workers]
        if any(codes):
            raise WorkerError(f"a process died without a word; exit codes {codes}")
        return [
            pickle.loads((pathlib.Path(folder) / f"result-{rank}").read_bytes())
            for rank in range(world)
        ]
