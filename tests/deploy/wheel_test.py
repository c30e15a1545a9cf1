"""The wheel: made of the build's Python package and programs, installed where nothing else is, and used.

    wheel_test.py MAKER BUILD CASE...      MAKER: a Python with deploy/wheel/requirements.txt

In the place of BUILD a wheel may be named, which is tested as it is. The processes of the trainer and
the engine have only the wheel; their daemons are the build's own. The demo has only the wheel.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1] / "support")]

import skipping  # noqa: E402
from daemons import Daemons  # noqa: E402

TORCH_PYTHON = os.environ.get("DELTAWIRE_TRAINER_PYTHON", "")
MAKER, BUILD = sys.argv[1:3]
BINDING = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: \w+ symbol `(\S+?)'")
SYSTEM = re.compile(r"(ld-linux|libc|libm|libdl|libgcc_s|libstdc\+\+|libz|libpython|python)[.\d-]")
# Of the C++ standard library, whose names and layouts do not change; torch has copies of some.
STANDARD = re.compile(r"_Z(T[ISTV])?(N[KRVO]*)?S[ts]")
# Runs a script of tests/python with torch loaded before it.
FIRST_TORCH = """
import os, runpy, sys
import torch
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PROGRAMS = ("deltawire", "deltawire-sender", "deltawire-receiver")
HASHED = re.compile(r"-[0-9a-f]{8}\.so.*")


