"""The systemd units: what systemd says of them, and that the daemons live within their sandbox.

No systemd runs as process 1 here, so no unit is started. The sandbox's filter of system calls is
compared with every call that the daemons make in a sync, as strace counts them; its user, its
directories and its exposure are what systemd's own tools make of the files.
"""

from __future__ import annotations

import grp
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
UNITS = HERE.parents[2] / "deploy" / "systemd"
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import DEADLINE_S, Daemons, programs  # noqa: E402

SERVICES = sorted(UNITS.glob("*.service"))
EXAMPLE_SERVICES = sorted(UNITS.glob("*.service.example"))
FILE_GROUP = UNITS / "file-group.conf.example"
SINCE = {"restart-backoff.conf.example": 254}  # systemd's version that has all their keys
MOST_EXPOSED = 1.5
MOST_EXPOSED_WITH_A_GROUP = 1.7


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise unittest.SkipTest(f"no {name} on this machine")
    return found


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command} failed: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def setting(key: str, *files: pathlib.Path) -> list[str]:
    """Of a unit and its drop-ins, in the order in which systemd reads them."""
    text = "".join(file.read_text() for file in files)
    return re.findall(rf"^{key}=(.*)$", text, flags=re.MULTILINE)


def commands_there(file: pathlib.Path) -> str:
    """Its text; commands that an operator adds need not be on this machine."""
    return re.sub(r"/usr/bin/\S+", "/bin/true", file.read_text())


def exposure(unit: pathlib.Path) -> float:
    said = run(tool("systemd-analyze"), "security", "--offline=true", unit)
    return float(re.search(r"exposure level for .*: ([0-9.]+)", said).group(1))


def calls_of(name: str) -> set[str]:
    """The system calls of a set like @system-service."""
    calls: set[str] = set()
    for line in run(tool("systemd-analyze"), "syscall-filter", name).splitlines()[1:]:
        item = line.strip()
        if item.startswith("@"):
            calls |= calls_of(item)
        elif item and not item.startswith("#"):
            calls.add(item)
    return calls


def allowed(*files: pathlib.Path) -> set[str]:
    calls: set[str] = set()
    for line in setting("SystemCallFilter", *files):
        for item in line.lstrip("~").split():
            named = calls_of(item) if item.startswith("@") else {item}
            calls = calls - named if line.startswith("~") else calls | named
    return calls


