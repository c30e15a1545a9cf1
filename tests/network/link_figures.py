"""Measures deltawire over emulated links, beside bare TCP with as many streams over the same link.

    link_figures.py ceiling                 how fast the emulator itself is, here
    link_figures.py share  [OPTION ...]     a full pull: payload's share of the link's rate
    link_figures.py delta  [OPTION ...]     from ready to committed, against payload / rate
    link_figures.py uplink [OPTION ...]     eight receivers behind a relay, against one

A line of JSON for each run; `--runs` and a seed for each. What a share counts are the payload's
bytes alone, while the middle of the transfer passes: from 40% to 95% of all bytes on the link, so
neither the slow start nor the last stream counts. Bare TCP is measured by the same clock. Buffers
are the kernel's default, or those of deploy/systemd/deltawire.sysctl.conf.example (--tuned). Which
--control a namespace may have stands in net.ipv4.tcp_allowed_congestion_control. With --rtt-ms 0
and --loss 0 the link of `delta` is a veth pair with tbf, for which the kernel needs less processor
time; `share` counts what passes the emulator, so it refuses such a link.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "support"))

import networks  # noqa: E402
from versions import Versions  # noqa: E402

PIECE = 1 << 20
PORT = 7999


# ---- bare TCP, as programs of their own on the nodes ---------------------------------------------


def send(address: str, streams: int, total: int) -> None:
    zeros = memoryview(bytes(PIECE))

    def one(connection: socket.socket) -> None:
        with connection:
            left = total // streams
            while left:
                left -= connection.send(zeros[: min(left, PIECE)])
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # until the other end has read everything

    with socket.create_server((address, PORT), backlog=128) as server:
        print("ready", flush=True)
        threads = [threading.Thread(target=one, args=server.accept()[:1]) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def receive(address: str, streams: int) -> None:
    def one() -> None:
        buffer = bytearray(PIECE)
        with socket.create_connection((address, PORT)) as connection:
            while connection.recv_into(buffer):
                pass

    threads = [threading.Thread(target=one) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Meter:
    """Samples what has passed a link, and says how fast its middle was."""

    def __init__(self, link: networks.EmulatedLink):
        self._link = link
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            report = self._link.report()["a_to_b"]
            self._samples.append((time.monotonic(), report["bytes_out"]))
            self._stop.wait(0.02)

    def rate(self, payload: int) -> float:
        """Payload bits per second; ends the measurement."""
        self._stop.set()
        self._thread.join()
        first, last = self._samples[0][1], self._samples[-1][1]
        passed = last - first
        middle = [(t, b) for t, b in self._samples if 0.4 <= (b - first) / passed <= 0.95]
        (t0, b0), (t1, b1) = middle[0], middle[-1]
        return 8 * (b1 - b0) / (t1 - t0) * payload / passed


def bare(a: networks.Node, b: networks.Node, streams: int, total: int) -> float:
    """Seconds, connecting included."""
    sender = a.spawn(sys.executable, "-B", __file__, "send", a.address, str(streams), str(total),
                     stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert sender.stdout.readline() == "ready\n"
    began = time.monotonic()
    b.run(sys.executable, "-B", __file__, "receive", a.address, str(streams))
    seconds = time.monotonic() - began
    sender.wait()
    return seconds


# ---- cases ---------------------------------------------------------------------------------------


def tune(nodes: list[networks.Node], options: argparse.Namespace) -> None:
    values = {"net_ipv4_tcp_congestion_control": options.control}
    if options.tuned:
        text = (ROOT / "deploy/systemd/deltawire.sysctl.conf.example").read_text("utf-8")
        for name, value in re.findall(r"^(net\.ipv4\.\w+) = (.*)$", text, re.MULTILINE):
            if "congestion" not in name:
                values[name.replace(".", "_", 2)] = value
    for node in nodes:
        node.sysctl(**values)


def control(options: argparse.Namespace) -> list[str]:
    return ["--congestion-control", options.daemons_control]


def emulated(network: networks.Network, options: argparse.Namespace, seed: int):
    trainer, engine = network.nodes("trainer", "engine")
    if options.mbit and not options.rtt_ms and not options.loss:
        network.veth(trainer, engine, "10.1.0", bits_per_s=options.mbit * 1_000_000)
        tune([trainer, engine], options)
        return trainer, engine, None
    shape = {"seed": seed, "loss": options.loss}
    if options.mbit:
        shape |= {"rate": options.mbit * 1_000_000, "delay_ms": options.rtt_ms / 2}
    link = network.emulate(trainer, engine, "10.1.0", **shape)
    tune([trainer, engine], options)
    if options.initcwnd:
        for node in (trainer, engine):
            node.ip("route", "change", "10.1.0.0/24", "dev", link.device, "src", node.address,
                    "initcwnd", str(options.initcwnd), "initrwnd", str(options.initcwnd))  # fmt: skip
    return trainer, engine, link


def lag(link: networks.EmulatedLink) -> dict:
    """What tells whether the emulator was the limit."""
    if link is None:
        return {}
    whole = link.report()
    report = whole["a_to_b"]
    busy = whole["cpu_seconds"] / (8 * (report["bytes_in"] + whole["b_to_a"]["bytes_in"]) / 1e9)
    return {"emulator_cpu_s_per_gbit": busy, "emulator_most_late_ms": report["most_late_ms"],
            "queue_full": report["queue_full"]}  # fmt: skip


def ceiling(network: networks.Network, options: argparse.Namespace, seed: int) -> dict:
    options.mbit, options.loss = 0, 0
    trainer, engine, link = emulated(network, options, seed)
    meter = Meter(link)
    total = 2_000_000_000
    seconds = bare(trainer, engine, options.streams or 4, total)
    return {"gbit_per_s": 8 * total / seconds / 1e9, "middle": meter.rate(total) / 1e9, **lag(link)}


def share(network: networks.Network, options: argparse.Namespace, seed: int) -> dict:
    """A full pull over a link that is not known yet, one over the same link once it was measured,
    and bare TCP with as many streams."""
    trainer, engine, link = emulated(network, options, seed)
    total = options.megabytes * 1_000_000
    rate = options.mbit * 1e6
    versions = Versions(network.root, seed, total)
    sender = trainer.start_sender(*control(options))
    trainer.publish(versions.next(), 1)
    result = {}
    for run in ("first", "second"):
        meter = Meter(link)
        if run == "first":
            engine.start_receiver("--sender", sender, "--streams", options.streams,
                                  *control(options))  # fmt: skip
            engine.await_version(1, 600)
        else:
            engine.tool("sync", "--full", "--receiver", engine.control, "--timeout", 600)
        pull = engine.status()["last_pull"]
        result |= {f"{run}_share": meter.rate(total) / rate, f"{run}_streams": pull["streams"],
                   f"{run}_transfer_seconds": pull["transfer_seconds"]}  # fmt: skip
        assert versions.of(engine.content()) == 1
    result |= {"round_trip_seconds": pull["round_trip_seconds"],
               "best_share": 8 * pull["best_bytes_per_s"] / rate}  # fmt: skip
    for node in (trainer, engine):
        node.congestion_control(options.bare_control)
    meter = Meter(link)
    seconds = bare(trainer, engine, pull["streams"], total)
    result |= {"bare_share": meter.rate(total) / rate, "bare_seconds": seconds}
    return {**result, **lag(link)}


def committed_at(node: networks.Node, version: int) -> float:
    """Seconds since 1970, to the millisecond, by the receiver's log."""
    line = re.compile(rf"^(\S+) .* version {version}\b.* committed: ", re.MULTILINE)
    find = lambda: line.search((node.data / "deltawire-receiver.log").read_text("utf-8"))
    found = networks.until(find, f"version {version} is committed")
    return datetime.datetime.fromisoformat(found[1]).timestamp()


