"""The status page of a running pair: its values are those of `status --json`, names of peers stay
text, and a browser shows it without errors (where chromium is installed).

`page_test.py --pictures DIR` leaves PNGs of both pages in DIR, narrow and wide, light and dark.
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
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))

from daemons import DEADLINE_S, Daemons, free_port, programs  # noqa: E402

ELEMENTS = 1 << 16
LAYERS = 6
# A receiver's id comes from a peer, and so does the text of its last failure.
HOSTILE = """r<script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;"'"""
VOID = {"meta", "link"}
PICTURES: pathlib.Path | None = None


def until(done, what: str):
    end = time.monotonic() + DEADLINE_S
    while not (value := done()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def tool(*command: object) -> str:
    done = subprocess.run(
        [programs() / "deltawire", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def write_model(directory: pathlib.Path, step: int) -> pathlib.Path:
    directory.mkdir(parents=True)
    names = [f"model.layers.{i}.{part}.weight" for i in range(LAYERS) for part in ("mlp", "attn")]
    size = 2 * ELEMENTS
    header = {
        name: {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    content = bytearray(size * len(names))
    for i in range(0, len(content), 128 * (1 + i_of(step))):
        content[i] = step
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(content)
    )
    return directory


def i_of(step: int) -> int:
    return step % 3


class Parser(html.parser.HTMLParser):
    """Elements, attributes and tables; complains of tags that do not match."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: dict[str, list[dict[str, tuple[str, str]]]] = {}
        self._open: list[str] = []
        self._titles: list[str] = []
        self._row: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = dict(attrs)["id"]
            self.tables[self._table] = []
            self._titles = []
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._row.append(["", ""])
        elif tag == "data":
            self._row[-1][1] = dict(attrs)["value"]

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self._open and self._open.pop() == tag, tag
        if tag == "thead":
            self._titles = [text for text, _ in self._row]
        elif tag == "tr" and self._titles:
            row = {t: tuple(cell) for t, cell in zip(self._titles, self._row, strict=True)}
            self.tables[self._table].append(row)

    def handle_data(self, text):
        if self._open and self._open[-1] in ("td", "th", "data"):
            self._row[-1][0] += text


class PageTest(unittest.TestCase):
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
        until((cls.root / "s" / "trainer.sock").exists, "the sender listens")
        cls.receiver = daemons.start_receiver(
            [cls.sender], "m", cls.root / "r", "--receiver-id", HOSTILE, "--metrics-listen",
            f"127.0.0.1:{cls.ports['receiver']}", "--engine", "exec=/bin/true",
        )  # fmt: skip
        for version in range(1, 13):
            model = write_model(cls.root / f"step-{version}", version)
            tool("publish", model, "--model", "m", "--socket", cls.root / "s" / "trainer.sock",
                 "--version", version)  # fmt: skip
            until(lambda v=version: cls.served() == v, f"version {version} is served")
        # The sender has heard of it.
        until(lambda: cls.delivered() == 12, "the receiver's word of its last commit")
        cls.pages = {name: cls.get(name) for name in cls.ports}
        cls.parsed = {name: Parser(text) for name, text in cls.pages.items()}
        cls.status = json.loads(
            tool("status", "--json", "--sender", cls.sender, "--receiver", cls.receiver.address)
        )

    @classmethod
    def served(cls) -> int:
        return cls.receiver.status().get("served", {}).get("version", 0)

    @classmethod
    def delivered(cls) -> int:
        return sum(
            row["receivers"][0] == "1" for row in Parser(cls.get("sender")).tables["versions-m"]
        )

    @classmethod
    def get(cls, name: str) -> str:
        url = f"http://127.0.0.1:{cls.ports[name]}/"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            cls.policy = answer.headers["Content-Security-Policy"]
            return answer.read().decode()

    def test_the_sender_says_what_status_says(self):
        model = self.status["sender"]["models"][0]
        newest = model["newest"]
        (row,) = self.parsed["sender"].tables["newest-m"]
        self.assertEqual(row["version"][0], f"version {newest['id']['version']}")
        self.assertEqual(row["trace"][0], newest["id"]["trace"])
        self.assertEqual(int(row["size"][1]), newest["model_bytes"])
        self.assertEqual(int(row["delta"][1]), newest["delta_bytes"])
        self.assertEqual(int(row["whole chunks"][1]), newest["full_bytes"])
        self.assertEqual(
            float(row["changed"][1]), newest["changed_elements"] / newest["elements"]
        )
        self.assertEqual(int(row["delta log"][1]), model["log_bytes"])
        self.assertEqual(int(row["sent"][1]), model["bytes_sent"])
        rows = self.parsed["sender"].tables["versions-m"]
        self.assertEqual([r["version"][0] for r in rows], [f"version {v}" for v in range(12, 0, -1)])
        self.assertEqual(len({r["trace"][0] for r in rows}), 12)
        self.assertEqual(rows[0]["trace"][0], newest["id"]["trace"])
        for key, field in (("trainer waited", "trainer_wait_seconds"), ("offload", "offload_seconds"),
                           ("publish", "publish_seconds")):  # fmt: skip
            self.assertEqual(float(rows[0][key][1]), newest[field])
        for r in rows:
            self.assertGreaterEqual(float(r["ready to committed"][1]), float(r["publish"][1]))

    def test_the_fleet_is_what_status_says_and_a_name_stays_text(self):
        (told,) = self.status["sender"]["receivers"]
        (row,) = self.parsed["sender"].tables["receivers-m"]
        self.assertEqual(told["receiver_id"], HOSTILE)
        self.assertEqual(row["receiver"][0], HOSTILE)
        self.assertEqual(row["from"][0], told["peer"])
        self.assertEqual(row["holds"][0], f"version {told['committed']['version']}")
        self.assertEqual(row["versions behind"][0], "0")
        self.assertEqual(row["phase"][0], told["phase"])
        self.assertEqual(int(row["last pull"][1]), told["last_pull"]["payload_bytes"])
        self.assertEqual(float(row["transfer"][1]), told["last_pull"]["transfer_seconds"])

    def test_the_receiver_says_what_status_says(self):
        model = self.status["receiver"]["models"][0]
        (row,) = self.parsed["receiver"].tables["state-m"]
        self.assertEqual(row["committed"][0], f"version {model['committed']['version']}")
        self.assertEqual(row["trace"][0], model["committed"]["trace"])
        self.assertEqual(int(row["size"][1]), model["model_bytes"])
        self.assertEqual(int(row["received"][1]), model["bytes_received"])
        self.assertEqual(int(row["commits"][0]), model["commits"])
        rows = self.parsed["receiver"].tables["commits-m"]
        self.assertEqual([r["version"][0] for r in rows], [f"version {v}" for v in range(12, 0, -1)])
        self.assertEqual(int(rows[0]["came"][1]), model["last_pull"]["payload_bytes"])
        self.assertEqual(float(rows[0]["pull"][1]), model["last_pull"]["seconds"])
        self.assertEqual(sum(int(r["came"][1]) for r in rows), model["bytes_received"])
        (engine,) = self.parsed["receiver"].tables["engines-m"]
        self.assertEqual(engine["engine"][0], model["engines"][0]["name"])
        self.assertEqual(engine["state"][0], model["engines"][0]["state"])
        self.assertEqual(int(engine["updates"][0]), model["engines"][0]["updates"])

    def test_there_is_nothing_to_run_or_to_fetch(self):
        for name, page in self.parsed.items():
            with self.subTest(name):
                self.assertFalse(page.tags & {"script", "img", "iframe", "object", "form", "a"})
                self.assertIn("svg", page.tags)
                for tag, attribute, value in page.attributes:
                    self.assertFalse(attribute.startswith("on"), (tag, attribute))
                    if attribute in ("src", "href"):
                        self.assertEqual((tag, value), ("link", "data:,"))
                self.assertNotIn("url(", self.pages[name])
                self.assertIn("prefers-color-scheme", self.pages[name])
        self.assertIn("default-src 'none'", self.policy)

    def test_other_paths_and_methods_have_nothing(self):
        for path, method in (("/x", "GET"), ("/index.html", "GET"), ("/", "POST"), ("/", "PUT")):
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.ports['sender']}{path}", method=method, data=None
            )
            with self.subTest(path=path, method=method):
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=10)
                self.assertIn(refused.exception.code, (404, 405))
                refused.exception.close()

    def test_a_browser_shows_it_without_an_error(self):
        browser = shutil.which("chromium")
        if browser is None:
            self.skipTest("no chromium on this machine")
        pictures = PICTURES or self.root
        for name, port in self.ports.items():
            for width in (400, 1400):
                for scheme, dark in (("light", "1"), ("dark", "0")):
                    picture = pictures / f"{name}-{width}-{scheme}.png"
                    done = subprocess.run(
                        [browser, "--headless=new", "--no-sandbox", "--disable-gpu",
                         "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                         f"--user-data-dir={self.root}/browser", f"--window-size={width},1500",
                         f"--blink-settings=preferredColorScheme={dark}", "--enable-logging=stderr",
                         f"--screenshot={picture}", f"http://127.0.0.1:{port}/"],
                        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                    )  # fmt: skip
                    with self.subTest(picture.name):
                        self.assertEqual(done.returncode, 0, done.stderr)
                        self.assertNotIn(":CONSOLE", done.stderr)
                        self.assertGreater(picture.stat().st_size, 10_000)


if __name__ == "__main__":
    if programs() is None or not os.access(programs(), os.X_OK):
        sys.exit("DELTAWIRE_BIN_DIR names no programs")
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    PICTURES = options.pictures
    unittest.main(argv=[sys.argv[0], *rest])