class Units(unittest.TestCase):
    def test_there_is_one_of_each_daemon_and_a_template(self):
        self.assertEqual(
            [s.name for s in SERVICES],
            ["deltawire-receiver.service", "deltawire-receiver@.service",
             "deltawire-sender.service", "deltawire-sender@.service"])

    def test_systemd_finds_nothing_wrong_with_them(self):
        analyze = tool("systemd-analyze")
        with tempfile.TemporaryDirectory() as folder:
            for service in SERVICES:
                name = service.name.replace("@", "@a")
                text = service.read_text().replace("/usr/bin/", f"{programs()}/")
                (pathlib.Path(folder) / name).write_text(text)
                said = run(analyze, "verify", "--man=no", f"{folder}/{name}")
                # Units of this machine, which are none of ours, may be complained of as well.
                self.assertEqual([line for line in said.splitlines() if name in line], [])

    def test_systemd_finds_nothing_wrong_with_a_service_and_each_drop_in(self):
        analyze = tool("systemd-analyze")
        version = int(re.search(r"systemd (\d+)", run(analyze, "--version")).group(1))
        for drop_in in sorted(UNITS.glob("*.conf.example")):
            if "[Service]" not in drop_in.read_text():
                continue  # sysctl's
            for service in (s for s in SERVICES if "@" not in s.name):
                with tempfile.TemporaryDirectory() as folder:
                    unit = pathlib.Path(folder) / service.name
                    unit.write_text(service.read_text().replace("/usr/bin/", f"{programs()}/"))
                    added = pathlib.Path(folder) / f"{service.name}.d" / "added.conf"
                    added.parent.mkdir()
                    added.write_text(commands_there(drop_in))
                    said = run(analyze, "verify", "--man=no", unit)
                    ours = [line for line in said.splitlines() if folder in line]
                    unknown = [re.search(r"Unknown key (?:name )?'(\w+)'", line) for line in ours]
                    if version < SINCE.get(drop_in.name, 0):
                        # The drop-in says so; all else in it has to be right here, too.
                        self.assertNotIn(None, unknown, ours)
                        keys = set(re.findall(r"(?m)^(\w+)=", drop_in.read_text()))
                        self.assertEqual({key[1] for key in unknown}, keys)
                    else:
                        self.assertEqual(ours, [], drop_in.name)

    def test_what_a_drop_in_wants_is_an_example_beside_it_that_systemd_takes(self):
        analyze = tool("systemd-analyze")
        wanted = setting("Wants", *sorted(UNITS.glob("*.conf.example")))
        self.assertEqual([f"{name}.example" for name in wanted], [e.name for e in EXAMPLE_SERVICES])
        for example in EXAMPLE_SERVICES:
            with tempfile.TemporaryDirectory() as folder:
                unit = pathlib.Path(folder) / example.name.removesuffix(".example")
                unit.write_text(commands_there(example))
                said = run(analyze, "verify", "--man=no", unit)
                self.assertEqual([line for line in said.splitlines() if unit.name in line], [])

    def test_little_of_the_system_is_exposed(self):
        for service in SERVICES:
            self.assertLessEqual(exposure(service), MOST_EXPOSED, service.name)
            with tempfile.TemporaryDirectory() as folder:
                unit = pathlib.Path(folder) / service.name
                unit.write_text(service.read_text() + FILE_GROUP.read_text())
                self.assertLessEqual(exposure(unit), MOST_EXPOSED_WITH_A_GROUP, service.name)

    def test_a_template_is_its_service_but_for_the_instance(self):
        for plain in ("deltawire-sender", "deltawire-receiver"):
            lines = [
                [line for line in (UNITS / name).read_text().splitlines()
                 if line and not line.startswith("#")]
                for name in (f"{plain}.service", f"{plain}@.service")
            ]
            others = {"Description", "ConditionPathExists", "ExecStart", "User", "Group",
                      "SupplementaryGroups"}  # fmt: skip
            kept = [[t for t in text if t.partition("=")[0] not in others] for text in lines]
            self.assertEqual(kept[0], kept[1])
            self.assertIn("%i", "".join(lines[1]))

    def test_the_user_and_the_directories_are_made(self):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "etc").mkdir()
            run(tool("systemd-sysusers"), f"--root={root}", UNITS / "deltawire.sysusers.conf")
            users = pathlib.Path(root, "etc/passwd").read_text()
            self.assertRegex(users, r"(?m)^deltawire:")
            run(tool("systemd-tmpfiles"), f"--root={root}", "--create",
                UNITS / "deltawire.tmpfiles.conf")
            for wanted, mode in (("dev/shm/deltawire", 0o755), ("etc/deltawire", 0o750)):
                self.assertEqual(pathlib.Path(root, wanted).stat().st_mode & 0o777, mode)

    def test_each_unit_may_read_its_configuration(self):
        if os.geteuid() != 0:
            self.skipTest("only root takes other users' places")
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            root.chmod(0o755)
            (root / "etc").mkdir()
            (root / "etc" / "passwd").write_text("alice:x:12345:12345::/:/bin/sh\n")
            run(tool("systemd-sysusers"), f"--root={root}", UNITS / "deltawire.sysusers.conf")
            run(tool("systemd-tmpfiles"), f"--root={root}", "--create",
                UNITS / "deltawire.tmpfiles.conf")
            rows = [r.split(":") for r in (root / "etc/passwd").read_text().splitlines()]
            users = {r[0]: (int(r[2]), int(r[3])) for r in rows}
            for service in SERVICES:
                (user,) = setting("User", service)
                uid, gid = users[user.replace("%i", "alice")]
                groups = [users[group][1] for group in setting("SupplementaryGroups", service)]
                path = root / "etc" / "deltawire" / "read.toml"
                path.write_text("")
                done = subprocess.run(["cat", path], user=uid, group=gid, extra_groups=groups,
                                      capture_output=True, text=True, check=False)  # fmt: skip
                self.assertEqual(done.stderr, "", service.name)


