"""A sender, and a receiver whose model directory is what the trainer's versions come out in."""
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time

MODEL = "policy"
DEADLINE_S = 60


def programs():
    """The directory of the daemons, or None."""
    found = os.environ.get("DELTAWIRE_BIN_DIR")
    return pathlib.Path(found) if found else None


_reserved = []


def _free_port():
    """A port that the kernel gives to nobody else while this process lives."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # once bound: the daemon may listen
    _reserved.append(s)
    return s.getsockname()[1]


def _die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Daemons:
    """Their files are in `root`, which somebody else removes; they die with this process."""

    def __init__(self, root, out, senders=1):
        root.mkdir()
        self._logs = root
        self._children = []
        self._receiver = f"127.0.0.1:{_free_port()}"
        follow = []
        for i in range(senders):
            control = f"127.0.0.1:{_free_port()}"
            follow += ["--sender", control]
            self._start("deltawire-sender", "--data-dir", str(root / f"sender-{i}"),
                        "--control-listen", control, "--bulk-listen", "127.0.0.1:0")
        self._start("deltawire-receiver", *follow, "--model", f"{MODEL}={out}",
                    "--data-dir", str(root / "receiver"), "--control-listen", self._receiver,
                    "--no-follow")

    def _start(self, program, *options):
        command = [str(programs() / program), *options]
        with open(self._logs / f"{program}-{len(self._children)}.log", "w") as log:
            self._children.append(
                subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent
                )
            )

    def bring(self, version):
        """Returns when the receiver's directory holds `version`, wholly and verified."""
        command = [str(programs() / "deltawire"), "sync", "--model", MODEL, "--receiver",
                   self._receiver]
        end = time.monotonic() + DEADLINE_S
        while True:  # the receiver may only just have started
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"version {version}: {done.stdout}{done.stderr}{self.logs()}")

    def logs(self):
        return "".join(f"\n--- {p.name}\n{p.read_text()}" for p in sorted(self._logs.glob("*.log")))

    def close(self):
        for child in self._children:
            child.kill()
            child.wait()
