"""Hosts that are network namespaces, links between them, and deltawire's programs on them.

    if __name__ == "__main__":
        networks.enter()  # starts the program again, as root of namespaces of its own

Everything is made in namespaces of this program's own (network, mounts, processes), so nothing is
left behind, and nothing else on the machine is seen or touched. A link is a veth pair, whose rate
`tbf` limits, or an emulated one (link_emulator.cc) with delay, losses and cuts.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import skipping
from daemons import DEADLINE_S, end, listens, read_safetensors, run, spawn, until

INSIDE = "DELTAWIRE_NETWORKS_INSIDE"
UNSHARE = "unshare --mount --net --pid --fork --kill-child --mount-proc".split()
# What this program does inside; as root in most containers it is refused.
PROBE = """
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip netns add probe
ip link add dw0 netns probe type veth peer name dw1
"""
TUN_PROBE = "ip tuntap add dev dw2 mode tun"
MODEL = "m"
CONTROLS = ("bbr", "cubic", "reno")  # of congestion, by TCP


def enter() -> None:
    """Returns inside namespaces of our own; skips the whole program where they are not allowed."""
    if os.environ.get(INSIDE):
        os.makedirs("/run/netns", exist_ok=True)
        for folder in ("/dev/shm", "/run/netns"):
            run("mount", "-t", "tmpfs", "tmpfs", folder)
        return
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        skipping.leave("no unshare or no ip on this machine")
    for what in (PROBE, PROBE + TUN_PROBE):
        probe = subprocess.run(
            [*UNSHARE, "sh", "-ec", what], capture_output=True, text=True, check=False
        )
        if probe.returncode != 0:
            skipping.leave(f"no namespaces or TUN devices of our own here: {probe.stderr.strip()}")
    command = [*UNSHARE, sys.executable, "-B", *sys.argv]
    sys.exit(subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode)


def programs() -> pathlib.Path:
    return pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"])


class EmulatedLink:
    """A running link_emulator; `options` are its own, without the dashes in front."""

    def __init__(self, a: str, b: str, device: str, options: dict):
        command = [str(programs() / "link_emulator"), "--a", f"{a}:{device}", "--b", f"{b}:{device}"]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self._process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("ready")

    def _answer(self, event: str) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"link_emulator ended with {self._process.wait()}")
        answer = json.loads(line)
        assert answer.pop("event") == event, line
        return answer

    def _tell(self, word: str) -> dict:
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer(word)

    def cut(self) -> None:
        self._tell("cut")

    def heal(self) -> None:
        self._tell("heal")

    def report(self) -> dict:
        return self._tell("report")

    def close(self) -> None:
        end(self._process)
        self._process.stdin.close()
        self._process.stdout.close()


class Node:
    """A host: a network namespace with its daemons, which keep their data below `root`/NAME."""

    def __init__(self, network: Network, name: str):
        self.name = name
        self.address = ""  # the first that it gets
        self.data = network.root / name
        self.data.mkdir()
        self._network = network
        self.sender: subprocess.Popen | None = None
        self.receiver: subprocess.Popen | None = None
        run("ip", "netns", "add", name)
        self.ip("link", "set", "lo", "up")
        # A namespace begins with the host's, by which one seed would go differently on two machines.
        self.congestion_control("reno")

    def ip(self, *words: str) -> str:
        return run("ip", "-n", self.name, *words)

    def add_address(self, device: str, address: str) -> None:
        self.ip("address", "add", address, "dev", device)
        self.ip("link", "set", device, "up")
        self.address = self.address or address.partition("/")[0]

    def sysctl(self, **values: object) -> None:
        """Of this namespace, e.g. net_ipv4_tcp_wmem."""
        for name, value in values.items():
            path = "/proc/sys/" + name.replace("_", "/", 2)
            self.run("sh", "-c", f"echo {value} > {path}")

    def congestion_control(self, wanted: str) -> str:
        """Of connections from now on: `wanted`, or reno, which every kernel has, where this one does
        not let a namespace choose that."""
        try:
            self.sysctl(net_ipv4_tcp_congestion_control=wanted)
        except AssertionError:
            wanted = "reno"
            self.sysctl(net_ipv4_tcp_congestion_control=wanted)
        return wanted

    def forward(self) -> None:
        self.sysctl(net_ipv4_ip_forward=1)

    def counters(self, device: str) -> dict:
        """{"rx": {"bytes": ..., "packets": ...}, "tx": ...} of a device."""
        (found,) = json.loads(self.ip("-s", "-j", "link", "show", "dev", device))
        return found["stats64"]

    def within(self, *command: object) -> list[str]:
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def run(self, *command: object, **options) -> str:
        return run(*self.within(*command), **options)

    def spawn(self, *command: object, **options) -> subprocess.Popen:
        child = spawn(self.within(*command), **options)
        self._network.children.append(child)
        return child

    def _daemon(self, program: str, *options: object) -> subprocess.Popen:
        with open(self.data / f"{program}.log", "a") as log:
            command = [programs() / program, "--insecure-plaintext", *options]
            return self.spawn(*command, stdout=log, stderr=subprocess.STDOUT)

    # -- deltawire's programs ----------------------------------------------------------------------

    def start_sender(self, *options: object) -> str:
        """Its control address."""
        self.sender = self._daemon(
            "deltawire-sender", "--data-dir", self.data / "sender", "--control-listen",
            f"{self.address}:7700", "--bulk-listen", f"{self.address}:7701", *options,
        )  # fmt: skip
        until(lambda: listens(self.data / "sender/trainer.sock"), "the sender listens")
        return f"{self.address}:7700"

    def start_receiver(self, *options: object, serve: bool = False) -> str:
        """Its control address, which only this node can reach unless it serves. `options`: --sender
        ADDRESS,... first of all."""
        self.control = f"{self.address if serve else '127.0.0.1'}:7710"
        relay = ["--bulk-listen", f"{self.address}:7711"] if serve else []
        self.receiver = self._daemon(
            "deltawire-receiver", "--model", f"{MODEL}={self.data / 'receiver'}",
            "--data-dir", self.data / "receivers", "--control-listen", self.control, *relay,
            "--receiver-id", self.name, *options,
        )  # fmt: skip
        return self.control

    def tool(self, *command: object, **options) -> str:
        return self.run(programs() / "deltawire", *command, **options)

    def publish(self, checkpoint: pathlib.Path, version: int) -> dict:
        return json.loads(
            self.tool("publish", checkpoint, "--model", MODEL, "--version", version, "--json",
                      "--socket", self.data / "sender/trainer.sock")  # fmt: skip
        )

    def status(self) -> dict:
        """Of the receiver's model, once it answers."""
        command = self.within(
            programs() / "deltawire", "status", "--json", "--receiver", self.control
        )

        def ask() -> dict | None:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            models = json.loads(done.stdout)["receiver"].get("models") if done.stdout else None
            return models[0] if models else None

        return until(ask, f"the receiver on {self.name} answers")

    def committed(self) -> int:
        return int(self.status().get("committed", {}).get("version", 0))

    def await_version(self, version: int, seconds: float = DEADLINE_S) -> float:
        """Seconds until the receiver had committed it."""
        began = time.monotonic()
        while self.committed() < version:
            if time.monotonic() > began + seconds:
                raise AssertionError(f"{self.name}: version {version} is not committed after "
                                     f"{seconds:.0f} s: {self.status()}")  # fmt: skip
            time.sleep(0.02)
        return time.monotonic() - began

    def forget(self) -> None:
        """Removes what its receiver, which has ended, holds."""
        shutil.rmtree(self.data / "receiver")

    def content(self) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """What the receiver's directory holds, by a reader that shares nothing with deltawire."""
        return read_safetensors(self.data / "receiver/model.safetensors")


