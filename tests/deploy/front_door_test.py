"""What a new user mistypes or misunderstands, and what the tool answers.

    front_door_test.py Words|Peers|Screens

Words needs no daemon. Peers asks daemons at wrong addresses and without keys. Screens reads `status`
and `wait` on terminals of several widths.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import Daemons, free_port, programs, run, until  # noqa: E402
from tool_case import ToolCase, checkpoint  # noqa: E402

MODEL = "policy"
HOST = "127.0.0.1"
#: Seconds; a command that overlooks its time limit takes 5 s at least.
OF_A_CALL_S = 4


def on_terminal(columns: int, *command: object) -> list[str]:
    """The lines that the command writes to a terminal of this width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen([str(c) for c in command], stdin=its, stdout=its, stderr=its)
    os.close(its)
    said = b""
    with contextlib.suppress(OSError):  # EIO: the child has ended
        while more := os.read(ours, 1 << 16):
            said += more
    child.wait()
    os.close(ours)
    return said.decode().replace("\r\n", "\n").splitlines()


class Words(ToolCase):
    """Typing errors."""

    def test_a_mistyped_command_or_option(self):
        self.says(self.tool("stauts"), 2, 'there is no command stauts; did you mean "status"?')
        self.says(self.tool(), 2, "no command is given; see deltawire --help")
        self.says(self.tool("status", "--reciever", "a:1"), 2,
                  'there is no option --reciever; did you mean "--receiver"?')  # fmt: skip
        # The option that is missing because of it is not what the user is told.
        self.says(self.tool("rollback", "--verson=3"), 2, '--verson; did you mean "--version"?')
        self.says(self.tool("status", "a:1"), 2, "a:1")
        self.says(self.tool("frobnicate"), 2, "there is no command frobnicate; see deltawire --help")

    def test_a_mistyped_option_of_a_daemon(self):
        self.says(self.tool("--reciever-id", "a", program="deltawire-receiver"), 2,
                  'there is no option --reciever-id; did you mean "--receiver-id"?')  # fmt: skip

    def test_a_mistyped_key(self):
        config = self.root / "sender.toml"
        config.write_text("delta-lag = 1\n")
        self.says(self.tool("--config", config, program="deltawire-sender"), 2,
                  "sender.toml:1: delta-lag", 'did you mean "delta-log"?')  # fmt: skip
        credentials = self.root / "credentials.toml"
        credentials.write_text("cirtificate = 'c.pem'\n")
        self.says(self.tool("status", "--credentials", credentials), 2, "credentials.toml:1",
                  'did you mean "certificate"?')  # fmt: skip
        principals = self.root / "principals.toml"
        principals.write_text("[[principle]]\nname = 'a'\n")
        self.says(self.tool("--principals", principals, program="deltawire-sender"), 1,
                  "--principals: ", 'did you mean "principal"?')  # fmt: skip

    def test_help_is_a_command(self):
        self.assertEqual(self.tool("help"), self.tool("--help"))
        self.assertEqual(self.tool("help", "sync"), self.tool("sync", "--help"))
        self.says(self.tool("help", "snyc"), 2, 'did you mean "sync"?')

    def test_a_missing_file_of_credentials_names_the_option(self):
        missing = self.root / "none.toml"
        self.says(self.tool("status", "--credentials", missing), 2, f"--credentials {missing}: open ")
        self.says(self.tool("--credentials", missing, program="deltawire-sender"), 1,
                  f"--credentials: open {missing}")  # fmt: skip

    def test_sizes_take_decimals(self):
        source = checkpoint(self.root / "m", 1)
        config = self.root / "sender.toml"
        config.write_text('delta-log = "1.5GiB"\n')
        self.says(self.tool("limits", "sender", source, "--config", config), 0, "1.61 GB")
        config.write_text('delta-log = "1.5 lots"\n')
        self.says(self.tool("limits", "sender", source, "--config", config), 1,
                  '"1.5 lots" is no size', "1.5GiB")  # fmt: skip


