"""The first incident: something is broken on a running pair, and what an operator looks at says what
it is and what to do about it.

    incident_test.py Certificates|Machine|Fleet

A case breaks one thing: certificates of another authority or that have ended, a port that is taken
or speaks no TLS, a filesystem that is full, a limit on threads, a sender that has gone, a model's
name that is wrong. It then reads the daemons' logs, `status`, `doctor` and `wait`.
"""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import Daemons, Receiver, free_port, programs, run, spawn, until  # noqa: E402
from tool_case import ToolCase, checkpoint  # noqa: E402

MODEL = "policy"
ELEMENTS = 1 << 18
HOST = "127.0.0.1"
FEW_DESCRIPTORS = 60  # less than the streams of the pull that is tried with them


class Incident(ToolCase):
    def setUp(self):
        super().setUp()
        self.daemons = Daemons(self.root)
        self.addCleanup(self.daemons.close)

    def publish(self, step: int) -> tuple[int, str]:
        source = checkpoint(self.root / f"step-{step}", step, ELEMENTS)
        return self.tool("publish", source, "--model", MODEL, "--socket", self.root / "s/trainer.sock")

    def log_says(self, *words: str) -> None:
        until(lambda: all(word in self.daemons.logs() for word in words), f"a log says {words}")


class Certificates(Incident):
    def keys(self, folder: str, *more: str) -> pathlib.Path:
        """Of an authority of its own, with all nodes' directories."""
        at = self.root / folder
        run(programs() / "deltawire", "certs", at, f"trainer={HOST}", f"rollout:receiver={HOST}",
            "me:operator", *more)  # fmt: skip
        return at

    def options(self, keys: pathlib.Path, node: str) -> list[str]:
        return ["--credentials", str(keys / node / "credentials.toml"),
                "--principals", str(keys / "principals.toml")]  # fmt: skip

    def me(self, keys: pathlib.Path) -> list[str]:
        return ["--credentials", str(keys / "me" / "credentials.toml")]

    def start(self, sender: pathlib.Path, receiver: list[str]) -> tuple[str, Receiver]:
        control = self.daemons.start_sender(self.root / "s", *self.options(sender, "trainer"))
        return control, self.daemons.start_receiver([control], MODEL, self.root / "r", *receiver)

    def renew_in_the_past(self, keys: pathlib.Path) -> None:
        """The trainer's certificate is now one of the same key that has ended."""
        node = keys / "trainer"
        extensions = self.root / "extensions"
        extensions.write_text(f"subjectAltName=IP:{HOST}\n")
        request = self.root / "request"
        run("openssl", "req", "-new", "-key", node / "key.pem", "-subj", "/CN=trainer", "-out", request)
        (self.root / "index").write_text("")
        (self.root / "serial").write_text("77\n")
        config = self.root / "ca.cnf"
        config.write_text(
            f"[ca]\ndefault_ca = d\n[d]\ndatabase = {self.root}/index\nserial = {self.root}/serial\n"
            f"new_certs_dir = {self.root}\ndefault_md = sha256\npolicy = p\n[p]\ncommonName = supplied\n"
        )
        run("openssl", "ca", "-batch", "-notext", "-config", config, "-cert", keys / "ca.pem",
            "-keyfile", keys / "ca.key", "-in", request, "-out", node / "certificate.pem",
            "-startdate", "20240101000000Z", "-enddate", "20250101000000Z",
            "-extfile", extensions)  # fmt: skip

    def test_a_certificate_that_has_ended(self):
        if shutil.which("openssl") is None:
            self.skipTest("no openssl on this machine")
        keys = self.keys("keys")
        self.renew_in_the_past(keys)
        control, receiver = self.start(keys, self.options(keys, "rollout"))
        self.log_says("certificate verify failed", "`deltawire doctor` with the same --credentials")
        answer = self.tool("doctor", "--sender", control, "--receiver", receiver.address, *self.me(keys))
        self.says(answer, 1, "its certificate /CN=trainer is not believed: it has ended",
                  "deltawire certs DIR NAME...")  # fmt: skip
        self.assertIn(f"receiver {receiver.address} its certificate /CN=rollout is valid for 365 more",
                      answer[1])  # fmt: skip

    def test_another_authority_at_either_end(self):
        keys, others = self.keys("keys"), self.keys("others")
        control, receiver = self.start(keys, self.options(others, "rollout"))
        self.log_says("its certificate is of another authority than `ca` here")
        self.says(self.tool("status", "--receiver", receiver.address, *self.me(others)), 0,
                  "another authority", "(not attached)")  # fmt: skip
        self.says(self.tool("doctor", "--sender", control, *self.me(others)), 1,
                  "is not believed: it is of another authority than those in `ca`",
                  f"for localhost, {HOST}", "of one directory of deltawire certs")  # fmt: skip
        # An operator who believes the sender, and is not believed by it.
        mixed = self.root / "mixed"
        shutil.copytree(others / "me", mixed)
        shutil.copy(keys / "trainer" / "ca.pem", mixed / "ca.pem")
        self.says(self.tool("doctor", "--sender", control, "--credentials", mixed / "credentials.toml"),
                  1, "it does not believe our certificate")  # fmt: skip

    def test_another_name_than_the_certificates(self):
        keys = self.keys("keys")
        for node in ("rollout", "me"):
            with open(keys / node / "credentials.toml", "a") as credentials:
                credentials.write("server-name = 'elsewhere.example'\n")
        control, _ = self.start(keys, self.options(keys, "rollout"))
        self.log_says("its certificate is not for the name that was dialled")
        self.says(self.tool("doctor", "--sender", control, *self.me(keys)), 1,
                  "it is not for elsewhere.example", f"for localhost, {HOST}", "`server-name`")  # fmt: skip

    def test_tls_at_one_end_only(self):
        keys = self.keys("keys")
        control, receiver = self.start(keys, [])
        self.log_says("if that port speaks TLS, give this end --credentials")
        self.says(self.tool("doctor", "--sender", control), 1, "its port speaks TLS, and this side has no keys",
                  "pass --credentials FILE")
        self.says(self.tool("doctor", "--receiver", receiver.address, *self.me(keys)), 1,
                  "its port speaks no TLS", "leave --credentials")  # fmt: skip


