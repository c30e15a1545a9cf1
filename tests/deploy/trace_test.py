"""One `grep` follows a version: a sender, a receiver with two engines, and both their logs.

Each version has one trace id, in the logs of every daemon and in what `--json` prints, and no line
about another version has it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import Daemons, programs, run, until  # noqa: E402

ELEMENTS = 1 << 16
TRACE = re.compile(r" trace=([0-9a-f]{16})$")
# The version that a line is about is the first that it names.
VERSION = re.compile(r"version \d+(?: \(epoch \d+\))?")
OFFLOAD = ["rank 0 of 1 begins to write", "written by its rank"]
ROLLBACK = ["rolling back to version 1"]
AT_SENDER = [" published: ", " granted ", " ended after "]
AT_RECEIVER = [
    ": pulling ", " has come: ", " committed: ", "engine /bin/true: load of", "engine /bin/true serves",
    "engine /bin/false: load of", "it exited with status 1; it is ",
]  # fmt: skip


def tool(*command: object) -> str:
    return run(programs() / "deltawire", *command)


def write_model(directory: pathlib.Path, step: int) -> pathlib.Path:
    directory.mkdir(parents=True)
    header = {"t": {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [0, 2 * ELEMENTS]}}
    text = json.dumps(header).encode()
    content = bytearray(2 * ELEMENTS)
    for i in range(0, len(content), 1024):
        content[i] = step
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(content)
    )
    return directory


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shm = pathlib.Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(
            prefix="deltawire-trace-", dir=shm if shm.is_dir() else None
        )
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.daemons = cls.enterClassContext(Daemons(cls.root))
        # A pull that is granted while the version is written would have its line before the publish.
        cls.sender = cls.daemons.start_sender(cls.root / "s", "--early", "diff")
        cls.receiver = cls.daemons.start_receiver(
            [cls.sender], "m", cls.root / "r", "--engine", "exec=/bin/true",
            "--engine", "exec=/bin/false", "--engine-failure", "stay-paused",
        )  # fmt: skip
        cls.traces = {}  # what a version's line says -> trace
        try:
            cls.publish(1)
            cls.publish(2)
            tool("rollback", "--model", "m", "--version", 1, "--sender", cls.sender)
            cls.settle("version 1 (epoch 2)", 1, 2)
            cls.publish(3, epoch=2)
        except BaseException:
            print(cls.daemons.logs(), flush=True)
            raise

    @classmethod
    def publish(cls, version: int, epoch: int = 1) -> None:
        model = write_model(cls.root / f"step-{version}", version)
        tool("publish", model, "--model", "m", "--socket", cls.root / "s" / "trainer.sock",
             "--version", version)  # fmt: skip
        cls.settle(f"version {version}" + (f" (epoch {epoch})" if epoch > 1 else ""), version, epoch)

    @classmethod
    def settle(cls, name: str, version: int, epoch: int) -> None:
        """Waits until the version is committed and served, so that no pull covers two versions."""

        def settled() -> str | None:
            status = cls.receiver.status()
            states = [status.get("committed", {})]
            states += [e["served"] for e in status.get("engines", [])[:1]]
            failed = [e["state"] for e in status.get("engines", [])[1:]]
            there = all((s.get("version"), s.get("epoch")) == (version, epoch) for s in states)
            return there and failed == ["behind"] and states[0]["trace"]

        cls.traces[name] = until(settled, f"{name} is committed and served")

    def lines(self, program: str) -> list[str]:
        files = sorted(self.root.glob(f"{program}-*.log"))
        self.assertTrue(files)
        return [line for file in files for line in file.read_text().splitlines()]

    def grep(self, program: str, trace: str) -> list[str]:
        return [line for line in self.lines(program) if f"trace={trace}" in line]

    def await_stages(self, program: str, trace: str, stages: list[str]) -> list[str]:
        """The lines with the trace, once each of `stages` is in one: a pull's end comes late."""

        def found() -> list[str] | None:
            lines = self.grep(program, trace)
            return lines if all(any(s in line for line in lines) for s in stages) else None

        return until(found, f"{program}'s log has {stages} of {trace}: {self.grep(program, trace)}")

    def test_one_grep_finds_every_stage_and_nothing_else(self):
        self.assertEqual(len(set(self.traces.values())), 4)
        for name, trace in self.traces.items():
            begin = ROLLBACK if name == "version 1 (epoch 2)" else OFFLOAD
            sent = self.await_stages("deltawire-sender", trace, begin + AT_SENDER)
            received = self.await_stages("deltawire-receiver", trace, AT_RECEIVER)
            for line in sent + received:
                with self.subTest(line):
                    self.assertEqual(VERSION.search(line)[0], name)
            # In this order, and each once.
            for lines, stages in ((sent, begin + AT_SENDER), (received, AT_RECEIVER[:3])):
                at = [[i for i, line in enumerate(lines) if s in line] for s in stages]
                self.assertEqual([len(where) for where in at], [1] * len(stages), "\n".join(lines))
                self.assertEqual(at, sorted(at), "\n".join(lines))

    def test_no_line_about_a_version_is_without_its_trace(self):
        for program in ("deltawire-sender", "deltawire-receiver"):
            about = [line for line in self.lines(program) if VERSION.search(line)]
            self.assertGreater(len(about), 12)
            for line in about:
                with self.subTest(line):
                    self.assertRegex(line, TRACE)
                    self.assertEqual(TRACE.search(line)[1], self.traces[VERSION.search(line)[0]])

    def test_both_daemons_status_names_it(self):
        status = json.loads(
            tool("status", "--json", "--sender", self.sender, "--receiver", self.receiver.address)
        )
        trace = self.traces["version 3 (epoch 2)"]
        sender, receiver = status["sender"], status["receiver"]["models"][0]
        self.assertEqual(sender["models"][0]["newest"]["id"]["trace"], trace)
        self.assertEqual(sender["receivers"][0]["committed"]["trace"], trace)
        self.assertEqual(receiver["committed"]["trace"], trace)
        self.assertEqual(receiver["newest"]["trace"], trace)
        self.assertEqual(receiver["engines"][0]["served"]["trace"], trace)
        self.assertEqual(receiver["engines"][1]["served"]["trace"], "0" * 16)


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    unittest.main()