def run(*command: object, **environment: str) -> str:
    """Without this build's packages in the way; `environment` is added."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_"))}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                          env={**inherited, **environment}, cwd="/")  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shm = pathlib.Path("/dev/shm")
        cls.root = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="deltawire-wheel-", dir=shm if shm.is_dir() else None)
        ))  # fmt: skip
        cls.wheel = pathlib.Path(BUILD)
        if not cls.wheel.is_file():
            print(run(MAKER, "-B", ROOT / "deploy" / "wheel" / "make.py", BUILD, cls.root / "out"))
            (cls.wheel,) = (cls.root / "out").glob("*.whl")

    def follow(self, python: object, *extra: str, within: tuple = (), **environment: str) -> str:
        """Runs wheel_inside.py in `python` against a sender and a receiver of its own."""
        with tempfile.TemporaryDirectory(prefix="pair-", dir=self.root) as name:
            root = pathlib.Path(name)
            with Daemons(root) as daemons:
                control = daemons.start_sender(root / "s")
                daemons.start_receiver([control], "m", root / "r")
                return run(*within, python, "-B", HERE.parent / "wheel_inside.py", root / "s",
                           root / "r", *extra, **environment)  # fmt: skip


class Alone(WheelTest):
    """A virtual environment that has nothing else, outside of the tree."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.venv = cls.root / "venv"
        run(sys.executable, "-m", "venv", cls.venv)
        run(cls.venv / "bin" / "pip", "install", "--no-deps", "--no-index", "-q",
            "--disable-pip-version-check", cls.wheel)  # fmt: skip

    def test_the_tag_is_one_that_pip_takes_on_other_distributions(self):
        self.assertRegex(self.wheel.name, r"^deltawire-[0-9.]+-cp(\d+)-cp\1-manylinux_2_\d+_x86_64\.whl$")

    def test_it_brings_its_libraries_their_licenses_and_its_extras(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        for library in ("libgrpc++", "libprotobuf", "libgloo"):
            self.assertTrue(any(n.startswith(f"deltawire.libs/{library}-") for n in names), library)
            licenses = re.compile(rf"/licenses/{re.escape(library)}[0-9.]+\.copyright$")
            self.assertTrue(any(licenses.search(n) for n in names), library)
        for name in ("licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"):
            self.assertTrue(any(n.endswith(f".dist-info/{name}") for n in names), name)
        for extra in ("vllm", "sglang"):
            self.assertRegex(metadata, rf'(?m)^Requires-Dist: {extra} *>=.*; extra == "{extra}"$')
        self.assertFalse([n for n in names if "pycache" in n or n.endswith(".pyc")])

    def test_it_moves_versions_without_torch(self):
        self.assertIn("ok: ", self.follow(self.venv / "bin" / "python3"))

    def test_it_holds_the_programs(self):
        version = self.wheel.name.split("-")[1]
        for name in PROGRAMS:
            self.assertEqual(run(self.venv / "bin" / name, "--version").split()[-1], version)
            (program,) = self.venv.rglob(f"deltawire/bin/{name}")
            others = re.findall(r"^\s*(\S+) => (?!.*/deltawire\.libs/)", run("ldd", program), re.MULTILINE)
            self.assertEqual([o for o in others if not SYSTEM.match(o)], [])

    def test_its_demo_says_how_to_run_the_second_reader(self):
        said = self.demo()
        self.assertIn("6 versions verified bit for bit", said)
        self.assertRegex(said, rf"Second reader: not run, since {self.venv}/bin/python\S* has no safetensors; ")

    def demo(self, within: tuple = (), **environment: str) -> str:
        return run(*within, "env", "-u", "DELTAWIRE_PYTHON", self.venv / "bin" / "deltawire", "demo",
                   "--size", "tiny", **environment)  # fmt: skip

    def test_it_directs_daemons(self):
        """Also over TLS, by the gRPC and OpenSSL that it brings."""
        run(self.venv / "bin" / "python3", "-B", ROOT / "tests" / "python" / "control_test.py",
            "PlainTest", "TlsTest")  # fmt: skip

    def test_it_moves_versions_where_the_system_has_none_of_its_libraries(self):
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            self.skipTest("hiding the system's libraries wants root and a mount namespace")
        with zipfile.ZipFile(self.wheel) as wheel:
            bundled = [pathlib.Path(n).name for n in wheel.namelist() if "deltawire.libs/" in n]
        folder = pathlib.Path("/usr/lib/x86_64-linux-gnu")
        stems = {HASHED.sub(".so", name) for name in bundled}
        hidden = sorted(p for s in stems for p in folder.glob(f"{s}*") if not p.is_symlink())
        self.assertGreater(len(hidden), 10)
        script = 'for f in $HIDDEN; do mount --bind /dev/null "$f" || exit 1; done; exec "$@"'
        within = ("unshare", "-m", "sh", "-c", script, "sh")
        names = " ".join(map(str, hidden))
        self.assertIn("ok: ", self.follow(self.venv / "bin" / "python3", within=within, HIDDEN=names))
        self.assertIn("6 versions verified", self.demo(within=within, HIDDEN=names))


@unittest.skipUnless(TORCH_PYTHON, "DELTAWIRE_TRAINER_PYTHON names no Python with torch")
class BesideTorch(WheelTest):
    """In a process that has torch, whose Gloo is another one; in the loader's global scope, too."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.target = cls.root / "target"
        run(TORCH_PYTHON, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", cls.target,
            "--disable-pip-version-check", cls.wheel)  # fmt: skip

    def beside(self, order: str, **environment: str) -> str:
        return self.follow(TORCH_PYTHON, order, PYTHONPATH=str(self.target), **environment)

    def test_torch_first_and_torch_last(self):
        for order in ("first", "last"):
            with self.subTest(order):
                self.assertIn("ok: ", self.beside(order))

    def test_no_symbol_goes_from_ours_to_others_or_back(self):
        """With torch's symbols in the global scope, which the loader searches first."""
        log = self.root / "bindings"
        said = self.beside("first", TORCH_USE_RTLD_GLOBAL="1", LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(log))
        self.assertIn("ok: ", said)
        inside, crossed, ours = 0, set(), str(self.target)
        for path in self.root.glob("bindings.*"):
            for line in path.read_text(errors="replace").splitlines():
                if ours not in line or not (found := BINDING.search(line)):
                    continue
                user, owner, symbol = found.groups()
                if user.startswith(ours) and owner.startswith(ours):
                    inside += 1
                elif SYSTEM.match(pathlib.Path(owner).name) or STANDARD.match(symbol):
                    continue
                else:
                    crossed.add((pathlib.Path(user).name, pathlib.Path(owner).name, symbol))
        self.assertGreater(inside, 1000)
        self.assertFalse(crossed, sorted(crossed)[:20])

    def test_gloos_gather_and_the_engine_client_work_beside_torchs_gloo(self):
        tests = ROOT / "tests" / "python"
        for script, *cases in (("megatron_sources_test.py", "SourcesTest.test_a_gather_reads_by_buckets"),
                               ("torch_test.py",), ("engine_test.py",)):  # fmt: skip
            with self.subTest(script):
                run(TORCH_PYTHON, "-B", "-c", FIRST_TORCH, tests / script, *cases, TORCH_USE_RTLD_GLOBAL="1",
                    PYTHONPATH=str(self.target))  # fmt: skip


if __name__ == "__main__":
    if subprocess.run([MAKER, "-c", "import auditwheel, wheel"], capture_output=True).returncode:
        skipping.leave(f"{MAKER} has no auditwheel (deploy/wheel/requirements.txt)")
    skipping.main(sys.argv[3:])
