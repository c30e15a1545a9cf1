"""deploy/slurm/deltawire.sbatch with real daemons: slurm_test.py StandIn|Slurm

StandIn runs it with a stand-in for srun (slurm_stand_in.py), on two "nodes" that are this machine.
Slurm runs it by sbatch, with a munged, a slurmctld and three slurmd of its own on loopback; each
slurmd has a /dev/shm of its own, so nodes share no memory.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
SCRIPT = HERE.parents[2] / "deploy" / "slurm" / "deltawire.sbatch"
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import DEADLINE_S, end, free_port, programs, spawn  # noqa: E402

# Publishes two versions, and ends when each engine has said what it loaded.
TRAIN = """
set -eu
for version in 1 2; do
  deltawire publish {folder}/checkpoint-$version --model policy --version $version \\
    --socket "$WEIGHTS/trainer.sock"
done
for _ in $(seq 600); do
  [ "$(ls {folder}/served | wc -l)" != {engines} ] || exit 0
  sleep 0.1
done
exit 9
"""
SERVE = """
deltawire wait --receiver "$SLURMD_NODENAME:{port}" --model policy --version 2 --timeout 60 >/dev/null
cp "$WEIGHTS/model.safetensors" {folder}/served/$SLURMD_NODENAME
exec sleep infinity
"""


def checkpoint(folder: pathlib.Path, fill: int) -> bytes:
    header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    folder.mkdir()
    folder.chmod(0o755)
    whole = bytes([fill]) * 64
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + whole)
    return whole


def await_true(condition, what: str):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what())
        time.sleep(0.05)


class Job(unittest.TestCase):
    """What both kinds of runs have in common."""

    def prepare(self, engines: int) -> None:
        folder = tempfile.TemporaryDirectory(prefix="deltawire-slurm-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)
        (self.folder / "served").mkdir()
        self.newest = [checkpoint(self.folder / f"checkpoint-{v}", v) for v in (1, 2)][-1]
        ports = {name: str(free_port()) for name in ("SENDER", "BULK", "RECEIVER")}
        self.environment = {
            **os.environ, **{f"{name}_PORT": port for name, port in ports.items()},
            "PATH": f"{programs()}:{os.environ['PATH']}", "LISTEN": "", "READY_S": "60",
            "TRAIN": TRAIN.format(folder=self.folder, engines=engines),
            "SERVE": SERVE.format(folder=self.folder, port=ports["RECEIVER"]),
        }  # fmt: skip

    def check_served(self, engines: set[str]) -> None:
        served = {p.name: p.read_bytes() for p in (self.folder / "served").iterdir()}
        self.assertEqual(set(served), engines)
        for content in served.values():
            self.assertTrue(content.endswith(self.newest))

    def check_order(self, said: str, stopped: list[str]) -> None:
        self.assertEqual(re.findall(r"(?m)^\S+ (\w+): stopped$", said), stopped, said)
        for part in ("sender", "receiver"):
            self.assertIn(f"{part} on ", said)
            # It ended by itself, and was not killed.
            self.assertIn(f"deltawire-{part}: SIGTERM: stopping", said)


class StandIn(Job):
    NODES = ("127.0.0.1", "127.0.0.2")

    def setUp(self):
        self.prepare(engines=1)
        tools = self.folder / "bin"
        tools.mkdir()
        (self.folder / "steps").mkdir()
        for name in ("srun", "scontrol", "squeue", "scancel"):
            (tools / name).symlink_to(HERE.parent / "slurm_stand_in.py")
        self.job = f"test-{os.getpid()}"
        self.environment.update(
            SLURM_STAND_IN=str(self.folder / "steps"), SLURM_JOB_ID=self.job,
            SLURM_JOB_NODELIST=",".join(self.NODES), PATH=f"{tools}:{self.environment['PATH']}",
        )  # fmt: skip
        self.log = self.folder / "log"

    def start(self) -> subprocess.Popen:
        with open(self.log, "w") as log:
            job = spawn(
                ["bash", str(SCRIPT)], env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def said(self) -> str:
        return self.log.read_text()

    def check_nothing_is_left(self) -> None:
        root = f"/dev/shm/deltawire-{self.job}"
        self.assertFalse(os.path.exists(root))
        for process in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                self.assertNotIn(f"SLURM_JOB_ID={self.job}\0".encode(), process.read_bytes())
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # gone, or somebody else's

    def test_the_job_ends_with_its_trainer(self):
        self.assertEqual(self.start().wait(DEADLINE_S), 0, self.said())
        self.check_served({self.NODES[1]})
        self.check_order(self.said(), ["engines", "receivers", "senders"])
        self.check_nothing_is_left()

    def test_with_keys_the_daemons_speak_tls(self):
        tool = programs() / "deltawire"
        keys = self.folder / "keys"
        made = subprocess.run(
            [tool, "certs", keys, self.NODES[0], f"{self.NODES[1]}:receiver={self.NODES[1]}",
             "job:observer", "--token"], capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "certs" not in subprocess.run([tool, "--help"], capture_output=True, text=True).stdout:
            self.skipTest("this deltawire makes no certificates; not run with KEYS")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.environment["KEYS"] = str(keys)
        self.environment["LISTEN"] = "0.0.0.0"  # which daemons without access control refuse
        self.assertEqual(self.start().wait(DEADLINE_S), 0, self.said())
        self.assertNotIn("plaintext", self.said())
        self.check_served({self.NODES[1]})
        self.check_nothing_is_left()

    def test_a_trainer_that_fails_fails_the_job(self):
        self.environment["TRAIN"] = "exit 7"
        self.assertEqual(self.start().wait(DEADLINE_S), 1, self.said())
        self.assertIn("trainer: ended with 7", self.said())
        self.check_order(self.said(), ["receivers", "senders"])
        self.check_nothing_is_left()

    def test_an_engine_that_ends_fails_the_job(self):
        self.environment["SERVE"] = "exit 5"
        self.assertEqual(self.start().wait(DEADLINE_S), 1, self.said())
        self.assertIn("engines: ended with 5", self.said())
        self.check_order(self.said(), ["trainer", "receivers", "senders"])
        self.check_nothing_is_left()

    def test_a_daemon_that_cannot_start_fails_the_job(self):
        self.environment["MODEL"] = "not/a/name"
        self.assertEqual(self.start().wait(DEADLINE_S), 1, self.said())
        self.assertRegex(self.said(), r"receivers: ended")
        self.check_nothing_is_left()

    def test_sigterm_stops_all_of_it(self):
        self.environment["TRAIN"] = self.environment["TRAIN"].replace("served", "never")
        (self.folder / "never").mkdir()
        job = self.start()
        served = self.folder / "served"
        await_true(lambda: list(served.iterdir()) or job.poll() is not None, self.said)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(DEADLINE_S), 143, self.said())
        self.check_order(self.said(), ["engines", "trainer", "receivers", "senders"])
        self.check_nothing_is_left()


class Slurm(Job):
    """A cluster of three nodes, all of which are this machine."""

    NODES = ("dw1", "dw2", "dw3")

    def setUp(self):
        for tool in ("munged", "slurmctld", "slurmd", "sbatch", "unshare"):
            if shutil.which(tool) is None:
                self.skipTest(f"no {tool} on this machine; not run with Slurm")
        if os.geteuid() != 0:
            self.skipTest("a cluster of one's own wants root; not run with Slurm")
        self.prepare(engines=2)
        self.cluster = self.folder / "cluster"
        self.cluster.mkdir()
        self.cluster.chmod(0o755)
        self.environment["SLURM_CONF"] = str(self.cluster / "slurm.conf")
        self.configure()
        self.run_daemon("munged", "--foreground", "--force", f"--socket={self.cluster}/munge",
                        f"--key-file={self.cluster}/key", f"--pid-file={self.cluster}/munged.pid",
                        f"--log-file={self.cluster}/munged.log",
                        f"--seed-file={self.cluster}/seed")  # fmt: skip
        await_true((self.cluster / "munge").exists, self.logs)
        self.run_daemon("slurmctld", "-D")
        for node in self.NODES:
            # A node's memory is its own.
            self.run_daemon(
                "sh", "-c", f"mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N {node}", name=node
            )
        idle = ("sinfo", "-h", "-N", "-t", "idle", "-o", "%N")
        await_true(lambda: self.ask(*idle).split() == list(self.NODES), self.logs)

    def configure(self) -> None:
        (self.cluster / "key").write_bytes(os.urandom(128))
        (self.cluster / "key").chmod(0o600)
        hosts = "".join(f"127.0.0.{i + 2} {n}\n" for i, n in enumerate(self.NODES))
        name = os.uname().nodename
        (self.cluster / "hosts").write_text(f"127.0.0.1 localhost {name}\n{hosts}")
        nodes = "".join(
            f"NodeName={n} NodeHostname={name} NodeAddr={n} Port={free_port()} CPUs=1\n"
            for n in self.NODES
        )
        (self.cluster / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={free_port()}\n"
            f"SlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={self.cluster}/munge\n"
            f"CredType=cred/munge\nStateSaveLocation={self.cluster}/state\n"
            f"SlurmdSpoolDir={self.cluster}/spool-%n\nSlurmctldPidFile={self.cluster}/ctld.pid\n"
            f"SlurmdPidFile={self.cluster}/%n.pid\nProctrackType=proctrack/linuxproc\n"
            "TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n"
            "SlurmdParameters=config_overrides\nJobCompType=jobcomp/none\nKillWait=10\n"
            f"{nodes}PartitionName=all Nodes={','.join(self.NODES)} Default=YES OverSubscribe=NO\n"
        )

    def inside(self, *command: str) -> list[str]:
        """With the cluster's names, which nobody else sees."""
        hosts = f"mount --bind {self.cluster}/hosts /etc/hosts && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", hosts, "sh", *command]

    def run_daemon(self, *command: str, name: str | None = None) -> None:
        with open(self.cluster / f"{name or command[0]}.out", "w") as log:
            child = spawn(
                self.inside(*command), env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        self.addCleanup(end, child)

    def ask(self, *command: str) -> str:
        return subprocess.run(
            self.inside(*command), env=self.environment, capture_output=True, text=True, check=False
        ).stdout

    def logs(self) -> str:
        return "".join(
            f"\n--- {p.name}\n{p.read_text()}"
            for p in sorted([*self.cluster.glob("*.out"), *self.folder.glob("*.log")])
        )

    def submit(self) -> int:
        """The job's exit status."""
        done = subprocess.run(
            self.inside("sbatch", "--wait", f"--output={self.folder}/job.log", str(SCRIPT)),
            env=self.environment, stdout=subprocess.DEVNULL, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
        return done.returncode

    def test_the_job_ends_with_its_trainer(self):
        self.assertEqual(self.submit(), 0, self.logs())
        said = (self.folder / "job.log").read_text()
        print(f"{self.ask('sinfo', '--version').strip()}:\n{said}", flush=True)
        self.check_served(set(self.NODES[1:]))
        self.check_order(said, ["engines", "receivers", "senders"])

    def test_a_trainer_that_fails_fails_the_job(self):
        self.environment["TRAIN"] = "exit 7"
        self.assertEqual(self.submit(), 1, self.logs())
        said = (self.folder / "job.log").read_text()
        self.assertIn("trainer: ended with 7", said)
        self.check_order(said, ["receivers", "senders"])


if __name__ == "__main__":
    skipping.main()