def delta(network: networks.Network, options: argparse.Namespace, seed: int) -> dict:
    trainer, engine, link = emulated(network, options, seed)
    versions = Versions(network.root, seed, options.megabytes * 1_000_000)
    sender = trainer.start_sender(*control(options))
    trainer.publish(versions.next(), 1)
    engine.start_receiver("--sender", sender, "--streams", options.streams, *control(options))
    engine.await_version(1, 600)
    found = []
    for _ in range(5):
        published = trainer.publish(versions.next(options.changed, options.small), versions.newest)
        committed = committed_at(engine, versions.newest)
        pull = engine.status()["last_pull"]
        seconds = committed - int(published["ready_unix_nanos"]) / 1e9
        ideal = 8 * pull["payload_bytes"] / (options.mbit * 1e6)
        found.append({
            "ready_to_committed": seconds, "payload_bytes": pull["payload_bytes"],
            "payload_over_rate": ideal, "times": seconds / ideal, "pull": pull["seconds"],
            "publish": published["publish_seconds"], "streams": pull["streams"],
            "ahead_bytes": pull["ahead_bytes"], "deltas": pull["chunks_delta"],
            "tight": pull["chunks_tight"],
        })  # fmt: skip
        assert versions.of(engine.content()) == versions.newest
    found.sort(key=lambda one: one["times"])
    return {**found[len(found) // 2], "worst_times": found[-1]["times"], **lag(link)}


def uplink(network: networks.Network, options: argparse.Namespace, seed: int) -> dict:
    """One receiver, and then as many at once, of which the first is the others' relay."""
    trainer = network.node("trainer")
    nodes = network.nodes(*(f"node{i}" for i in range(8)))
    router = network.site("router", "10.2.0", nodes)
    device = network.veth(trainer, router, "10.1.0", bits_per_s=options.mbit * 1_000_000)
    trainer.ip("route", "add", "10.2.0.0/24", "via", "10.1.0.2")
    tune([trainer, *nodes], options)
    versions = Versions(network.root, seed, options.megabytes * 1_000_000)
    sender = trainer.start_sender()
    trainer.publish(versions.next(), 1)
    result = {}
    for number in (1, 8):
        crossed, began = router.counters(device)["rx"]["bytes"], time.time()
        relay = nodes[0].start_receiver("--sender", sender, "--buffers", "1", serve=True)
        for leaf in nodes[1:number]:
            leaf.start_receiver("--sender", f"{relay},{sender}", "--buffers", "1")
        ended = max(committed_at(node, 1) for node in nodes[:number])
        crossed = router.counters(device)["rx"]["bytes"] - crossed
        result |= {f"seconds_{number}": ended - began,
                   f"models_crossed_{number}": crossed / versions.model_bytes}  # fmt: skip
        for node in nodes[:number]:
            assert versions.of(node.content()) == 1
        if number == 1:
            networks.end(nodes[0].receiver)
            nodes[0].forget()
            (nodes[0].data / "deltawire-receiver.log").unlink()
    return {**result, "times": result["seconds_8"] / result["seconds_1"],
            "bytes_times": result["models_crossed_8"] / result["models_crossed_1"]}  # fmt: skip


CASES = {"ceiling": ceiling, "share": share, "delta": delta, "uplink": uplink}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", default="reno", help="the nodes' congestion control")
    parser.add_argument("--daemons-control", default="auto", help="--congestion-control of daemons")
    parser.add_argument("--bare-control", default="bbr", help="the nodes' while bare TCP runs")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--initcwnd", type=int, default=0, help="of the route; 0: the kernel's 10")
    parser.add_argument("--streams", type=int, default=0, help="of a pull; 0: as the daemons choose")
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--rtt-ms", type=float, default=200)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--changed", type=float, default=0.01)
    parser.add_argument("--small", action="store_true",
                        help="change small values more often, as an optimizer does")  # fmt: skip
    options = parser.parse_args()
    if options.case in ("share", "delta") and options.mbit <= 0:
        parser.error(f"{options.case} compares with the link's rate: --mbit has to be above 0")
    if options.case == "share" and not options.rtt_ms and not options.loss:
        parser.error("share counts what passes the emulator, and a link without delay and loss has "
                     "none: give it --rtt-ms or --loss")  # fmt: skip
    return options


def main() -> None:
    if sys.argv[1:2] == ["send"]:
        return send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[1:2] == ["receive"]:
        return receive(sys.argv[2], int(sys.argv[3]))
    options = parse()
    networks.enter()
    given = {k: v for k, v in vars(options).items() if k not in ("runs", "seed")}
    print(json.dumps({**given, "load": os.getloadavg()[0]}), flush=True)
    for seed in range(options.seed, options.seed + options.runs):
        with tempfile.TemporaryDirectory(prefix="deltawire-figures-", dir="/dev/shm") as folder:
            with networks.Network(pathlib.Path(folder)) as network:
                found = CASES[options.case](network, options, seed)
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}
        print(json.dumps({"seed": seed, **rounded}), flush=True)
    return None


if __name__ == "__main__":
    main()
