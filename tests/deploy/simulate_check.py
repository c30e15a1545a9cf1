"""Compares `deltawire simulate` with real runs in network namespaces, by hand:

    DELTAWIRE_BIN_DIR=build/release/bin python3 tests/deploy/simulate_check.py [CASE...]

A sender and receivers run in namespaces that a bridge joins, each behind a token bucket (tbf). The
speeds that the prediction wants are measured first, in set-ups of their own: none of the cases
below has a part in them. Each case then publishes some versions, and the median of the times from
ready to the last commit stands beside what the tool predicted. Wants root
and numpy; the case with a round trip also tests/support's link_emulator, as
DELTAWIRE_LINK_EMULATOR. DELTAWIRE_CHECK_VERBOSE=1 prints stages. Ends with 1 where a case is
further off than --within. Nothing else may run on the machine; where something does, --urgent
gives the daemons the highest priority, and --fastest takes the least of the times, here and for
the speeds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

import numpy  # noqa: E402
from daemons import programs, run, spawn, until  # noqa: E402

MODEL = "m"
URGENT: list[str] = []  # before the commands that are measured
EMULATOR = os.environ.get("DELTAWIRE_LINK_EMULATOR", "")
TENSORS = 16
CONTROL, BULK, METRICS = 7700, 7701, 9700
PIECE = 1 << 22  # elements
# What tbf counts of a full packet of 1,500 bytes, and what TCP's payload is of it.
LINK_PAYLOAD = 1448 / 1514
# Versions whose pulls are not counted. The tool predicts a version after many, where the estimates
# of links, by which `auto` takes a codec, have settled; here they have so many to do that in.
WARM_UP = 1
WARM_UP_AUTO = 8
# Between namespaces, and how often a pull goes that way before its first frame (docs/scaling.md).
ROUND_TRIP_MS = 0.1
CONNECT_TRIPS = 3.5
# A daemon that has used no processor for so long has nothing to do: a tick is 10 ms.
REST_S = 0.1
# Of the set-up in which speeds are measured: so slow that the ends' work does not overlap.
SLOW_MBIT = 100


@dataclass
class Case:
    name: str
    uplink_mbit: int  # of the sender
    density: float
    receivers: int = 1
    codec: str = "auto"
    buffers: int = 1
    relay: bool = False  # the first receiver serves the others
    relay_mbit: int = 1000
    mib: int = 128
    round_trip_ms: float = 0  # by tests/support/link_emulator, where that was built
    sites: int = 1  # the receivers are of so many sites, one after the other
    site_limit: int = 0  # bytes/s that the sender sends to each of them at most

    @property
    def warm_up(self) -> int:
        return WARM_UP_AUTO if self.codec == "auto" else WARM_UP

    def site_of(self, receiver: int) -> str:
        return f"site{receiver % self.sites}"


CASES = [
    Case("50 Mbit/s, 0.1 %", 50, 0.001, mib=256),
    Case("100 Mbit/s, 1 %, two receivers", 100, 0.01, receivers=2),
    Case("400 Mbit/s, 5 %, two buffers", 400, 0.05, buffers=2),
    Case("1 Gbit/s, 2 %, four receivers", 1000, 0.02, receivers=4),
    Case("100 Mbit/s, 1 %, tight, a relay and two leaves", 100, 0.01, receivers=3, codec="tight",
         relay=True, relay_mbit=400),
    Case("200 Mbit/s, 2 %, 40 ms round trip", 200, 0.02, round_trip_ms=40),
    Case("400 Mbit/s, 1 %, fast, two sites of two, each 4 MB/s", 400, 0.01, receivers=4,
         codec="fast", sites=2, site_limit=4_000_000),
]  # fmt: skip


# ---- a trainer's versions ------------------------------------------------------------------------


class Trainer:
    """bf16 weights of which a share moves by one, the likelier the smaller they are."""

    def __init__(self, mib: int, density: float, root: pathlib.Path, seed: int = 1):
        self._random = numpy.random.default_rng(seed)
        self._root = root
        n = mib << 19
        self.bits = numpy.empty(n, dtype=numpy.uint16)
        for at in range(0, n, PIECE):
            weights = self._random.standard_normal(min(PIECE, n - at), dtype=numpy.float32)
            weights *= numpy.float32(0.02)
            self.bits[at : at + PIECE] = weights.view(numpy.uint32) >> 16
        self._version = 0
        self.set_density(density)

    def set_density(self, density: float) -> None:
        """From one exponent to the next the rate halves."""
        share = numpy.bincount((self.bits[::64] >> 7) & 255, minlength=256) / len(self.bits[::64])
        rate = numpy.exp2(-numpy.arange(256.0))
        low, high = 0.0, 2.0**255
        for _ in range(600):  # a rate is 1 at most
            middle = (low + high) / 2
            if share @ numpy.minimum(1, rate * middle) < density:
                low = middle
            else:
                high = middle
        self._rate = numpy.minimum(1, rate * high).astype(numpy.float32)

    def _move(self) -> None:
        for at in range(0, self.bits.size, PIECE):
            bits = self.bits[at : at + PIECE]
            rate = self._rate[(bits >> 7) & 255]
            (where,) = numpy.nonzero(self._random.random(bits.size, dtype=numpy.float32) < rate)
            up = self._random.integers(0, 2, where.size) == 1
            bits[where] += numpy.where(up, 1, 65535).astype(numpy.uint16)

    def step(self) -> pathlib.Path:
        """The next version's directory."""
        if self._version:
            self._move()
        self._version += 1
        directory = self._root / f"v{self._version}"
        directory.mkdir()
        each = self.bits.size // TENSORS
        header = {
            f"t{i:02}": {"dtype": "BF16", "shape": [each],
                         "data_offsets": [2 * i * each, 2 * (i + 1) * each]}
            for i in range(TENSORS)
        }  # fmt: skip
        text = json.dumps(header).encode()
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(self.bits[: each * TENSORS].tobytes())
        (directory / "config.json").write_text("{}")
        return directory