class Peers(ToolCase):
    """Daemons at wrong addresses, and without keys."""

    def setUp(self):
        super().setUp()
        self.daemons = Daemons(self.root)
        self.addCleanup(self.daemons.close)

    def ask(self, side: str, address: str, *more: object) -> tuple[int, str]:
        return self.tool("status", f"--{side}", address, "--timeout", "5", *more)

    def bulk_address(self, control: str, *more: object) -> str:
        said = run(programs() / "deltawire", "status", "--json", "--sender", control, *more)
        return json.loads(said)["sender"]["bulk_address"]

    def test_nothing_listens_or_the_host_is_unknown(self):
        dead = f"{HOST}:{free_port()}"
        self.says(self.ask("sender", dead), 3, f"sender {dead}: nothing listens there (connection refused); "
                  "start deltawire-sender there, or pass its control address: --sender HOST:PORT")  # fmt: skip
        self.says(self.ask("receiver", "no-such-host.invalid:7710"), 3,
                  'no address is known for "no-such-host.invalid"', "check the spelling")  # fmt: skip
        for command in (["sync"], ["pause"], ["wait", "--version", 1], ["verify"]):
            self.says(self.tool(*command, "--receiver", dead), 3, "nothing listens there")

    def test_a_port_that_does_not_answer(self):
        with socket.create_server((HOST, 0)) as silent:
            address = f"{HOST}:{silent.getsockname()[1]}"
            self.says(self.tool("status", "--sender", address, "--timeout", "0.5"), 3,
                      "no answer in 500 ms, although its port takes connections")  # fmt: skip

    def test_another_program(self):
        with socket.create_server((HOST, 0)) as server:
            ended = threading.Event()

            def serve() -> None:
                server.settimeout(0.1)
                while not ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        peer, _ = server.accept()
                        with peer, contextlib.suppress(OSError):
                            peer.settimeout(0.2)
                            peer.recv(1 << 10)
                            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                self.says(self.ask("sender", f"{HOST}:{server.getsockname()[1]}"), 3,
                          "that port speaks HTTP/1", "--control-listen")  # fmt: skip
            finally:
                ended.set()
                thread.join()

    def test_roles_and_ports_in_plaintext(self):
        control = self.daemons.start_sender(self.root / "s")
        receiver = self.daemons.start_receiver([control], MODEL, self.root / "r").address
        self.says(self.ask("sender", receiver), 1, f"sender {receiver}: a receiver listens there, and no "
                  "sender; pass its control address: --sender HOST:PORT")  # fmt: skip
        self.says(self.ask("receiver", control), 1, "a sender listens there, and no receiver")
        self.says(self.tool("sync", "--receiver", control), 1, "a sender listens there")
        self.says(self.tool("rollback", "--version", 1, "--sender", receiver), 1, "a receiver listens there")
        self.says(self.tool("watch", "--sender", receiver), 1, "a receiver listens there")
        self.says(self.ask("sender", self.bulk_address(control)), 3,
                  "that is a bulk port, which carries weights only")  # fmt: skip
        self.says(self.tool("doctor", "--sender", self.bulk_address(control)), 1, "that is a bulk port")
        self.says(self.tool("doctor", "--sender", receiver), 1, "a receiver listens there")

    def test_keys_at_one_end_only(self):
        keys = self.root / "keys"
        run(programs() / "deltawire", "certs", keys, f"trainer={HOST}", f"rollout:receiver={HOST}",
            "me:operator", "looker:observer")  # fmt: skip
        guard = ["--credentials", keys / "trainer/credentials.toml", "--principals",
                 keys / "principals.toml"]  # fmt: skip
        control = self.daemons.start_sender(self.root / "s", *map(str, guard))
        plain = self.daemons.start_receiver([control], MODEL, self.root / "r").address
        me = ["--credentials", keys / "me/credentials.toml"]
        wants_tls = "its port speaks TLS, and this side has no keys; pass --credentials FILE"
        self.says(self.ask("sender", control), 3, wants_tls)
        # Without addresses, the daemon that is there is not reported as missing.
        nowhere = f"{HOST}:{free_port()}"
        self.says(self.tool("status", "--sender", control, "--receiver", nowhere), 3, wants_tls)
        self.says(self.ask("sender", control, *me), 0, "TLS 1.3")
        self.says(self.ask("receiver", plain, *me), 3, "its port speaks no TLS", "leave --credentials")
        bulk = self.bulk_address(control, *me)
        self.says(self.ask("sender", bulk, *me), 3, "that is a bulk port")
        self.says(self.ask("sender", bulk), 3, "that is a bulk port")
        rollout = ["--credentials", str(keys / "rollout/credentials.toml")]
        lost = self.daemons.start_receiver([bulk], MODEL, self.root / "r2", *rollout)
        until(lambda: "pass the control port, not the bulk port" in self.daemons.logs(),
              f"the receiver {lost.address} says that {bulk} is a bulk port")  # fmt: skip
        looker = ["--credentials", keys / "looker/credentials.toml"]
        self.says(self.tool("rollback", "--version", 1, "--sender", control, "--model", MODEL, *looker), 1,
                  "looker may not call", "takes the role operator")  # fmt: skip
        others = self.root / "others"
        run(programs() / "deltawire", "certs", others, "me:operator")
        self.says(self.ask("sender", control, "--credentials", others / "me/credentials.toml"), 3,
                  "is not believed: it is of another authority")  # fmt: skip

    def test_a_receiver_that_is_given_a_wrong_address(self):
        control = self.daemons.start_sender(self.root / "s")
        said = "that port speaks no gRPC; pass the control port, not the bulk port"
        for i, (address, words) in enumerate((
            ("no-such-host.invalid:7700", "no address is known for that host: check its spelling"),
            (self.bulk_address(control), said),
        )):  # fmt: skip
            receiver = self.daemons.start_receiver([address], MODEL, self.root / f"r{i}")
            until(lambda r=receiver, w=words: w in r.status().get("message", ""), f"its status says {words}")

    def test_a_daemon_that_hangs(self):
        control = self.daemons.start_sender(self.root / "s")
        os.kill(self.daemons.pids()[0], signal.SIGSTOP)
        begin = time.monotonic()
        self.says(self.tool("status", "--sender", control, "--timeout", "0.5"), 3, "no answer in 500 ms")
        self.assertLess(time.monotonic() - begin, OF_A_CALL_S)
        os.kill(self.daemons.pids()[0], signal.SIGCONT)

    def test_a_timeout_is_the_whole_command_s(self):
        receiver = self.daemons.start_receiver([f"{HOST}:{free_port()}"], MODEL, self.root / "r")
        begin = time.monotonic()
        code, said = self.tool("sync", "--receiver", receiver.address, "--timeout", "1")
        self.assertLess(time.monotonic() - begin, OF_A_CALL_S, said)
        self.assertIn(code, (1, 3), said)