class Sandbox(unittest.TestCase):
    def test_every_system_call_of_a_sync_is_allowed(self):
        made = self.calls_of_a_sync()
        for name, calls in made.items():
            self.assertGreater(len(calls), 40, name)
            self.assertEqual(calls - allowed(UNITS / f"{name}.service"), set(), name)

    def test_a_sync_with_a_file_group_needs_the_drop_in(self):
        mine = grp.getgrgid(os.getgid()).gr_name
        made = self.calls_of_a_sync("--file-group", mine)
        for name, calls in made.items():
            unit = UNITS / f"{name}.service"
            self.assertEqual(calls - allowed(unit, FILE_GROUP), set(), name)
            self.assertTrue({"chown", "fchown"} & (calls - allowed(unit)), name)
            # The kernel's filter refuses a mode with the set-group-id bit wherever this is "yes".
            self.assertEqual(setting("RestrictSUIDSGID", unit, FILE_GROUP)[-1], "no", name)

    def calls_of_a_sync(self, *options: str) -> dict[str, set[str]]:
        strace = tool("strace")
        names = ("deltawire-sender", "deltawire-receiver")
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="deltawire-units-") as folder:
            root = pathlib.Path(folder)
            traced = root / "bin"
            traced.mkdir()
            (traced / "deltawire").symlink_to(programs() / "deltawire")
            for name in names:
                script = traced / name
                script.write_text(
                    f'#!/bin/sh\nexec {strace} -f -qq -c -S name -U name -o {root}/{name}.calls '
                    f'{programs()}/{name} "$@"\n')
                script.chmod(0o755)
            with Daemons(root, traced) as daemons:
                sender = daemons.start_sender(root / "s", *options)
                receiver = daemons.start_receiver([sender], "m", root / "r", *options)
                for version in (1, 2):
                    write_model(root / "checkpoint", version)
                    run(programs() / "deltawire", "publish", root / "checkpoint", "--model", "m",
                        "--version", version, "--socket", root / "s" / "trainer.sock")
                    receiver.await_version(version)
                for pid in daemons.pids():
                    stop_traced(pid)
                daemons.wait()
            for model in (root / "s" / "m", root / "r"):
                self.assertEqual(bool(model.stat().st_mode & stat.S_ISGID), bool(options), model)
            # The weights and what changes them, for engines.
            (delta,) = (root / "r" / ".deltawire.deltas").iterdir()
            for path in (root / "r" / "model.safetensors", delta):
                self.assertEqual(path.stat().st_mode & 0o777, 0o640 if options else 0o600, path)
            return {name: counted(root / f"{name}.calls") for name in names}


def counted(path: pathlib.Path) -> set[str]:
    """The names in strace's table, which stand between two rules."""
    return set(re.split(r"(?m)^-+$", path.read_text())[1].split())


def write_model(folder: pathlib.Path, version: int) -> None:
    """A HF model of two tensors; from one version to the next, every hundredth byte changes."""
    sizes = {"a": 3_000_000, "b": 10}
    header, at, data = {}, 0, bytearray()
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
        data += bytes((version if i % 100 == 0 else i * 7) % 256 for i in range(size))
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    whole = struct.pack("<Q", len(text)) + text + data
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text("{}")


def stop_traced(strace: int) -> None:
    """SIGTERM to the daemon that strace runs; strace ends after it, and writes its count."""
    path = pathlib.Path(f"/proc/{strace}/task/{strace}/children")
    end = time.monotonic() + DEADLINE_S
    while not path.read_text().split():
        if time.monotonic() > end:
            raise RuntimeError("strace has started nothing")
    os.kill(int(path.read_text().split()[0]), signal.SIGTERM)


if __name__ == "__main__":
    skipping.main()