# ---- namespaces ----------------------------------------------------------------------------------


class Network(contextlib.ExitStack):
    """Namespaces NAME with 10.77.0.N, joined by a bridge in one of their own."""

    def __init__(self, rates: dict[str, int], round_trip_ms: float = 0):
        """`rates`: of what each may send, in Mbit/s; 0: as fast as it goes. With a round trip two
        nodes are joined by an emulated link instead, of the first one's rate."""
        super().__init__()
        self.address = {}
        self._prefix = f"dw{os.getpid()}"
        if round_trip_ms:
            self._emulate(*rates, rate=next(iter(rates.values())), round_trip_ms=round_trip_ms)
            return
        self._add(self._name("hub"))
        run("ip", "-n", self._name("hub"), "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._name("hub"), "link", "set", "br0", "up")
        for i, (node, rate) in enumerate(rates.items(), 1):
            self._join(i, node, rate)

    def _emulate(self, a: str, b: str, rate: int, round_trip_ms: float) -> None:
        for node in (a, b):
            self._add(self._name(node))
        link = spawn(
            [*URGENT, EMULATOR, "--a", f"{self._name(a)}:dw0", "--b", f"{self._name(b)}:dw0",
             "--rate", f"{rate}M", "--delay-ms", str(round_trip_ms / 2)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.enter_context(link)
        self.callback(link.kill)
        assert "ready" in link.stdout.readline()
        for i, node in enumerate((a, b), 1):
            self.address[node] = f"10.77.0.{i}"
            run("ip", "-n", self._name(node), "address", "add", f"10.77.0.{i}/24", "dev", "dw0")
            run("ip", "-n", self._name(node), "link", "set", "lo", "up")

    def _name(self, node: str) -> str:
        return f"{self._prefix}-{node}"

    def _add(self, namespace: str) -> None:
        run("ip", "netns", "add", namespace)
        self.callback(subprocess.run, ["ip", "netns", "del", namespace], check=False)

    def _join(self, i: int, node: str, rate: int) -> None:
        name, hub = self._name(node), self._name("hub")
        self._add(name)
        run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{i}",
            "netns", hub)  # fmt: skip
        run("ip", "-n", hub, "link", "set", f"p{i}", "master", "br0", "up")
        self.address[node] = f"10.77.0.{i}"
        run("ip", "-n", name, "address", "add", f"10.77.0.{i}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        if rate:
            # What the bucket holds passes at once, so it holds half a millisecond's bytes, and two
            # packets at least. The kernel's own large packets are cut to that.
            burst = max(2 * 1514, rate * 125_000 // 2000)
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                f"{rate}mbit", "burst", burst, "latency", "100ms")  # fmt: skip

    def within(self, node: str, *command: object) -> list[str]:
        return ["ip", "netns", "exec", self._name(node), *[str(c) for c in command]]


# ---- one set-up of daemons -----------------------------------------------------------------------


@dataclass
class Version:
    seconds: float  # ready -> the last commit
    publish: float
    commits: dict[str, float]  # by node
    stats: dict[str, dict]
    changed: float
    delta_bytes: int
    stages: dict[str, dict[str, float]] = field(default_factory=dict)  # what metrics say, by node


class SetUp(contextlib.ExitStack):
    def __init__(self, case: Case, root: pathlib.Path):
        super().__init__()
        self.case, self.root = case, root
        self.nodes = [f"r{i}" for i in range(case.receivers)]
        rates = {"sender": case.uplink_mbit, **dict.fromkeys(self.nodes, 0)}
        if case.relay:
            rates["r0"] = case.relay_mbit
        self.network = self.enter_context(Network(rates, case.round_trip_ms))
        self.trainer = Trainer(case.mib, case.density, root)
        self.events: dict[str, pathlib.Path] = {}
        self._version = 0
        self._totals: dict[str, dict[str, float]] = {}
        self._daemons: list[subprocess.Popen] = []
        self._start("sender", "deltawire-sender", "--data-dir", root / "sender", "--early", "off",
                    "--codec", case.codec, "--rate-limit", f"site:{case.site_limit}",
                    "--scrub-bytes-per-s", 0)  # fmt: skip
        for i, node in enumerate(self.nodes):
            self._start_receiver(node, case.site_of(i))

    def _start_receiver(self, node: str, site: str) -> None:
        case = self.case
        leaf = case.relay and node != "r0"
        upstream = self.network.address["r0" if leaf else "sender"]
        options = ["--sender", f"{upstream}:{CONTROL}", "--model", f"{MODEL}={self.root / node}",
                   "--receiver-id", node, "--buffers", case.buffers, "--scrub-bytes-per-s", 0,
                   "--delta-files", 0]  # fmt: skip
        if case.site_limit:
            options += ["--site", site]
        if case.relay and node == "r0":
            options += ["--bulk-listen", f"0.0.0.0:{BULK}"]
        self._start(node, "deltawire-receiver", *options)

    def _start(self, node: str, program: str, *options: object) -> None:
        listen = ["--control-listen", f"0.0.0.0:{CONTROL}", "--insecure-plaintext",
                  "--insecure-metrics", "--metrics-listen", f"0.0.0.0:{METRICS}"]  # fmt: skip
        if program == "deltawire-sender":
            listen += ["--bulk-listen", f"0.0.0.0:{BULK}"]
        command = self.network.within(node, *URGENT, programs() / program, *options, *listen)
        with (self.root / f"{node}.log").open("w") as log:
            self._daemons.append(spawn(command, stdout=log, stderr=subprocess.STDOUT))
        self._keep(self._daemons[-1])
        if program == "deltawire-sender":
            return
        self.events[node] = self.root / f"{node}.jsonl"
        watch = self.network.within(
            node, programs() / "deltawire", "watch", "--json", "--sender",
            f"{self.network.address['sender']}:{CONTROL}", "--model", MODEL, "--receiver",
            f"127.0.0.1:{CONTROL}",
        )  # fmt: skip
        self._watches = getattr(self, "_watches", {}) | {node: watch}

    def _keep(self, child: subprocess.Popen) -> None:
        def end() -> None:
            child.terminate()
            child.wait()

        self.callback(end)

    def watch(self) -> None:
        for node, command in self._watches.items():
            with self.events[node].open("w") as out:
                self._keep(spawn(command, stdout=out, stderr=subprocess.DEVNULL))

    def publish(self) -> Version:
        directory = self.trainer.step()
        self._version += 1
        socket = self.root / "sender" / "trainer.sock"
        until(socket.exists, "the sender listens")
        run(programs() / "deltawire", "publish", directory, "--model", MODEL, "--socket", socket,
            "--version", self._version)  # fmt: skip
        (directory / "model.safetensors").unlink()
        if self._version == 1:
            self.watch()
        published = self._event(self.nodes[0], "published")
        commits = {node: self._event(node, "committed") for node in self.nodes}
        ready = published["ready_unix_nanos"]
        seconds = {
            node: (event["committed_unix_nanos"] - ready) / 1e9 for node, event in commits.items()
        }
        self._settle()
        return Version(
            max(seconds.values()), published["publish_seconds"], seconds,
            {node: event["stats"] for node, event in commits.items()},
            published["changed_elements"], published["delta_bytes"], self._stages(),
        )  # fmt: skip

    def pull_whole(self, node: str) -> float:
        """Seconds of the transfer."""
        done = run(*self.network.within(
            node, programs() / "deltawire", "sync", "--full", "--json", "--model", MODEL,
            "--receiver", f"127.0.0.1:{CONTROL}"))  # fmt: skip
        return json.loads(done)["stats"]["transfer_seconds"]

    def _event(self, node: str, kind: str) -> dict:
        def found() -> dict | None:
            for line in self.events[node].read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    version = event.get("id", {}).get("version")
                    if event["event"] == kind and version == self._version:
                        return event
            return None

        return until(found, f"{node} says {kind} of version {self._version}")

    def _settle(self) -> None:
        """Returns when scrapes have all stages of the version and nobody works on it any more: with
        two buffers the other file is brought up to date after the commit, which nothing tells."""
        heard = len(self.nodes) if not self.case.relay else 1  # leaves report to their relay

        def counted() -> bool:
            if self._scrape("sender", "count").get("deliver", 0) < heard * self._version:
                return False
            return all(self._scrape(node, "count").get("commit", 0) >= self._version
                       for node in self.nodes)  # fmt: skip

        until(counted, f"all stages of version {self._version} are counted")
        before, since = self._processor_times(), time.monotonic()

        def rests() -> bool:
            nonlocal before, since
            if (now := self._processor_times()) != before:
                before, since = now, time.monotonic()
            return time.monotonic() - since > REST_S

        until(rests, f"the daemons have done with version {self._version}")

    def _processor_times(self) -> list[list[str]]:
        """Of each daemon, in the kernel's ticks: in user mode and in the kernel."""
        stats = [pathlib.Path(f"/proc/{child.pid}/stat").read_text() for child in self._daemons]
        return [stat.rpartition(")")[2].split()[11:13] for stat in stats]

    def _scrape(self, node: str, what: str) -> dict[str, float]:
        """`what` ("sum", "count") of each stage of the node."""
        # Who asks has to be in the namespace.
        ask = (
            "import urllib.request as u;"
            f"print(u.urlopen('http://127.0.0.1:{METRICS}/metrics').read().decode())"
        )
        text = run(*self.network.within(node, sys.executable, "-c", ask))
        rows = re.findall(rf'_stage_seconds_{what}\{{.*?stage="(\w+)"\}} (\S+)', text)
        return {stage: float(value) for stage, value in rows}

    def _stages(self) -> dict[str, dict[str, float]]:
        """Seconds of each stage since the last call."""
        new: dict[str, dict[str, float]] = {}
        for node in ("sender", *self.nodes):
            total = self._scrape(node, "sum")
            before = self._totals.get(node, {})
            new[node] = {stage: value - before.get(stage, 0) for stage, value in total.items()}
            self._totals[node] = total
        return new


# ---- speeds of this machine ----------------------------------------------------------------------


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """y = a + b x by two points, or by least squares of more."""
    x, y = numpy.array(points).T
    b, a = numpy.polyfit(x, y, 1)
    return float(a), float(b)


def calibrate(root: pathlib.Path, repeats: int, typical) -> dict[str, float]:
    """Speeds by a sender and one receiver: of whole pulls with nothing in their way but this
    machine's cores, of all else behind a link so slow that nothing takes cores from it."""
    cores = os.cpu_count()
    with SetUp(Case("calibration", 0, 0.002, codec="fast"), root / "whole") as pair:
        pair.publish()
        whole = [pair.pull_whole("r0") for _ in range(repeats)]
    case = Case("calibration", SLOW_MBIT, 0.0005, codec="fast")
    by_density: dict[float, list[Version]] = {}
    with SetUp(case, root / "fast") as pair:
        pair.publish()
        for density in (0.0005, 0.03):
            pair.trainer.set_density(density)
            by_density[density] = [pair.publish() for _ in range(repeats)]
    size = case.mib << 20

    def usual(versions: list[Version], of) -> float:
        return typical([of(v) for v in versions])

    def by_changes(of) -> tuple[float, float]:
        return slope([
            (statistics.median(v.changed for v in versions), usual(versions, of))
            for versions in by_density.values()
        ])  # fmt: skip

    publish = by_changes(lambda v: v.publish)
    apply = by_changes(lambda v: v.stages["r0"]["apply"])
    stage = by_changes(lambda v: v.stages["r0"]["stage"])
    small = by_density[0.0005]
    rate = SLOW_MBIT * 125_000 * LINK_PAYLOAD
    # What is neither publish, nor a stage of the pull that its bytes explain, nor its round trips.
    rest = usual(small, lambda v: v.seconds - v.publish - sum(
        v.stages["r0"][s] for s in ("apply", "commit")) - v.delta_bytes / rate)  # fmt: skip
    # Both ends share the cores; of what a pull of whole chunks computes, the sender has a third.
    both = size / (typical(whole) * cores)
    speeds: dict[str, float] = {
        "diff": size / max(publish[0], 1e-6) / cores,
        "encode-changes": 1 / max(publish[1] * cores, 1e-12),
        "apply": size / max(apply[0] * cores, 1e-6),
        "apply-changes": 1 / max(apply[1] * cores, 1e-12),
        "validate-changes": 1 / max(stage[1], 1e-12),
        "connect": max(rest - CONNECT_TRIPS * ROUND_TRIP_MS / 1000, 1e-4),
        "commit": usual(small, lambda v: v.stages["r0"]["commit"]),
        "publish": 0.0, "publish-chunk": 0.0, "plan-chunk": 0.0, "commit-chunk": 0.0,
        "memory-core": 1e12,  # the two cores' diff has it in it
        "send": both / 0.35, "receive": both / 0.65,
    }  # fmt: skip
    # Behind a slow link, so that encoding and decoding do not take cores from one another.
    with SetUp(Case("calibration", 20, 0.01, codec="tight"), root / "tight") as pair:
        pair.publish()
        tight = [pair.publish() for _ in range(1 + repeats)]
    plain, old = tight[0], tight[1:]
    # The work of the codec's table: the fast payload's bytes and a 1024th of the chunk's.
    work = statistics.median(v.delta_bytes for v in tight) + size / 1024

    def encode(v: Version) -> float:
        return v.stages["sender"]["encode"]

    def decode(v: Version) -> float:
        return v.stages["r0"]["stage"] - v.changed * stage[1]

    speeds |= {
        "tight-encode": work / encode(plain),
        "tight-decode": work / decode(plain),
        "tight-history-encode": work / usual(old, encode),
        "tight-history-decode": work / usual(old, decode),
    }
    ratios = [v.stats["r0"]["payload_bytes"] / v.delta_bytes for v in (plain, *old)]
    return speeds | {"*ratio": ratios[0], "*history": statistics.median(ratios[1:])}


def fleet(case: Case, density: float, speeds: dict[str, float]) -> str:
    """The case as the tool reads it."""
    known = "\n".join(f"{k} = {v}" for k, v in speeds.items() if not k.startswith("*"))
    round_trip = case.round_trip_ms or ROUND_TRIP_MS
    node = f'machine = "here"\nbuffers = {case.buffers}\nround-trip = "{round_trip} ms"\n'
    text = f"""link-payload = {LINK_PAYLOAD}
[model]
bytes = {case.mib << 20}
tensors = {TENSORS}
[changes]
density = {density}
difference-bits = 1  # all differences are one, so only the sign is coded
tight-ratio = {speeds["*ratio"]}
history-ratio = {speeds["*history"]}
[[machine]]
name = "here"
cores = {os.cpu_count()}
[trainer]
machine = "here"
codec = "{case.codec}"
rate = "{case.uplink_mbit} Mbit/s"
rate-limit-per-site = {case.site_limit}
[speeds]
{known}
"""
    if not case.relay:
        each = f'count = {case.sites}\nreceivers = {case.receivers // case.sites}\n'
        return text + f'[[site]]\nname = "receivers"\n{each}{node}'
    return text + (
        f'[[site]]\nname = "relay"\nnetwork = "{case.relay_mbit} Mbit/s"\n{node}'
        f'codec = "auto"\n[[site]]\nname = "leaves"\nupstream = "relay"\n'
        f'receivers = {case.receivers - 1}\n{node}'
    )


def predict(text: str, root: pathlib.Path, name: str) -> dict:
    file = root / f"{name}.toml"
    file.write_text(text)
    return json.loads(run(programs() / "deltawire", "simulate", file, "--json"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--fastest", action="store_true",
                        help="the least of the repeats instead of the median: on a busy machine")
    parser.add_argument("--speeds", type=pathlib.Path, help="a speeds.json that --keep has kept")
    parser.add_argument("--keep", type=pathlib.Path, help="where the fleets' files go")
    parser.add_argument("cases", nargs="*", type=int, help="numbers of cases, from 1")
    parser.add_argument("--urgent", action="store_true",
                        help="daemons are scheduled before all that also runs on the machine")
    options = parser.parse_args()
    if options.urgent:
        URGENT.extend(["nice", "-n", "-40"])  # -20, whatever it is now
    typical = min if options.fastest else statistics.median
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="deltawire-simulate-", dir="/dev/shm") as folder:
        root = pathlib.Path(folder)
        keep = options.keep or root
        keep.mkdir(exist_ok=True)
        for name in ("calibration/whole", "calibration/fast", "calibration/tight"):
            (root / name).mkdir(parents=True)
        if options.speeds:
            speeds = json.loads(options.speeds.read_text())
        else:
            speeds = calibrate(root / "calibration", options.repeats, typical)
        (keep / "speeds.json").write_text(json.dumps(speeds))
        print("speeds " + ", ".join(f"{k} {v:.4g}" for k, v in speeds.items()), flush=True)
        print(f"{'case':48} {'predicted':>9} {'measured':>9} {'ratio':>6}  range, median, bytes")
        for i, case in enumerate(CASES, 1):
            if options.cases and i not in options.cases:
                continue
            if case.round_trip_ms and not EMULATOR:
                print(f"{case.name:48} SKIPPED: DELTAWIRE_LINK_EMULATOR names no link_emulator")
                continue
            (root / str(i)).mkdir()
            with SetUp(case, root / str(i)) as up:
                versions = [up.publish() for _ in range(1 + case.warm_up + options.repeats)]
            counted = versions[1 + case.warm_up :]
            elements = case.mib << 19
            density = statistics.median(v.changed for v in counted) / elements
            told = predict(fleet(case, density, speeds), keep, f"case-{i}")
            seconds = sorted(v.seconds for v in counted)
            measured, predicted = typical(seconds), told["delta"]["seconds"]
            ratio = predicted / measured
            worst = max(worst, abs(ratio - 1))
            last = counted[-1]
            sent = [s["payload_bytes"] for s in last.stats.values()]
            print(
                f"{case.name:48} {predicted:8.3f}s {measured:8.3f}s {ratio:6.2f}  "
                f"{seconds[0]:.3f} .. {statistics.median(seconds):.3f} .. {seconds[-1]:.3f}, "
                f"{sent}, predicted {[r['payload_bytes'] for r in told['delta']['receivers']]}",
                flush=True,
            )
            if os.environ.get("DELTAWIRE_CHECK_VERBOSE"):
                print(json.dumps(last.stages), flush=True)
                for stage in told["delta"]["path"]:
                    print("   ", stage, flush=True)
    print(f"worst: {100 * worst:.0f} % off", flush=True)
    return 0 if worst <= options.within else 1


if __name__ == "__main__":
    if programs() is None:
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    sys.exit(main())