class Screens(ToolCase):
    def setUp(self):
        super().setUp()
        self.daemons = Daemons(self.root)
        self.addCleanup(self.daemons.close)
        self.control = self.daemons.start_sender(self.root / "s")
        self.receiver = self.daemons.start_receiver([self.control], MODEL, self.root / "r")
        for step in (1, 2):
            source = checkpoint(self.root / f"step-{step}", step)
            run(programs() / "deltawire", "publish", source, "--model", MODEL, "--socket",
                self.root / "s/trainer.sock")  # fmt: skip
        self.receiver.await_version(2)

    def test_status_fits_the_terminal(self):
        both = ["--sender", self.control, "--receiver", self.receiver.address]
        status = [programs() / "deltawire", "status", *both]
        for columns in (80, 100, 60):
            with self.subTest(columns):
                lines = on_terminal(columns, *status)
                self.assertLessEqual(max(map(len, lines)), columns, "\n".join(lines))
                text = " ".join(" ".join(lines).split())
                for words in ("MODEL", "lineage", "reaches to", str(self.root / "r"), "apply+commit"):
                    self.assertIn(words, text)
        wide = on_terminal(80, *status, "--wide")
        self.assertGreater(max(map(len, wide)), 120)
        self.assertTrue(any("REACHES TO" in line for line in on_terminal(250, *status)))
        # Elsewhere than on a terminal a row is a line.
        self.assertIn("REACHES TO", run(*status))

    def test_an_engine_s_node_is_not_told_of_a_sender_at_loopback(self):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, 7700)) == 0:
                self.skipTest("something listens at the sender's default port")
        code, said = self.tool("status", "--receiver", self.receiver.address)
        self.says((code, said), 0, f"No sender on this node; its receiver follows {self.control}")
        self.assertNotIn("connection refused", said)

    def test_a_wait_says_that_the_sender_is_down(self):
        self.daemons.kill("deltawire-sender")
        until(lambda: not self.receiver.status()["attached"], "the receiver knows")
        code, said = self.tool("wait", "--receiver", self.receiver.address)
        self.says((code, said), 0, "version 2", "committed",
                  f"the receiver is not attached to its sender {self.control}")  # fmt: skip
        # A version that is named and is here needs no sender.
        code, said = self.tool("wait", "--version", 2, "--receiver", self.receiver.address)
        self.assertNotIn("not attached", said)
        self.says(self.tool("wait", "--version", 3, "--timeout", "0.3", "--receiver", self.receiver.address),
                  1, "is not attached")  # fmt: skip

    def test_the_first_version_s_delta_is_the_whole_model_everywhere(self):
        sender = self.root / "again"
        control = self.daemons.start_sender(sender)
        run(programs() / "deltawire", "publish", self.root / "step-1", "--model", MODEL, "--socket",
            sender / "trainer.sock")  # fmt: skip
        status = json.loads(run(programs() / "deltawire", "status", "--json", "--sender", control))
        newest = status["sender"]["models"][0]["newest"]
        self.assertGreater(newest["full_bytes"], 0)
        logs = re.findall(r"version 1\b.*?delta ([^,]+),", self.daemons.logs())
        self.assertTrue(logs)
        self.assertNotIn("0 B", logs)


def main() -> None:
    skipping.main(sys.argv[1:] or ["Words", "Peers", "Screens"])


if __name__ == "__main__":
    main()
