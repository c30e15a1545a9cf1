"""deploy/gpu_kit/run.sh, all its steps, with programs on a runtime that pretends to be CUDA's.

    gpu_kit_test.py Pretended|NoDevice|Wrong --bin DIR --library FILE
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARGS = argparse.Namespace()
#: Of the pretended runtime's tests, those that are quick.
CASES = "GPU memory*,GPU scatter takes*,GPU calls*"


class KitTest(unittest.TestCase):
    def setUp(self) -> None:
        self.kit = pathlib.Path(tempfile.mkdtemp(prefix="deltawire-gpu-kit-"))
        self.addCleanup(shutil.rmtree, self.kit)
        for name in ("run.sh", "torch_step.py"):
            shutil.copy(ROOT / "deploy" / "gpu_kit" / name, self.kit)
        (self.kit / "bin").mkdir()
        (self.kit / "bin" / ARGS.library.name).symlink_to(ARGS.library)
        (self.kit / "bin" / "deltawire-sender").symlink_to(ARGS.bin / "deltawire-sender")

    def program(self, name: str, body: str) -> None:
        path = self.kit / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def pretend(self) -> None:
        self.program("gpu_test", f"exec {ARGS.bin}/cuda_pipeline_test '{CASES}' \"$@\"")
        self.program("bench_gpu", f'exec {ARGS.bin}/pretended_gpu_bench "$@"')

    def run_kit(self, *options: str, **environment: str) -> tuple[int, str, dict[str, str]]:
        """The exit status, all that was printed, and the summary: step -> how it ended."""
        done = subprocess.run(
            [self.kit / "run.sh", "--mib", "1", "--runs", "1", *options], capture_output=True, text=True,
            check=False, cwd="/", env=os.environ | {"OUT": str(self.kit / "out")} | environment)
        printed = done.stdout + done.stderr
        summary = re.findall(r"^(\w+) +\d+ s  (.*)$", printed, re.M)
        return done.returncode, printed, dict(summary)

    def counts(self, printed: str) -> tuple[int, ...]:
        return tuple(map(int, re.findall(
            r"^(\d+) ok, (\d+) failed, (\d+) skipped in \d+ s$", printed, re.M)[-1]))


class Pretended(KitTest):
    def test_every_step_ends_well_or_says_what_it_lacks(self) -> None:
        self.pretend()
        status, printed, steps = self.run_kit()
        self.assertEqual(status, 0, printed)
        self.assertEqual(list(steps), ["machine", "gpu_test", "bench", "torch", "densities",
                                       "memcheck", "racecheck", "profile"], printed)
        for name in ("gpu_test", "bench", "densities", "torch"):
            self.assertEqual(steps[name], "ok", printed)
        for name, why in (("machine", "nvidia-smi"), ("memcheck", "compute-sanitizer"),
                          ("profile", "no ncu")):
            self.assertRegex(steps[name], f"ok|skipped: .*{why}", printed)
        self.assertEqual(sum(self.counts(printed)), len(steps))
        table = (self.kit / "out" / "bench-table.txt").read_text()
        for case in ("trainer/fsdp2", "trainer/megatron", "diff_encode/on-device", "diff_encode/live", "decode_apply/resident",
                     "digest/on-device", "engine/apply", "engine-columns/apply", "pin/eighths",
                     "link/to-host", "place/tensors", "place/columns", "place/transposed"):
            self.assertRegex(table, rf"(?m)^{case}/", printed)
        # Version 1 in full, and then deltas, of which each byte of the half was compared.
        torch = (self.kit / "out" / "torch.txt").read_text()
        for cut in ("whole", "rows", "columns"):
            self.assertIn(f"{cut}, version 8, diffed: ", torch)

    def test_no_step_starts_when_the_time_is_up(self) -> None:
        self.pretend()
        status, printed, steps = self.run_kit("--seconds", "1")
        self.assertEqual(status, 0, printed)
        self.assertEqual(set(steps.values()), {"skipped: no time is left"}, printed)
        self.assertEqual(self.counts(printed), (0, 0, 8))


class NoDevice(KitTest):
    def test_steps_without_a_device_are_skipped_and_counted(self) -> None:
        for name in ("gpu_test", "bench_gpu"):
            (self.kit / "bin" / name).symlink_to(ARGS.bin / name)
        status, printed, steps = self.run_kit(CUDA_VISIBLE_DEVICES="")
        self.assertEqual(status, 0, printed)
        for name in ("gpu_test", "bench", "densities"):
            self.assertRegex(steps[name], "^skipped: no CUDA device", printed)


class Wrong(KitTest):
    def test_a_wrong_result_is_named_and_the_rest_is_still_measured(self) -> None:
        done = subprocess.run(
            [ARGS.bin / "pretended_gpu_bench", "--mib", "1", "--runs", "1", "--density", "0.01",
             "--only", "diff_encode/on-device,engine/apply"],
            capture_output=True, text=True, check=False,
            env=os.environ | {"DELTAWIRE_PRETEND_WRONG": "payload"})
        printed = done.stdout + done.stderr
        self.assertEqual(done.returncode, 1, printed)
        self.assertIn("WRONG diff_encode/on-device/bf16/d=0.01: not the CPU's bytes", printed)
        self.assertRegex(printed, r"(?m)^diff_encode/on-device/.* GB/s")
        self.assertRegex(printed, r"(?m)^engine/apply/.* GB/s")
        self.assertIn("1 results were not the CPU's: diff_encode/on-device/", printed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=("Pretended", "NoDevice", "Wrong"))
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.parse_args(namespace=ARGS)
    unittest.main(argv=[sys.argv[0], ARGS.case])
