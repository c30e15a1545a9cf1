"""The status page of a running pair: its values are those of `status --json`, names of peers stay
text, and a browser shows it without errors (where Chromium is installed).

`page_test.py Values` needs no browser, `page_test.py Browser` does. `--pictures DIR` leaves what
the browser shows in DIR: PNGs of both pages, narrow and wide, light and dark.
"""

from __future__ import annotations

import argparse
import html.parser
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402
from daemons import DEADLINE_S, Daemons, free_port, listens, programs, run, until  # noqa: E402

ELEMENTS = 1 << 16
LAYERS = 6
PARTS = ["input_layernorm", "mlp.down_proj", "mlp.up_proj", "self_attn.o_proj", "self_attn.q_proj"]
VERSIONS = 12
# A receiver's id comes from a peer. The option takes no spaces.
HOSTILE = """r<script>document.title='owned'</script><img/src=x/onerror=alert(1)>&amp;"'"""
VOID = {"meta", "link"}
PICTURES: pathlib.Path | None = None


def tool(*command: object) -> str:
    return run(programs() / "deltawire", *command)


def write_model(directory: pathlib.Path, step: int) -> pathlib.Path:
    """Each part and each layer changes in another density."""
    directory.mkdir(parents=True)
    names = ["model.embed_tokens.weight"]
    names += [f"model.layers.{i}.{part}.weight" for i in range(LAYERS) for part in PARTS]
    size = 2 * ELEMENTS
    header = {
        name: {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    content = bytearray(size * len(names))
    for i in range(1, len(names)):
        apart = 128 * (1 + (i * 7 + step) % 5)
        content[i * size : (i + 1) * size : apart] = bytes([step]) * -(-size // apart)
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(content)
    )
    return directory


class Parser(html.parser.HTMLParser):
    """Elements, attributes, tables and facts; complains of tags that do not match. A cell is its
    text and its exact value."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: dict[str, list[dict[str, list[str]]]] = {}  # of tables; facts are one row
        self._open: list[str] = []
        self._titles: list[list[str]] = []
        self._cells: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("table", "dl"):
            self.rows[self.ids[-1]] = []
            self._titles, self._cells = [], []
        elif tag == "tr":
            self._cells = []
        elif tag in ("th", "dt"):
            self._titles.append(["", ""])
        elif tag in ("td", "dd"):
            self._cells.append(["", ""])
        elif tag == "data":
            self._cells[-1][1] = dict(attrs)["value"]

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self._open and self._open.pop() == tag, tag
        if tag == "dl" or (tag == "tr" and self._cells):
            titles = [text for text, _ in self._titles]
            self.rows[self.ids[-1]].append(dict(zip(titles, self._cells, strict=True)))

    def handle_data(self, text):
        inside = self._open[-1] if self._open else ""
        if inside in ("th", "dt"):
            self._titles[-1][0] += text
        elif inside in ("td", "dd", "data"):
            self._cells[-1][0] += text


class Pair(unittest.TestCase):
    """A sender, a receiver with an engine, and versions that both of them have."""

    @classmethod
    def setUpClass(cls):
        shm = pathlib.Path("/dev/shm")
        folder = tempfile.TemporaryDirectory(
            prefix="deltawire-page-", dir=shm if shm.is_dir() else None
        )
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        daemons = cls.enterClassContext(Daemons(cls.root))
        cls.ports = {"sender": free_port(), "receiver": free_port()}
        cls.sender = daemons.start_sender(
            cls.root / "s", "--metrics-listen", f"127.0.0.1:{cls.ports['sender']}"
        )
        until(lambda: listens(cls.ports["sender"]), "the sender shows its page")
        cls.empty = cls.get("sender")
        cls.receiver = daemons.start_receiver(
            [cls.sender], "m", cls.root / "r", "--receiver-id", HOSTILE, "--metrics-listen",
            f"127.0.0.1:{cls.ports['receiver']}", "--engine", "exec=/bin/true",
        )  # fmt: skip
        try:
            for version in range(1, VERSIONS + 1):
                cls.publish(version)
            until(cls.settled, "the sender's page has heard of every commit")
        except BaseException:
            print(daemons.logs(), cls.get("sender"), sep="\n", flush=True)
            raise
        cls.pages = {name: cls.get(name) for name in cls.ports}
        cls.parsed = {name: Parser(text) for name, text in cls.pages.items()}
        cls.status = json.loads(
            tool("status", "--json", "--sender", cls.sender, "--receiver", cls.receiver.address)
        )

    @classmethod
    def publish(cls, version: int) -> None:
        model = write_model(cls.root / f"step-{version}", version)
        tool("publish", model, "--model", "m", "--socket", cls.root / "s" / "trainer.sock",
             "--version", version)  # fmt: skip
        cls.receiver.await_served(version)

    @classmethod
    def settled(cls) -> bool:
        """A daemon answers with the page that it has, up to a second old: one of before the model, too."""
        rows = Parser(cls.get("sender")).rows.get("versions-m", [])
        return len(rows) == VERSIONS and all(row["receivers"][0] == "1" for row in rows)

    @classmethod
    def get(cls, name: str) -> str:
        url = f"http://127.0.0.1:{cls.ports[name]}/"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            cls.policy = answer.headers["Content-Security-Policy"]
            return answer.read().decode()


class Values(Pair):
    def test_the_sender_says_what_status_says(self):
        model = self.status["sender"]["models"][0]
        newest = model["newest"]
        (facts,) = self.parsed["sender"].rows["newest-m"]
        self.assertEqual(facts["newest"][0], f"version {newest['id']['version']}")
        for name, value in (("model", newest["model_bytes"]), ("delta", newest["delta_bytes"]),
                            ("whole chunks", newest["full_bytes"]), ("sent", model["bytes_sent"]),
                            ("delta log", model["log_bytes"])):  # fmt: skip
            with self.subTest(name):
                self.assertEqual(int(facts[name][1]), value)
        self.assertEqual(int(facts["pulls now"][0]), model["active_pulls"])
        changed = newest["changed_elements"] / newest["elements"]
        self.assertGreater(changed, 0)
        self.assertEqual(float(facts["changed"][1]), changed)
        self.assertRegex(facts["published"][0], " ago$")

    def test_the_versions_are_those_of_status_and_of_the_log(self):
        newest = self.status["sender"]["models"][0]["newest"]
        rows = self.parsed["sender"].rows["versions-m"]
        names = [f"version {v}" for v in range(VERSIONS, 0, -1)]
        self.assertEqual([row["version"][0] for row in rows], names)
        self.assertEqual(len({row["trace"][0] for row in rows}), VERSIONS)
        self.assertEqual(rows[0]["trace"][0], newest["id"]["trace"])
        for name, field in (("trainer waited", "trainer_wait_seconds"),
                            ("offload", "offload_seconds"), ("publish", "publish_seconds"),
                            ("delta", "delta_bytes"), ("whole chunks", "full_bytes")):  # fmt: skip
            with self.subTest(name):
                self.assertEqual(float(rows[0][name][1]), newest[field])
        for row in rows:
            self.assertGreaterEqual(float(row["ready to committed"][1]), float(row["publish"][1]))
            self.assertGreaterEqual(float(row["publish"][1]), float(row["diff"][1]))

    def test_the_fleet_is_what_status_says_and_a_name_stays_text(self):
        (told,) = self.status["sender"]["receivers"]
        (row,) = self.parsed["sender"].rows["receivers-m"]
        pull = told["last_pull"]
        self.assertEqual(told["receiver_id"], HOSTILE)
        self.assertEqual(row["receiver"][0], HOSTILE)
        self.assertEqual(row["from"][1] or row["from"][0], told["peer"])
        self.assertEqual(row["holds"][0], f"version {told['committed']['version']}")
        self.assertEqual(row["versions behind"][0], "0")
        self.assertEqual(row["phase"][0], told["phase"])
        self.assertEqual(int(row["last pull"][1]), pull["payload_bytes"])
        self.assertEqual(float(row["took"][1]), pull["seconds"])
        if pull["transfer_seconds"] == 0:  # Every chunk came before the version was complete.
            self.assertEqual(row["rate"][0], "-")
            return
        rate = (pull["payload_bytes"] - pull["ahead_bytes"]) / pull["transfer_seconds"]
        self.assertAlmostEqual(float(row["rate"][1]), rate, delta=rate / 1e6)

    def test_the_receiver_says_what_status_says(self):
        model = self.status["receiver"]["models"][0]
        (facts,) = self.parsed["receiver"].rows["state-m"]
        self.assertEqual(facts["committed"][0], f"version {model['committed']['version']}")
        self.assertEqual(facts["newest"][0], f"version {model['newest']['version']}")
        self.assertEqual(facts["phase"][0], model["phase"])
        for name, value in (("model", model["model_bytes"]), ("received", model["bytes_received"]),
                            ("last pull", model["last_pull"]["payload_bytes"]),
                            ("took", model["last_pull"]["seconds"])):  # fmt: skip
            with self.subTest(name):
                self.assertEqual(float(facts[name][1]), value)
        for name in ("commits", "repaired_chunks"):
            self.assertEqual(int(facts[name.replace("_", " ")][0]), model[name])
        (agent,) = model["agents"]
        (sender,) = self.parsed["receiver"].rows["senders-m"]
        self.assertEqual(sender["sender"][0], agent["sender"])
        self.assertEqual(sender["state"][0], "attached")
        self.assertEqual(sender["newest"][0], f"version {agent['newest']['version']}")
        self.assertEqual(int(sender["publishes"][1]), agent["owned_bytes"])
        (told,) = model["engines"]
        (engine,) = self.parsed["receiver"].rows["engines-m"]
        self.assertEqual(engine["engine"][0], told["name"])
        # Nothing compares what this kind of engine has loaded.
        self.assertTrue(told["unverified"])
        self.assertEqual(engine["state"][0], told["state"] + ", not verified")
        self.assertEqual(engine["serves"][0], f"version {told['served']['version']}")
        self.assertEqual(int(engine["updates"][0]), told["updates"])
        self.assertEqual(float(engine["pause"][1]), told["last_pause_seconds"])

    def test_the_commits_are_those_of_status(self):
        model = self.status["receiver"]["models"][0]
        rows = self.parsed["receiver"].rows["commits-m"]
        names = [f"version {v}" for v in range(VERSIONS, 0, -1)]
        self.assertEqual([row["version"][0] for row in rows], names)
        self.assertEqual(rows[0]["trace"][0], model["committed"]["trace"])
        self.assertEqual(float(rows[0]["pull"][1]), model["last_pull"]["seconds"])
        self.assertEqual(sum(int(row["received"][1]) for row in rows), model["bytes_received"])
        sent = {row["version"][0]: row["trace"] for row in self.parsed["sender"].rows["versions-m"]}
        self.assertEqual(sent, {row["version"][0]: row["trace"] for row in rows})

    def test_density_by_layer_is_what_changed(self):
        status = json.loads(tool("status", "--json", "--changes", "--sender", self.sender,
                                 "--receiver", self.receiver.address))  # fmt: skip
        changes = {c["name"]: c for c in status["sender"]["models"][0]["changes"]}
        for layer in range(LAYERS):
            for part in PARTS:
                change = changes[f"model.layers.{layer}.{part}.weight"]
                ratio = change["changed_elements"] / change["elements"]
                with self.subTest(layer=layer, part=part):
                    self.assertIn(f"<title>{layer}, {part}: {100 * ratio:.3f} %</title>",
                                  self.pages["sender"])  # fmt: skip
        self.assertEqual(self.pages["sender"].count('class="cell"'), LAYERS * len(PARTS))

    def test_the_first_line_says_whether_all_is_well(self):
        newest = f"version {VERSIONS}"
        self.assertIn(f"All is well: m is at {newest} here and at 1 receiver</p>", self.pages["sender"])
        self.assertIn(f"All is well: m is at {newest}; engine /bin/true of m serves {newest}</p>",
                      self.pages["receiver"])  # fmt: skip
        self.assertIn("Waiting: no model is registered yet</p>", self.empty)

    def test_before_there_is_a_model_the_page_says_so(self):
        self.assertIn("No model is registered yet", self.empty)
        self.assertNotIn("<svg", self.empty)
        Parser(self.empty)

    def test_there_is_nothing_to_run_or_to_fetch(self):
        for name, page in self.parsed.items():
            with self.subTest(name):
                self.assertFalse(page.tags & {"script", "img", "iframe", "object", "form"})
                self.assertIn("svg", page.tags)
                self.assertEqual(len(page.ids), len(set(page.ids)))
                for tag, attribute, value in page.attributes:
                    self.assertFalse(attribute.startswith("on"), (tag, attribute))
                    self.assertNotEqual(attribute, "style", tag)  # the policy would not have it
                    if attribute in ("src", "href"):
                        self.assertIn((tag, value), {("link", "data:,"), ("a", "/metrics")})
                self.assertNotIn("url(", self.pages[name])
                self.assertIn("prefers-color-scheme", self.pages[name])
        self.assertRegex(self.policy, "^default-src 'none'; style-src 'sha256-[^' ]+'; ")
        self.assertNotIn("unsafe", self.policy)

    def test_other_paths_and_methods_have_nothing(self):
        for path, method in (("/x", "GET"), ("/index.html", "GET"), ("/", "POST"), ("/", "PUT"),
                             ("/", "DELETE"), ("/metrics", "POST")):  # fmt: skip
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.ports['sender']}{path}", method=method
            )
            with self.subTest(path=path, method=method):
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=DEADLINE_S)
                self.assertIn(refused.exception.code, (404, 405))
                refused.exception.close()


class Browser(Pair):
    @classmethod
    def setUpClass(cls):
        cls.browser = shutil.which("chromium")
        if cls.browser is None:
            raise unittest.SkipTest("no chromium on this machine; the page was not looked at")
        super().setUpClass()

    def show(self, name: str, *options: str) -> subprocess.CompletedProcess:
        """What the browser did, and said on its console."""
        return subprocess.run(
            [self.browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
             "--disable-component-update", f"--user-data-dir={self.root}/browser",
             "--enable-logging=stderr", *options, f"http://127.0.0.1:{self.ports[name]}/"],
            capture_output=True, text=True, timeout=DEADLINE_S, check=True,
        )  # fmt: skip

    def test_it_is_shown_without_an_error(self):
        pictures = PICTURES or self.root
        for name in self.ports:
            for width in (400, 1400):
                for scheme, dark in (("light", 1), ("dark", 0)):
                    picture = pictures / f"{name}_{width}_{scheme}.png"
                    with self.subTest(picture.name):
                        said = self.show(name, f"--window-size={width},2400",
                                         f"--blink-settings=preferredColorScheme={dark}",
                                         f"--screenshot={picture}").stderr  # fmt: skip
                        self.assertNotIn(":CONSOLE", said)
                        self.assertGreater(picture.stat().st_size, 10_000)

    def test_a_name_has_run_nothing(self):
        for name in self.ports:
            document = self.show(name, "--dump-dom").stdout
            self.assertIn("<title>deltawire ", document)
            self.assertNotIn("<title>owned", document)


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    PICTURES = options.pictures
    skipping.main(rest)
