"""The trainer's copy from Python: torch tensors on the CPU, offloaded while a receiver pulls.

Started by bench_export (bench/harness/script.py). The reference is torch's copy_ of the same
tensors into touched shared memory, in pieces of 8 MiB on as many threads of this process,
alternating with the offloads.
"""

import concurrent.futures
import mmap
import statistics
import time

from script import MODEL, Shape, own_memory, parse_options, say, started_daemons

import deltawire
import torch

PIECE = 8 << 20


class Reference:
    """Shared memory of the model's size, touched so that copies into it take no page faults."""

    def __init__(self, root, tensors):
        size = sum(t.nbytes for t in tensors.values())
        with open(root / "reference", "w+b") as file:
            file.truncate(size)
            self.map = mmap.mmap(file.fileno(), size)
        whole = torch.frombuffer(self.map, dtype=torch.uint8)
        whole.fill_(1)
        self.pieces, at = [], 0
        for tensor in tensors.values():
            from_ = tensor.view(-1).view(torch.uint8)
            to = whole[at:at + tensor.nbytes]
            self.pieces += zip(to.split(PIECE), from_.split(PIECE))
            at += tensor.nbytes

    def seconds(self, pool):
        """Copies all pieces and returns the seconds. Copies are parallel: copy_ frees the GIL."""
        start = time.perf_counter()
        for _ in pool.map(lambda piece: piece[0].copy_(piece[1]), self.pieces):
            pass
        return time.perf_counter() - start


def step(tensors, seed):
    """Changes the lowest bit of one element in 97."""
    for tensor in tensors.values():
        tensor.view(torch.int16).view(-1)[seed % 97::97] ^= 1


def check_received(receiver, tensors):
    """Syncs the receiver, and compares it with the tensors, byte for byte."""
    receiver.sync()
    there = receiver.content()
    for name, tensor in tensors.items():
        if there[name][2] != tensor.view(-1).view(torch.uint8).numpy().tobytes():
            raise RuntimeError(f"{name} of the receiver is not the last version's")


def measure(options, threads, tensors, reference, endpoint, first_version):
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    weights = deltawire.WeightManager(endpoint, MODEL, timeout=300, copy_threads=threads)
    size = sum(t.nbytes for t in tensors.values())
    rows = {"write": [], "wait": [], "copy": []}
    weights.offload(tensors, first_version).wait(300)  # registers, and maps the halves
    before = own_memory()
    for i in range(options.warmups + options.runs):
        version = first_version + 1 + i
        step(tensors, version)
        # The first one overlaps the receiver's pull of the previous version, so they take turns.
        copied = reference.seconds(pool) if i % 2 == 0 else None
        done = weights.offload(tensors, version)
        copied = copied or reference.seconds(pool)
        done.wait(300)
        if i >= options.warmups:
            rows["write"].append(size / (done.seconds - done.waited_seconds) / 1e9)
            rows["wait"].append(done.waited_seconds)
            rows["copy"].append(size / copied / 1e9)
    memory = max(0, own_memory() - before) / 2**20
    say(threads=threads, metric="throughput", unit="GB/s", runs=rows["write"],
        reference="torch copy_", reference_runs=rows["copy"])
    say(threads=threads, metric="waited before", unit="s", runs=rows["wait"],
        note="for readers of the half")
    say(threads=threads, metric="memory", unit="MiB", runs=[memory],
        note="kept beyond the tensors")
    return version + 1


def gathered(tensors, rate):
    """Waits for each tensor as long as its copy takes, like a rank that gathers it."""
    for name, tensor in tensors.items():
        time.sleep(tensor.nbytes / rate)
        yield name, tensor


def measure_gathered(options, threads, tensors, endpoint, first_version):
    """Compares a generator's tensors copied while it makes the next, with copies in sequence."""
    managers = {on: deltawire.WeightManager(endpoint, MODEL, timeout=300, copy_threads=threads,
                                            overlap=on) for on in (True, False)}
    rows, waits, version = {True: [], False: []}, [], first_version
    size = sum(t.nbytes for t in tensors.values())

    def seconds(on, given):
        nonlocal version
        step(tensors, version)
        done = managers[on].offload(given, version)
        done.wait(300)
        version += 1
        return done.seconds - done.waited_seconds

    for manager in managers.values():
        manager.register(tensors)
    for i in range(options.warmups + options.runs):
        alone = seconds(False, tensors)
        took = {on: seconds(on, gathered(tensors, size / alone))
                for on in ((True, False) if i % 2 == 0 else (False, True))}
        if i >= options.warmups:
            waits.append(took[True] / (2 * alone))
            for on, all_of in rows.items():
                all_of.append(took[on])
    say(threads=threads, metric="gathered", unit="s", runs=rows[True],
        reference="one after the other", reference_runs=rows[False],
        note=f"{statistics.median(waits):.2f} of generator and copy alone")
    return version


def main():
    options = parse_options()
    tensors = Shape(options.tiny).tensors()
    with started_daemons(options) as (root, receiver):
        reference = Reference(root, tensors)
        version = 1
        for threads in options.threads or [1]:
            version = measure(options, threads, tensors, reference, root / "sender", version)
            version = measure_gathered(options, threads, tensors, root / "sender", version)
        check_received(receiver, tensors)


if __name__ == "__main__":
    main()
