"""The images: built by buildah on a base that is made here, and run by runc as a cluster runs them.

No registry is asked. The base is Debian's minimal root from the machine's own mirror instead of
debian:bookworm-slim; the packages are those of `./run package`, or, where it was not run, some made
of the build's programs (stand_in_packages.py). The containers have what deploy/kubernetes gives
them: the image's user, a root that cannot be written, no capabilities, the volume as a kubelet
makes it. Only the network is the machine's own.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import grpc_health  # noqa: E402
import skipping  # noqa: E402
import stand_in_packages  # noqa: E402
from daemons import (  # noqa: E402
    DEADLINE_S, free_port, programs, read_safetensors, run, spawn,
)  # fmt: skip
from packages_check import no_mirror  # noqa: E402

BUILD = ROOT / "deploy" / "containers" / "build.sh"
CONFIGS = ROOT / "deploy" / "kubernetes" / "base"
USER = 10700
ENGINE_USER = 12345  # an engine's image has a user of its own


def missing() -> str | None:
    for name in ("buildah", "runc", "dpkg-shlibdeps"):
        if shutil.which(name) is None:
            return f"no {name} on this machine"
    shm = os.statvfs("/dev/shm")
    if shm.f_bavail * shm.f_frsize < 4 << 30:
        return "less than 4 GiB are free in /dev/shm"
    return no_mirror()


class Container:
    """A daemon's container, by runc."""

    def __init__(self, image: str, root: pathlib.Path, volume: pathlib.Path, *options: str):
        self.name = f"deltawire-test-{os.getpid()}-{image.partition(':')[0].rpartition('-')[2]}"
        self.bundle = root / self.name
        self.bundle.mkdir()
        working = run("buildah", "from", image).strip()
        mounted = run("buildah", "mount", working).strip()
        run("cp", "-a", mounted, self.bundle / "rootfs")
        inspected = json.loads(run("buildah", "inspect", "--type", "image", image))
        self.image = inspected["OCIv1"]["config"]
        run("buildah", "rm", working)
        config = root / "etc"
        config.mkdir(exist_ok=True)
        for path in CONFIGS.glob("*.toml"):
            shutil.copy(path, config)
            (config / path.name).chmod(0o440)
            os.chown(config / path.name, 0, USER)
        run("runc", "spec", cwd=self.bundle)
        spec = json.loads((self.bundle / "config.json").read_text())
        user, group = map(int, self.image["User"].split(":"))
        none = dict.fromkeys(("bounding", "effective", "permitted"), [])
        spec["process"].update(
            terminal=False, user={"uid": user, "gid": group}, env=self.image["Env"],
            args=[*self.image["Entrypoint"], *self.image["Cmd"], *options],
            capabilities=none, noNewPrivileges=True,
        )  # fmt: skip
        spec["root"]["readonly"] = True
        spec["linux"]["namespaces"] = [
            n for n in spec["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")
        ]
        spec["mounts"] += [
            {"destination": "/weights", "source": str(volume), "type": "bind",
             "options": ["rbind", "rw"]},
            {"destination": "/etc/deltawire", "source": str(config), "type": "bind",
             "options": ["rbind", "ro"]},
        ]  # fmt: skip
        (self.bundle / "config.json").write_text(json.dumps(spec))
        self.log = self.bundle / "log"
        with open(self.log, "w") as log:
            self.process = spawn(
                ["runc", "run", "--bundle", str(self.bundle), self.name], stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def execute(self, *command: str) -> str:
        return run("runc", "exec", "--user", f"{USER}:{USER}", self.name, *command)

    def terminate(self) -> int:
        """The exit status after SIGTERM to process 1."""
        run("runc", "kill", self.name, "TERM")
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            subprocess.run(["runc", "kill", self.name, "KILL"], capture_output=True, check=False)
            self.process.wait()
        subprocess.run(["runc", "delete", "--force", self.name], capture_output=True, check=False)


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # In memory: to make and remove roots takes minutes on some disks.
        folder = cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="deltawire-images-", dir="/dev/shm")
        )
        cls.root = pathlib.Path(folder)
        # A store of images of this test's own.
        (cls.root / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/images"\n'
        )
        os.environ["CONTAINERS_STORAGE_CONF"] = str(cls.root / "storage.conf")
        os.environ["TMPDIR"] = folder
        os.environ["BUILDAH_ISOLATION"] = "chroot"  # works in a container, too
        packages = ROOT / "build" / "package" / "packages"
        if not list(packages.glob("*.deb")):
            packages = cls.root / "packages"
            packages.mkdir()
            stand_in_packages.make(programs(), packages)
        print(f"packages of {packages}", flush=True)
        print(run(BUILD, "--own-base", "--packages", packages, "--tag", "test"), flush=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="deltawire-volumes-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.volumes = pathlib.Path(folder.name)
        self.volumes.chmod(0o755)

    def start(self, daemon: str, *options: str) -> tuple[Container, int]:
        volume = self.volumes / daemon
        volume.mkdir()
        os.chown(volume, 0, USER)  # as a kubelet makes an emptyDir with fsGroup
        volume.chmod(0o2777)
        port = free_port()
        container = Container(
            f"localhost/deltawire-{daemon}:test", self.root, volume,
            "--control-listen", f"127.0.0.1:{port}", "--metrics-listen", "", *options,
        )  # fmt: skip
        self.addCleanup(container.close)
        end = time.monotonic() + DEADLINE_S
        while not grpc_health.serving("127.0.0.1", port):
            if container.process.poll() is not None or time.monotonic() > end:
                self.fail(container.log.read_text())
            time.sleep(0.05)
        return container, port

    def test_a_version_travels_between_containers_and_they_end_by_sigterm(self):
        sender, sent = self.start("sender", "--bulk-listen", "127.0.0.1:0")
        receiver, _ = self.start("receiver", "--sender", f"127.0.0.1:{sent}")
        self.publish(sender)
        received = self.volumes / "receiver" / "policy"
        end = time.monotonic() + DEADLINE_S
        while not (received / "model.safetensors").exists():
            self.assertLess(time.monotonic(), end, receiver.log.read_text())
            time.sleep(0.05)
        self.check_engine(received)
        for container in (receiver, sender):
            status = container.execute("cat", "/proc/1/status")
            self.assertRegex(status, rf"(?m)^Uid:\s+{USER}\s")
            self.assertRegex(status, r"(?m)^CapEff:\s+0+$")
            with self.assertRaises(AssertionError):
                container.execute("touch", "/etc/written")
            started = time.monotonic()
            self.assertEqual(container.terminate(), 0, container.log.read_text())
            self.assertLess(time.monotonic() - started, 20)
            self.assertIn("SIGTERM", container.log.read_text())

    def publish(self, sender: Container):
        header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
        model = self.volumes / "sender" / "checkpoint"
        model.mkdir()
        model.chmod(0o755)
        (model / "model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header + bytes(range(64))
        )
        sender.execute(
            "deltawire", "publish", "/weights/checkpoint", "--model", "policy", "--version", "1",
            "--socket", "/weights/trainer.sock",
        )  # fmt: skip

    def check_engine(self, received: pathlib.Path):
        """An engine of another user reads by the group alone, and nobody else does."""
        path = received / "model.safetensors"
        as_user = ["setpriv", "--reuid", str(ENGINE_USER), "--regid", str(ENGINE_USER)]
        copy = self.volumes / "copy"
        with open(copy, "wb") as out:
            subprocess.run([*as_user, "--groups", str(USER), "cat", path], stdout=out, check=True)
        self.assertEqual(read_safetensors(copy)["t"], ("U8", (64,), bytes(range(64))))
        refused = subprocess.run(
            [*as_user, "--clear-groups", "cat", path], capture_output=True, check=False
        )
        self.assertNotEqual(refused.returncode, 0)


if __name__ == "__main__":
    if why := missing():
        skipping.leave(f"{why}; the images were not built, and not run")
    skipping.main()
