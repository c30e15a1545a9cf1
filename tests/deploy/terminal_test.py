"""What the programs write to a terminal, and what elsewhere: colours and cursor movements only to
a terminal, and no colours where NO_COLOR is set.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import DEADLINE_S, free_port, programs, spawn  # noqa: E402

ESCAPE = "\x1b"
COLOR = re.compile(r"\x1b\[[0-9;:]*m")
# What moves the cursor: to the line's start, the rest of the line erased; the screen cleared.
CURSOR = re.compile(r"\r\x1b\[K|\r[^\r\n\x1b]*\x1b\[K|\x1b\[H\x1b\[2J")
TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "CLICOLOR_FORCE": "1"}


def environment(no_color: str | None) -> dict[str, str]:
    out = {**os.environ, **TERMINAL}
    out.pop("NO_COLOR", None)
    return out if no_color is None else {**out, "NO_COLOR": no_color}


def on_terminal(command: list, no_color: str | None = None, wanted: str | None = None) -> str:
    """What the command writes to a terminal that is its stdout and stderr, until it ends or has
    written `wanted`; then it is killed."""
    ours, its = pty.openpty()
    child = spawn(
        [str(c) for c in command], stdin=its, stdout=its, stderr=its, env=environment(no_color)
    )
    os.close(its)
    said, end = b"", time.monotonic() + DEADLINE_S
    try:
        while wanted is None or wanted.encode() not in said:
            if not select.select([ours], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"{command} took too long: {said.decode()}")
            with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
                if more := os.read(ours, 1 << 16):
                    said += more
                    continue
            break
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    return said.decode("utf-8", "replace").replace("\r\n", "\n")


def on_pipes(command: list) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=environment(None),
        timeout=DEADLINE_S,
    )  # fmt: skip
    return done.stdout + done.stderr


class TerminalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shm = pathlib.Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(
            prefix="deltawire-terminal-", dir=shm if shm.is_dir() else None
        )
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        model = cls.root / "model"
        model.mkdir()
        header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(64)
        (model / "model.safetensors").write_bytes(content)
        tool, nowhere = programs() / "deltawire", f"127.0.0.1:{free_port()}"
        ask = ["--sender", nowhere, "--receiver", nowhere]
        cls.commands = [
            [tool, "--help"],
            [tool, "status", "--help"],
            [tool, "no-such-command"],
            [tool, "version"],
            [tool, "inspect", model],
            [tool, "diff", model, model],
            [tool, "doctor", "--data-dir", cls.root],
            [tool, "status", *ask],
            [tool, "status", "--json", *ask],
            [tool, "demo", "--size", "tiny", "--steps", "1", "--dir", cls.root],
        ]
        cls.look = [tool, "status", "--watch", "--interval", "0.05", *ask]

    def test_the_tool_writes_no_escapes_to_pipes(self):
        for command in self.commands:
            with self.subTest(command[1:]):
                said = on_pipes(command)
                self.assertGreater(len(said), 10)
                self.assertNotIn(ESCAPE, said)
                self.assertNotIn("\r", said)

    def test_the_tool_writes_no_colours_to_a_terminal(self):
        for no_color in (None, "1"):
            for command in self.commands:
                with self.subTest(command[1:], no_color=no_color):
                    said = on_terminal(command, no_color)
                    self.assertGreater(len(said), 10)
                    self.assertNotRegex(said, COLOR)
                    self.assertNotIn(ESCAPE, CURSOR.sub("", said))

    def test_only_a_terminal_is_cleared_between_looks(self):
        self.assertIn("\x1b[H\x1b[2J", on_terminal(self.look, "1", wanted="\x1b[H\x1b[2J"))
        child = spawn([str(c) for c in self.look], stdout=subprocess.PIPE, text=True)
        with child:
            lines = [child.stdout.readline() for _ in range(20)]
            child.kill()
        self.assertGreater(len("".join(lines)), 100)
        self.assertNotIn(ESCAPE, "".join(lines))

    def test_the_daemons_colour_their_log_on_a_terminal_alone(self):
        sender = self.daemon("sender")
        receiver = self.daemon("receiver", "--sender", f"127.0.0.1:{free_port()}", "--model",
                               f"m={self.root / 'r'}")  # fmt: skip
        for command in (sender, receiver):
            with self.subTest(command[0]):
                line = "control 127.0.0.1"
                self.assertRegex(on_terminal(command, wanted=line), COLOR)
                self.assertRegex(on_terminal(command, "", wanted=line), COLOR)
                self.assertNotIn(ESCAPE, on_terminal(command, "1", wanted=line))
                child = spawn(
                    [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, env=environment(None),
                )  # fmt: skip
                said = ""
                with child:
                    for read in child.stdout:  # before it, a receiver may miss its sender
                        said += read
                        if line in read:
                            break
                    child.kill()
                self.assertIn(line, said)
                self.assertNotIn(ESCAPE, said)

    def test_top_draws_takes_keys_and_puts_the_terminal_back(self):
        port = free_port()
        sender = self.daemon("sender", "--control-listen", f"127.0.0.1:{port}")
        top = [programs() / "deltawire", "top", "--sender", f"127.0.0.1:{port}", "--interval", "0.1"]
        log = (self.root / "top-sender.log").open("w")
        with log, spawn([str(c) for c in sender], stdout=log, stderr=log) as child:
            try:
                for leave in ("q", "\x03", None):
                    for no_color in (None, "1"):
                        with self.subTest(leave=leave, no_color=no_color):
                            self.draw(top, leave, no_color)
            finally:
                child.kill()
        self.assertIn("needs a terminal", on_pipes(top))

    def test_top_puts_the_terminal_back_before_a_daemon_that_hangs_has_answered(self):
        ours, its = pty.openpty()
        with socket.create_server(("127.0.0.1", 0)) as hangs:
            address = f"127.0.0.1:{hangs.getsockname()[1]}"
            child = spawn(
                [str(programs() / "deltawire"), "top", "--sender", address, "--timeout", str(10 * DEADLINE_S)],
                stdin=its, stdout=its, stderr=its, env=environment(None),
            )  # fmt: skip
            try:
                self.read_until(ours, "\x1b[?1049h")
                hangs.settimeout(DEADLINE_S)
                with hangs.accept()[0]:
                    os.write(ours, b"q")
                    self.read_until(ours, "\x1b[?1049l")
            finally:
                child.kill()
                child.wait()
                os.close(ours)
                os.close(its)
        for command in (["top"], ["doctor"], ["bench-link", address]):
            said = on_pipes([programs() / "deltawire", *command, "--timeout", "0"])
            self.assertIn("--timeout", said)

    def draw(self, top: list, leave: str | None, no_color: str | None) -> None:
        """Runs top until it has drawn the sender's picture and the help page, then makes it leave
        by a key or by SIGTERM. The terminal must be as it was before."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(its)
        child = spawn(
            [str(c) for c in top], stdin=its, stdout=its, stderr=its, env=environment(no_color)
        )
        try:
            said = self.read_until(ours, "no model yet")
            os.write(ours, b"?")
            said += self.read_until(ours, "page up, page down")
            if leave is None:
                child.terminate()
            else:
                os.write(ours, leave.encode())
            said += self.read_until(ours, "\x1b[?1049l")  # the screen that was there before
            self.assertEqual(0, child.wait(DEADLINE_S))
            self.assertEqual(before, termios.tcgetattr(its))
            if no_color:
                self.assertNotRegex(said, re.compile(r"\x1b\[3[0-9]m"))
        finally:
            child.kill()
            child.wait()
            os.close(ours)
            os.close(its)

    def read_until(self, terminal: int, wanted: str) -> str:
        said, end = b"", time.monotonic() + DEADLINE_S
        while wanted.encode() not in said:
            if not select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"{wanted!r} did not come: {said.decode(errors='replace')}")
            said += os.read(terminal, 1 << 16)
        return said.decode("utf-8", "replace")

    def daemon(self, side: str, *options: str) -> list:
        command = [programs() / f"deltawire-{side}", "--data-dir", self.root / side, *options]
        if "--control-listen" not in options:
            command += ["--control-listen", "127.0.0.1:0"]
        return command + (["--bulk-listen", "127.0.0.1:0"] if side == "sender" else [])


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    unittest.main()