class Machine(Incident):
    def test_a_port_that_is_taken(self):
        port = free_port()
        for option, other in (("--control-listen", "--bulk-listen"), ("--bulk-listen", "--control-listen")):
            root = self.root / option.strip("-")
            holder = spawn([sys.executable, "-c", "import socket, sys; s = socket.create_server((sys.argv[1],"
                            "int(sys.argv[2]))); print(flush=True); sys.stdin.read()", HOST, str(port)],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
            holder.stdout.readline()
            done = subprocess.run([programs() / "deltawire-sender", "--data-dir", root, option,
                                   f"{HOST}:{port}", other, f"{HOST}:0"],
                                  capture_output=True, text=True, check=False)  # fmt: skip
            holder.communicate()
            self.says((done.returncode, done.stderr), 1, f"listening on {HOST}:{port}: address already in use",
                      "`ss -ltnp` names it")  # fmt: skip

    def test_a_limit_on_threads(self):
        """Of the address space, of which each thread's stack takes a part."""

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        done = subprocess.run([programs() / "deltawire-sender", "--data-dir", self.root / "s", "--threads",
                               "200", "--control-listen", f"{HOST}:0", "--bulk-listen", f"{HOST}:0"],
                              capture_output=True, text=True, check=False, preexec_fn=limit)  # fmt: skip
        self.assertLess(done.returncode, 0, done.stderr)
        self.assertIn("error: ", done.stderr)
        self.assertIn("no further thread can be started; raise TasksMax=", done.stderr)

    def test_a_limit_on_descriptors(self):
        """A receiver has enough of them to attach, and not for all streams of a pull."""
        control = self.daemons.start_sender(self.root / "s")
        self.assertEqual(self.publish(1)[0], 0)
        known = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, known[1]))
        try:
            receiver = self.daemons.start_receiver([control], MODEL, self.root / "r", "--streams", "64")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, known)
        why = "no descriptor is left for a socket; raise the limit of open files"
        self.log_says(why)
        until(lambda: why in receiver.status()["message"], "the receiver's status says so")

    def test_a_filesystem_that_is_full(self):
        """In a mount namespace of its own, which the daemons and the tool are in, too."""
        inside = ["unshare", "--mount", sys.executable, "-B", str(HERE), "--full", str(self.root)]
        probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"no mount namespace here: {probe.stderr.decode().strip()}")
        done = subprocess.run(inside, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Full(Incident):
    """What `--full` runs: its data directory is a tmpfs of 64 MiB."""

    def test_it(self):
        control = self.daemons.start_sender(self.root / "s")
        receiver = self.daemons.start_receiver([control], MODEL, self.root / "r")
        self.assertEqual(self.publish(1)[0], 0)
        receiver.await_version(1)
        source = checkpoint(self.root / "step-2", 2, ELEMENTS)
        with open(self.root / "filler", "wb") as filler:
            try:
                while filler.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        answer = self.tool("publish", source, "--model", MODEL, "--socket", self.root / "s/trainer.sock")
        self.says(answer, 1, "No space left on device; remove files there, or give a tmpfs more room")
        self.log_says("remove files there, or give a tmpfs more room")
        self.says(self.tool("doctor", "--data-dir", self.root / "s"), 1, "it is full", "remount,size=")
        # It was told in time, and nothing was lost.
        (self.root / "filler").unlink()
        answer = self.tool("publish", source, "--model", MODEL, "--socket", self.root / "s/trainer.sock")
        self.assertEqual(answer[0], 0, answer[1])
        receiver.await_version(2)


class Fleet(Incident):
    def test_a_sender_that_has_gone(self):
        control = self.daemons.start_sender(self.root / "s")
        receiver = self.daemons.start_receiver([control], MODEL, self.root / "r")
        self.assertEqual(self.publish(1)[0], 0)
        receiver.await_version(1)
        self.daemons.kill("deltawire-sender")
        gone = "cannot attach to sender"
        until(lambda: gone in receiver.status()["message"], "the receiver knows that the sender has gone")
        both = ["--sender", control, "--receiver", receiver.address]
        self.says(self.tool("status", *both), 3, f"sender {control}: nothing listens there",
                  f"Receiver {receiver.address}:", "(not attached)", f"attach to sender {control}")
        self.says(self.tool("doctor", *both), 1, "nothing listens there (connection refused)", "start deltawire-sender there")
        self.says(self.tool("wait", "--version", 2, "--timeout", 0.3, "--receiver", receiver.address), 1,
                  "version 2 was not committed within 300 ms: committed here: 1",
                  f"the newest of {control}: 1", f"attach to sender {control}")

    def test_a_model_that_nobody_publishes(self):
        control = self.daemons.start_sender(self.root / "s")
        receiver = self.daemons.start_receiver([control], "polcy", self.root / "r")
        self.assertEqual(self.publish(1)[0], 0)
        why = 'no model "polcy" is registered with this sender (it has: policy)'
        self.log_says(why)
        self.says(self.tool("wait", "--version", 1, "--timeout", 0.3, "--receiver", receiver.address), 1,
                  "committed here: none", why)
        self.says(self.tool("status", "--receiver", receiver.address), 0, "polcy: waiting for a version", why)

    def test_a_sender_that_hangs(self):
        control = self.daemons.start_sender(self.root / "s")
        hung = self.daemons.pids()[0]
        os.kill(hung, 19)  # SIGSTOP
        ended = threading.Timer(30, os.kill, (hung, 18))
        ended.start()
        self.says(self.tool("status", "--sender", control, "--timeout", 0.5), 3, "no answer in 500 ms")
        ended.cancel()
        os.kill(hung, 18)


def main() -> None:
    if sys.argv[1:2] == ["--full"]:
        run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm")
        skipping.main(["Full"])
    skipping.main(sys.argv[1:] or ["Certificates", "Machine", "Fleet"])


if __name__ == "__main__":
    main()