class Network:
    """Nodes and their links. A context manager: ends what it started, and prints the daemons' logs
    where an error leaves it."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.children: list[subprocess.Popen] = []
        self._nodes: list[Node] = []
        self._links: list[EmulatedLink] = []
        self._devices = 0

    def node(self, name: str) -> Node:
        self._nodes.append(Node(self, name))
        return self._nodes[-1]

    def nodes(self, *names: str) -> list[Node]:
        return [self.node(name) for name in names]

    def _device(self) -> str:
        self._devices += 1
        return f"dw{self._devices}"

    def emulate(self, a: Node, b: Node, net: str, **options) -> EmulatedLink:
        """`net`: the first three numbers of the link's addresses; `a` gets .1 and `b` gets .2."""
        device = self._device()
        link = EmulatedLink(a.name, b.name, device, options)
        self._links.append(link)
        link.device = device
        for number, node in enumerate((a, b), 1):
            node.add_address(device, f"{net}.{number}/24")
        return link

    def veth(self, a: Node, b: Node, net: str, bits_per_s: int = 0) -> str:
        """A wire, which both ends' `tbf` limit to a rate; 0: none. Its device at both ends."""
        device = self._device()
        run("ip", "link", "add", device, "netns", a.name, "type", "veth",
            "peer", "name", device, "netns", b.name)  # fmt: skip
        for number, node in enumerate((a, b), 1):
            node.add_address(device, f"{net}.{number}/24")
            if bits_per_s:
                # Room for 50 ms, as in a switch; a burst is what passes in 4 ms, the longest that a
                # slow kernel timer lets pass.
                burst = max(16 << 10, bits_per_s // 8 // 250)
                run("tc", "-n", node.name, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                    f"{bits_per_s}bit", "burst", str(burst), "limit", str(bits_per_s // 8 // 20 + burst))  # fmt: skip
        return device

    def site(self, name: str, net: str, nodes: list[Node]) -> Node:
        """A router, .1 of the net, with the nodes behind it, .2 and on, at a switch."""
        router = self.node(name)
        router.ip("link", "add", "switch", "type", "bridge")
        router.add_address("switch", f"{net}.1/24")
        router.forward()
        for number, node in enumerate(nodes, 2):
            port = f"port{number}"
            run("ip", "link", "add", port, "netns", name, "type", "veth",
                "peer", "name", "lan", "netns", node.name)  # fmt: skip
            router.ip("link", "set", port, "master", "switch", "up")
            node.add_address("lan", f"{net}.{number}/24")
            node.ip("route", "add", "default", "via", f"{net}.1")
        return router

    def logs(self) -> str:
        return "".join(
            f"\n--- {p.relative_to(self.root)}\n{p.read_text('utf-8', 'replace')}"
            for p in sorted(self.root.glob("*/*.log"))
        )

    def close(self, failed: bool = False) -> None:
        """Ends what it started; before, if something failed, prints what the links did and what the
        daemons logged."""
        if failed:
            with contextlib.suppress(AssertionError, OSError):
                for link in self._links:
                    print(json.dumps(link.report()))
            print(self.logs(), flush=True)
        for child in self.children:
            child.kill()
            child.wait()
        for link in self._links:
            link.close()
        for node in self._nodes:
            run("ip", "netns", "delete", node.name)
            shutil.rmtree(node.data, ignore_errors=True)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(failed=kind is not None)
