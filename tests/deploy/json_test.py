"""What `deltawire ... --json` prints, by a real pair of daemons, against docs/schemas.

Here a schema allows no key that it does not list, and every field that it lists must be printed at
least once, but for those in CONDITIONAL. Needs jsonschema.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
    import referencing
except ImportError:
    jsonschema = None

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "support"))

import json_schemas  # noqa: E402
import skipping  # noqa: E402
from daemons import (  # noqa: E402
    DEADLINE_S, Daemons, Receiver, free_port, programs, spawn, until,
)  # fmt: skip

ELEMENTS = 1 << 16
CONFIGS = ROOT / "tests" / "golden" / "hf_configs"
# Fields that no output here has, with what they take.
CONDITIONAL: dict[str, str] = {}
# The word that a field's description has, by the last part of the $ref that gives its type.
UNITS = {
    "bytes": "byte", "seconds": "second", "unix_nanos": "nanosecond", "count": "number",
    "ratio": "ratio", "version": "version", "epoch": "epoch",
}  # fmt: skip


def once(pairs: list[tuple[str, object]]) -> dict:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
    return dict(pairs)


def parse(text: str) -> object:
    return json.loads(text, object_pairs_hook=once)


def write_model(directory: pathlib.Path, names: list[str], content: bytes) -> pathlib.Path:
    directory.mkdir(parents=True, exist_ok=True)
    size = 2 * ELEMENTS
    header = {
        name: {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    (directory / "config.json").write_text("{}")
    return directory


def flip_last_byte(file: pathlib.Path) -> None:
    """As memory that goes bad: the file's times stay."""
    before = file.stat()
    with file.open("r+b") as f:
        f.seek(-1, os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_END)
        f.write(bytes([byte ^ 0x10]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


class Outputs:
    """Runs the tool and keeps what it prints, by the schema that it is to fit."""

    def __init__(self, root: pathlib.Path):
        self.all: list[tuple[str, str, object]] = []  # schema, command, value
        self._root = root
        self._tool = str(programs() / "deltawire")
        self._streams = 0

    def run(self, schema: str, *args: object, code: int = 0) -> dict:
        command = [str(a) for a in args]
        done = subprocess.run(
            [self._tool, *command, "--json"], capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode != code:
            raise AssertionError(f"{command} ended with {done.returncode}\n{done.stderr}")
        self.keep(schema, command, done.stdout)
        return self.all[-1][2]

    def lines(self, schema: str, *args: object) -> None:
        """The same for a command that prints lines and ends."""
        command = [str(a) for a in args]
        done = subprocess.run(
            [self._tool, *command, "--json"], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        for line in done.stdout.splitlines():
            self.keep(schema, command, line)

    def stream(self, schema: str, *args: object) -> Stream:
        """For a command that goes on until it is stopped."""
        self._streams += 1
        file = self._root / f"stream-{self._streams}.jsonl"
        return Stream(self, schema, [str(a) for a in args], file, self._tool)

    def keep(self, schema: str, command: list[str], text: str) -> None:
        self.all.append((f"{schema}.json", " ".join(command), parse(text)))


class Stream:
    def __init__(self, outputs: Outputs, schema: str, command: list[str], file, tool: str):
        self._outputs, self._schema, self._command, self._file = outputs, schema, command, file
        with file.open("w") as out, file.with_suffix(".log").open("w") as err:
            self._child = spawn([tool, *command, "--json"], stdout=out, stderr=err)

    def wait_for(self, *wanted: str) -> None:
        """Until each of `wanted` has been printed."""

        def printed() -> bool:
            log = self._file.with_suffix(".log")
            assert self._child.poll() is None, f"{self._command} ended: {log.read_text()}"
            return all(w in self._file.read_text() for w in wanted)

        until(printed, f"{self._command} prints {wanted}")

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()
        *whole, _ = self._file.read_text().split("\n")  # the last line may be cut
        for line in whole:
            self._outputs.keep(self._schema, self._command, line)


class Pair:
    """A sender, a receiver without engines and one with, and every command that talks to them."""

    def __init__(self, root: pathlib.Path, daemons: Daemons, out: Outputs):
        self.root, self.daemons, self.out = root, daemons, out
        self.nowhere = f"127.0.0.1:{free_port()}"
        draw = random.Random(1)
        first = bytearray(draw.randbytes(4 * ELEMENTS))
        self.one = write_model(root / "steps" / "step-1", ["a", "b"], bytes(first))
        for i in range(0, len(first), 512):
            first[i] ^= 1
        self.two = write_model(root / "steps" / "step-2", ["a", "b"], bytes(first))
        self.other = write_model(root / "other", ["a", "c"], bytes(first))

    def status(self, *options: object, sender: str = "", receiver: str = "", code: int = 0) -> dict:
        return self.out.run("status", "status", "--sender", sender or self.nowhere, "--receiver",
                            receiver or self.nowhere, *options, code=code)  # fmt: skip

    def play(self) -> None:
        self.status(code=3)
        # A group of one that never comes, so that there is one to be shown.
        self.sender = self.daemons.start_sender(self.root / "s", "--group", "away=nobody")
        self.status(sender=self.sender, code=3)  # it has no model, and there is no receiver
        self.plain = self.start("plain")
        self.engine = self.start(
            "engine", "--engine", "exec=/bin/true", "--buffers", "1", "--scrub-bytes-per-s", "0"
        )
        for receiver in (self.plain, self.engine):
            until(lambda: receiver.status(), "the receiver answers")
            self.status(sender=self.sender, receiver=receiver.address)
        self.versions()
        self.checks()
        self.control()
        self.other_history()

    def start(self, name: str, *options: str) -> Receiver:
        return self.daemons.start_receiver([self.sender], "m", self.root / name, *options)

    def publish(self, directory: pathlib.Path, sender: str = "s") -> None:
        socket = self.root / sender / "trainer.sock"
        self.out.run("publish", "publish", directory, "--model", "m", "--socket", socket)

    def versions(self) -> None:
        out, engine = self.out, ("--receiver", self.engine.address)
        # Without --model it waits until the sender has one.
        watch = out.stream("watch", "watch", "--sender", self.sender, *engine)
        self.publish(self.one)
        out.run("wait", "wait", "--version", 1, *engine)
        watch.wait_for('"published"', '"committed"', '"served"')
        self.publish(self.two)
        out.run("wait", "wait", "--version", 2, "--served", *engine)
        all_have_it = out.run("wait-all", "wait", "--all", "--at-least", 2, "--version", 2, "--sender",
                              self.sender)  # fmt: skip
        assert (all_have_it["receivers"], all_have_it["version"]) == (2, 2), all_have_it
        self.status("--changes", sender=self.sender, receiver=self.engine.address)
        self.status(sender=self.sender, receiver=self.plain.address)
        out.run("sync", "sync", *engine)
        out.run("sync", "sync", "--full", *engine)
        out.run("sync-via-sender", "sync", "--via-sender", "--sender", self.sender)
        shown = self.status(sender=self.sender, receiver=self.plain.address)["sender"]
        ids = [word for r in shown["receivers"] for word in ("--id", r["receiver_id"])]
        both = out.run("sync-group", "sync", "--group", "both", *ids, "--sender", self.sender)
        assert (both["group"]["members"], both["group"]["late"]) == (2, 0), both
        out.run("pause", "pause", "--receiver", self.plain.address)
        stays = out.run("sync-group", "sync", "--group", "both", *ids, "--sender", self.sender, code=1)
        assert (stays["group"]["committed"], "paused" in stays["group"]["message"]) == (False, True), stays
        out.run("pause", "resume", "--receiver", self.plain.address)
        out.run("rollback", "rollback", "--version", 1, "--sender", self.sender)
        watch.wait_for('"rolled back"')
        watch.stop()
        self.publish_two_again()

    def publish_two_again(self) -> None:
        watch = self.out.stream("publish", "publish", self.root / "steps", "--watch", "--again", "--model",
                                "m", "--socket", self.root / "s" / "trainer.sock")  # fmt: skip
        watch.wait_for('"version":2')
        watch.stop()
        self.engine.sync()
        again = self.out.stream("status", "status", "--watch", "--interval", 0.05, "--sender",
                                self.sender, "--receiver", self.engine.address)  # fmt: skip
        again.wait_for("\n{")
        again.stop()

    def checks(self) -> None:
        out, engine = self.out, ("--receiver", self.engine.address)
        good = out.run("verify", "verify", *engine)
        flip_last_byte(self.engine.directory / "model.safetensors")
        bad = out.run("verify", "verify", *engine, code=4)
        repaired = out.run("verify", "verify", "--repair", *engine)
        assert [v["good"] for v in (good, bad, repaired)] == [True, False, True]
        assert (bad["bad_tensors"], bad["repaired"], repaired["repaired"]) == (["b"], False, True)
        # A program that is run has no memory to compare.
        asked = out.run("verify", "verify", "--engines", *engine, code=4)
        assert [(e["name"], e["drifted"]) for e in asked["engines"]] == [("/bin/true", False)]
        for directory, code in ((self.two, 0), (self.one, 4), (self.other, 4)):
            out.run("verify-against", "verify", "--against", directory, *engine, code=code)

    def control(self) -> None:
        out, engine = self.out, ("--receiver", self.engine.address)
        out.run("pause", "pause", *engine)
        self.status(sender=self.sender, receiver=self.engine.address)
        out.run("pause", "resume", *engine)
        here = ("--data-dir", self.root)
        out.run("doctor", "doctor", *here)
        out.run("doctor", "doctor", *here, "--sender", self.sender, *engine)
        out.run("doctor", "doctor", *here, "--sender", self.nowhere, code=1)
        self.link()

    def link(self) -> None:
        at = f"127.0.0.1:{free_port()}"
        listener = spawn(
            [str(programs() / "deltawire"), "bench-link", "--listen", at],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with listener:
            try:
                assert "listening" in listener.stdout.readline()
                asked = self.out.run(
                    "bench-link", "bench-link", at, "--seconds", "0.2", "--streams", "1,2"
                )
            finally:
                listener.kill()
        assert [r["streams"] for r in asked["rates"]] == [1, 2]

    def other_history(self) -> None:
        """A receiver that holds a version of one sender, and follows another one."""
        self.daemons.kill("deltawire-receiver")
        sender = self.daemons.start_sender(self.root / "s2")
        self.publish(self.two, "s2")
        receiver = self.daemons.start_receiver(
            [sender], "m", self.engine.directory, "--no-follow"
        )

        def knows_both() -> bool:
            status = receiver.status()
            states = [status.get(key, {}) for key in ("committed", "newest")]
            return all(state.get("epoch", 0) > 0 for state in states)

        until(knows_both, "the receiver knows its own version and the sender's")
        self.status(sender=sender, receiver=receiver.address, code=4)
        (self.root / "s2" / "m" / "notes").write_text("not the sender's")
        ended = self.out.run("unregister", "unregister", "m", "--sender", sender)
        assert (ended["left"], ended["freed_bytes"] > 0) == (["notes"], True), ended


def play_alone(root: pathlib.Path, out: Outputs, pair: Pair) -> None:
    """The commands that need no daemon."""
    out.run("version", "version")
    out.run("simulate", "simulate", ROOT / "configs" / "fleet.sample.toml")
    out.run("inspect", "inspect", pair.one)
    out.run("diff", "diff", pair.one, pair.two)
    out.run("diff", "diff", pair.one, pair.one, "--sort", "stored")
    out.run("diff", "diff", pair.one, pair.other, code=4)
    hf = root / "hf"
    hf.mkdir()
    (hf / "config.json").write_text((CONFIGS / "qwen3_0_6b.json").read_text())
    out.run("plan", "plan", "--hf", hf, "--parallel", "tp=2", "--tensors")
    # A checkpoint with a tensor that is not trained, and without MTP's and nearly all others.
    write_model(hf, ["model.visual.blocks.0.norm1.weight"], bytes(2 * ELEMENTS))
    (hf / "config.json").write_text((CONFIGS / "qwen3_5_9b.json").read_text())
    out.run("plan", "plan", "--hf", hf, "--parallel", "tp=1,vision=false", code=4)
    out.lines("demo", "demo", "--size", "tiny", "--steps", 1, "--dir", root)


class JsonTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shm = pathlib.Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(
            prefix="deltawire-json-", dir=shm if shm.is_dir() else None
        )
        cls.addClassCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        daemons = cls.enterClassContext(Daemons(root))
        outputs = Outputs(root)
        pair = Pair(root, daemons, outputs)
        try:
            pair.play()
            play_alone(root, outputs, pair)
        except BaseException:
            print(daemons.logs(), flush=True)
            raise
        cls.outputs = outputs.all
        cls.schemas = json_schemas.load()
        cls.resolved = {
            file: json_schemas.resolve(schema, file, cls.schemas)
            for file, schema in cls.schemas.items()
            if file != json_schemas.COMMON
        }
        for schema in cls.schemas.values():
            jsonschema.Draft202012Validator.check_schema(schema)
        cls.strict = {
            file: jsonschema.Draft202012Validator(json_schemas.strict(schema))
            for file, schema in cls.resolved.items()
        }
        print(f"{len(cls.outputs)} outputs, {len(cls.resolved)} schemas", flush=True)

    def test_every_output_fits_its_schema(self):
        self.assertEqual({file for file, _, _ in self.outputs}, set(self.resolved))
        for file, command, value in self.outputs:
            with self.subTest(command):
                self.assertEqual(errors(self.strict[file], value), [])

    def test_the_published_schemas_take_every_output_and_unknown_keys(self):
        resources = [
            (file, referencing.Resource.from_contents(s)) for file, s in self.schemas.items()
        ]
        registry = referencing.Registry().with_resources(resources)
        for file, command, value in self.outputs:
            published = jsonschema.Draft202012Validator(self.schemas[file], registry=registry)
            more = {**value, "of a later release": 1}
            with self.subTest(command):
                self.assertEqual(errors(published, value) + errors(published, more), [])
                self.assertNotEqual(errors(self.strict[file], more), [])

    def test_a_key_that_goes_or_changes_its_type_is_found(self):
        planted = 0
        for file, command, value in self.outputs:
            if len(value.get("tensors_meta", [])) > 10:
                continue  # it takes long, and another output has the same keys
            for key in value:
                less, other = dict(value), {**value, key: None}
                del less[key]
                with self.subTest(command, key=key):
                    self.assertNotEqual(errors(self.strict[file], less), [])
                    self.assertNotEqual(errors(self.strict[file], other), [])
                    planted += 1
        self.assertGreater(planted, 200)

    def test_every_field_is_printed(self):
        def fits(form: dict, value: object) -> bool:
            return jsonschema.Draft202012Validator(form).is_valid(value)

        listed, seen = set(), set()
        for file, schema in self.resolved.items():
            listed |= {file + at for at, _ in every_field(schema)}
        for file, _, value in self.outputs:
            found = json_schemas.fields(self.resolved[file], value, fits)
            seen |= {file + at for at, _ in found}
        print(f"{len(listed)} fields, {len(listed - seen)} of them not printed here", flush=True)
        self.assertEqual(listed - seen, set(CONDITIONAL))

    def test_what_is_not_always_there_says_when(self):
        for file, schema in self.resolved.items():
            for where, inner in [("", schema), *every_field(schema)]:
                for key in set(inner.get("properties", {})) - set(inner.get("required", [])):
                    text = inner["properties"][key]["description"]
                    with self.subTest(f"{file}{where}.{key}"):
                        self.assertRegex(text, "^Only (if|with) ")

    def test_every_field_has_a_description_with_its_unit(self):
        units = self.schemas[json_schemas.COMMON]["$defs"]
        for name in UNITS:
            self.assertIn(units[name]["type"], ("integer", "number"))
        kinds = {units[name]["description"]: name for name in UNITS}
        self.assertEqual(len(kinds), len(UNITS))
        for file, schema in self.schemas.items():
            self.check_descriptions(file, schema)
        # What has a number's type without a unit is a format's version.
        for file, schema in self.resolved.items():
            for where, inner in every_field(schema):
                if inner.get("type") in ("integer", "number"):
                    words = "|".join(UNITS.values())
                    with self.subTest(f"{file}{where}"):
                        self.assertRegex(inner["description"].lower(), rf"\b({words})s?\b")

    def check_descriptions(self, file: str, schema: object) -> None:
        if isinstance(schema, list):
            for inner in schema:
                self.check_descriptions(file, inner)
        if not isinstance(schema, dict):
            return
        for key, inner in schema.get("properties", {}).items():
            with self.subTest(f"{file}: {key}"):
                kind = inner.get("$ref", "").rpartition("/")[2]
                if "/properties/" in inner.get("$ref", ""):
                    continue  # described where it points
                if inner == {"const": True}:
                    continue  # of an `if`
                text = inner.get("description", "")
                self.assertRegex(text, r"[^ ].*[^ ]\Z")
                self.assertRegex(text.lower(), rf"\b{UNITS.get(kind, '')}")
        for inner in schema.values():
            self.check_descriptions(file, inner)

    def test_every_command_with_json_has_a_schema(self):
        tool = programs() / "deltawire"

        def help_of(*command: str) -> str:
            return subprocess.run([tool, *command, "--help"], capture_output=True, text=True).stdout

        commands = re.findall(r"^  ([a-z]+) +[A-Z]", help_of().split("Subcommands:")[1], re.M)
        self.assertGreater(len(commands), 14)
        printing = {c for c in commands if "--json" in help_of(c)}
        self.assertGreater(len(printing), 12)
        titles = " ".join(schema["title"] for schema in self.resolved.values())
        self.assertEqual(set(re.findall(r"deltawire ([a-z]+) ", titles)), printing)

    def test_the_page_names_every_schema_and_its_command(self):
        page = (ROOT / "docs" / "json.md").read_text("utf-8")
        for file, schema in self.resolved.items():
            with self.subTest(file):
                self.assertIn(f"schemas/{file}", page)
                for command in schema["title"].split(", "):
                    self.assertIn(f"`{command.removeprefix('deltawire ')}`", page)


def errors(check, value: object) -> list[str]:
    return [f"{e.json_path}: {e.message}"[:500] for e in check.iter_errors(value)]


def every_field(schema: dict) -> list[tuple[str, dict]]:
    return list(json_schemas.fields(schema, json_schemas.EVERY, lambda *_: True))


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    if jsonschema is None:
        skipping.leave("this Python has no jsonschema (4.18 or later)")
    unittest.main()
