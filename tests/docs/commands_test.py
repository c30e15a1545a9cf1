"""Every command block of a document is run, in its order, on two nodes that are network namespaces.

    commands_test.py --all         tests how marks are read, and counts the documents' blocks
    commands_test.py DOCUMENT      runs the blocks of one of them

A fenced block of shell (```sh) has a mark before it, a comment of its own:

    <!-- test: run on=NODE [until="PATTERN"] [keep] [status=N|M] [needs=torch] [way=build|release] -->
    <!-- test: open NODE from=NODE|new -->      its last command is a shell on that node
    <!-- test: booted on=NODE [status=N|M] [says="PATTERN"] -->
    <!-- test: skip WHY -->                     cannot run; counted, and said

`way`: one of two ways to deltawire that a document offers; the other way's blocks are skipped. Here
it is what was built. DELTAWIRE_DOCS_WAY=release is for tests/deploy/newcomer_test.py, which has the
files of a release and no build.

`booted`: it takes a machine with systemd and packages, so tests/deploy/guide_test.py runs it, in one
that it boots; `says`: what it must print. BOOTED lists the documents that have such blocks, and then
no others.

`until`: the block does not end by itself. It runs beside the next blocks until it has printed the
pattern, which it must have done before the document goes on on that node; then it gets a SIGINT, or
with `keep` runs on. A document may ask for nodes, and prepare what its reader has:

    <!-- test: nodes NAME=ADDRESS ... -->
    <!-- test: before on=NODE
    COMMANDS
    -->

A block of shell without a mark is an error, and so is a block without a language, or a command in a
block of another language. The nodes have a /dev/shm and processes of their own, which end with the
test.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK_LIMIT_S = 240
FENCE = re.compile(r"^ {0,3}(```+)\s*(\S*)")
MARK = re.compile(r"^<!-- test: (.*?)(?: -->)?$")
# Languages whose blocks are no commands: output, programs and files that the text shows.
SHOWN = {"text", "python", "yaml", "toml", "json", "hex", "cpp", "c"}
BOOTED = ("docs/howto/services.md",)
WAY = os.environ.get("DELTAWIRE_DOCS_WAY", "build")
COMMAND = re.compile(
    r"^\s*(?:\$ |sudo |\./run |deltawire(?:-sender|-receiver)? |python3? |ip |vllm |kill )"
)


# What the namespaces below take; as root in most containers it is refused.
PROBE = """
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip netns add probe
ip link add dw0 netns probe type veth peer name dw1
"""


class MarkError(Exception):
    pass


@dataclass
class Block:
    line: int
    kind: str  # run, open, booted, skip, before
    text: str
    options: dict[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass
class Document:
    nodes: dict[str, str]
    blocks: list[Block]
    shown: int


def parse_mark(line: int, text: str) -> Block:
    kind, _, rest = text.partition(" ")
    if kind == "skip":
        if len(rest.split()) < 3:
            raise MarkError(f"{line}: a skipped block needs its reason")
        return Block(line, kind, "", {}, rest)
    words = shlex.split(rest)
    options = {k: v or "yes" for k, _, v in (w.partition("=") for w in words)}
    allowed = {
        "run": {"on", "until", "keep", "status", "needs", "way"},
        "booted": {"on", "status", "says"},
        "before": {"on", "needs"},
        "nodes": None,
    }
    if kind == "open" and len(words) == 2 and "from" in options:
        return Block(line, kind, "", {"on": words[0], "from": options["from"]})
    if kind not in allowed or allowed[kind] is not None and not set(options) <= allowed[kind]:
        raise MarkError(f'{line}: "{text}" is no mark that this test knows')
    if options.get("way", "build") not in ("build", "release"):
        raise MarkError(f"{line}: a way is build or release")
    if kind in ("run", "booted", "before") and "on" not in options:
        raise MarkError(f"{line}: on which node?")
    return Block(line, kind, "", options)


def parse(text: str) -> Document:
    document = Document({}, [], 0)
    mark: Block | None = None
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if found := MARK.match(line):
            if mark is not None:
                raise MarkError(f"{mark.line}: no block follows this mark")
            mark = parse_mark(number, found[1])
            if mark.kind == "nodes":
                document.nodes, mark = mark.options, None
            elif mark.kind == "before":
                end = lines.index("-->", at)
                mark.text = "\n".join(lines[at:end])
                document.blocks.append(mark)
                mark, at = None, end + 1
        elif fence := FENCE.match(line):
            end = next((i for i in range(at, len(lines)) if lines[i].strip() == fence[1]), None)
            if end is None:
                raise MarkError(f"{number}: this block has no end")
            content, at = "\n".join(lines[at:end]), end + 1
            add_block(document, mark, number, fence[2], content)
            mark = None
        elif line.strip() and mark is not None:
            raise MarkError(f"{mark.line}: no block follows this mark")
    if mark is not None:
        raise MarkError(f"{mark.line}: no block follows this mark")
    return document


def add_block(document: Document, mark: Block | None, line: int, language: str, text: str) -> None:
    if language in SHOWN:
        if mark is not None:
            raise MarkError(f"{line}: a mark before a block of {language}")
        if language == "text" and any(COMMAND.match(t) for t in text.splitlines()):
            raise MarkError(f"{line}: a block of text with a command in it; call it sh")
        document.shown += 1
        return
    if language != "sh":
        raise MarkError(f'{line}: a block in "{language}"; say sh, or one of {sorted(SHOWN)}')
    if mark is None:
        raise MarkError(f"{line}: this block has no mark, so nobody runs it")
    mark.text = text
    document.blocks.append(mark)


# ---- running -------------------------------------------------------------------------------------


class Terminal:
    """A terminal with a shell, which keeps its directory, variables and jobs between blocks."""

    def __init__(
        self, scratch: pathlib.Path, command: list[str], cwd: pathlib.Path, environment: dict
    ):
        self.busy: Block | None = None  # does not end by itself, and runs
        self._scratch = scratch
        self._seen = ""
        self._count = 0
        self._shell = 0  # the innermost one
        self._end = ""  # what the running block's end will print
        self._others: set[int] = set()  # the shell's children when the block began
        self._process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.type("set -e -o pipefail")

    def type(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader of its output finds that out
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def start(self, text: str, strict: bool = True) -> str:
        """Begins a block; its end is the returned pattern, and then the exit status. `strict`: the
        shell ends with the first command that fails, so a failure is never passed over."""
        self._count += 1
        end = f"--end {id(self)}/{self._count}--"
        file, pid = (
            self._scratch / f"{id(self)}-{self._count}.sh",
            self._scratch / f"{id(self)}.pid",
        )
        file.write_text(f"{text}\n", "utf-8")
        self._seen = ""
        pid.unlink(missing_ok=True)
        loose, again = ("", "") if strict else ("set +e; ", "; set -e")
        self.type(
            f"echo $$ >{pid}.new; mv {pid}.new {pid}; {loose}. {file} </dev/null{again}\n"
            f'echo "{end}$?"'
        )
        limit = time.monotonic() + BLOCK_LIMIT_S
        while not pid.exists():  # the shell's own pid, for Ctrl-C
            if self._process.poll() is not None or time.monotonic() > limit:
                raise AssertionError("the terminal's shell has ended before this block")
            time.sleep(0.01)
        self._shell = int(pid.read_text())
        return end

    def children(self) -> set[int]:
        path = pathlib.Path(f"/proc/{self._shell}/task/{self._shell}/children")
        return {int(pid) for pid in path.read_text().split()} if path.exists() else set()

    def read_until(self, pattern: str) -> re.Match[str]:
        limit = time.monotonic() + BLOCK_LIMIT_S
        out = self._process.stdout.fileno()
        while not (found := re.search(pattern, self._seen)):
            if not select.select([out], [], [], max(0.0, limit - time.monotonic()))[0]:
                raise AssertionError(f'"{pattern}" did not come within {BLOCK_LIMIT_S} s')
            more = os.read(out, 1 << 16).decode("utf-8", "replace")
            if not more:
                raise AssertionError(
                    f"a command failed, so the shell ended ({self._process.wait()})"
                )
            self._seen += more
            for line in more.splitlines():
                if not line.startswith("--end "):
                    print(f"    {line}", flush=True)
        return found

    def run(self, block: Block) -> None:
        self._others = self.children()
        wanted = block.options.get("status", "0").split("|")
        self._end = self.start(block.text, wanted == ["0"] and "until" not in block.options)
        if "until" in block.options:
            self.busy = block
            if "keep" in block.options:
                self.read_until(block.options["until"])
            return
        status = self.read_until(re.escape(self._end) + r"(\d+)\n")[1]
        if status not in wanted:
            raise AssertionError(f"the block ended with {status}")

    def finish(self) -> None:
        """What did not end by itself has printed what it must; Ctrl-C."""
        block = self.busy
        self.read_until(block.options["until"])
        for pid in self.children() - self._others:
            os.kill(pid, signal.SIGINT)
        self.read_until(re.escape(self._end))
        self.busy = None


class Reader:
    """Somebody who reads a document and types what it says, in namespaces of the document's own."""

    def __init__(self, document: Document, scratch: pathlib.Path):
        self._document = document
        self._scratch = scratch
        self._terminals: dict[str, list[Terminal]] = {}
        self.ran = 0
        self.skipped: list[str] = []
        self._home = scratch / "home"
        self._home.mkdir()
        self._project = scratch / "project"
        self._make_project()
        self._make_nodes()

    def _make_project(self) -> None:
        """The project's directory as the reader has it: the sources, and build/release."""
        self._project.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in ("build", ".git", "keys", "checkpoints"):
                (self._project / entry.name).symlink_to(entry)
        (self._project / "build").mkdir()
        release = pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"]).parent
        (self._project / "build" / "release").symlink_to(release)

    def _make_nodes(self) -> None:
        names = list(self._document.nodes)
        for name in names:
            check("ip", "netns", "add", name)
        if len(names) == 2:
            check("ip", "link", "add", "dw0", "netns", names[0], "type", "veth", "peer", "name",
                  "dw0", "netns", names[1])  # fmt: skip
        for name, address in self._document.nodes.items():
            check("ip", "-n", name, "address", "add", f"{address}/24", "dev", "dw0")
            check("ip", "-n", name, "link", "set", "dw0", "up")
            check("ip", "-n", name, "link", "set", "lo", "up")

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in ("LANG", "LC_ALL", "TERM")}
        path = os.environ["PATH"]
        if trainer := os.environ.get("DELTAWIRE_TRAINER_PYTHON"):
            path = f"{pathlib.Path(trainer).parent}:{path}"
        if self._document.nodes:  # where a document has nodes, deltawire is installed on them
            path = f"{os.environ['DELTAWIRE_BIN_DIR']}:{path}"
            kept["PYTHONPATH"] = str(self._project / "build" / "release" / "python")
        return {**kept, "PATH": path, "HOME": str(self._home), "PYTHONDONTWRITEBYTECODE": "1"}

    def _new_terminal(self, node: str) -> Terminal:
        where = ["ip", "netns", "exec", node] if node in self._document.nodes else []
        return Terminal(self._scratch, [*where, "bash"], self._project, self._environment())

    def _terminal(self, node: str, until: bool) -> Terminal:
        terminals = self._terminals.setdefault(node, [])
        for terminal in terminals:
            if terminal.busy is None:
                return terminal
            if "keep" not in terminal.busy.options and not until:
                terminal.finish()
                return terminal
        if terminals and node not in self._document.nodes:
            raise AssertionError(
                f"the terminal on {node} is busy with line {terminals[0].busy.line}"
            )
        if node not in self._document.nodes and node != "machine":
            raise AssertionError(f"no terminal is open on {node}")
        terminals.append(self._new_terminal(node))
        return terminals[-1]

    def _open(self, block: Block) -> None:
        """The block's last command is a shell, which reads from then on what is typed."""
        new = block.options["from"] == "new"
        terminal = (
            self._new_terminal("machine") if new else self._terminal(block.options["from"], False)
        )
        *first, last = block.text.splitlines()
        if first:
            terminal.run(Block(block.line, "run", "\n".join(first)))
        terminal.type(last)
        terminal.type("set -e -o pipefail")
        self._terminals[block.options["on"]] = [terminal]

    def read(self) -> None:
        for block in self._document.blocks:
            why = block.why
            if block.options.get("needs") == "torch" and not os.environ.get(
                "DELTAWIRE_TRAINER_PYTHON"
            ):
                why = "no torch here (DELTAWIRE_TRAINER_PYTHON)"
            if block.options.get("way", WAY) != WAY:
                why = f"the way by a {block.options['way']}, and this is the other"
            if block.kind in ("skip", "booted") or why:
                self.skipped.append(f"line {block.line}: {why}")
                continue
            print(f"  line {block.line}, {block.options['on']}", flush=True)
            try:
                if block.kind == "open":
                    self._open(block)
                else:
                    self._terminal(block.options["on"], "until" in block.options).run(block)
            except AssertionError as error:
                raise AssertionError(f"line {block.line}: {error}\n{block.text}") from None
            self.ran += block.kind != "before"
        for terminals in self._terminals.values():
            for terminal in terminals:
                if terminal.busy is not None and "keep" not in terminal.busy.options:
                    terminal.finish()


def check(*command: str) -> None:
    subprocess.run(command, check=True)


# ---- the test ------------------------------------------------------------------------------------


class MarkTest(unittest.TestCase):
    """What the reading of marks must find and what it must let pass."""

    def test_violations(self):
        run = "<!-- test: run on=a -->"
        for text in (
            "```sh\ndeltawire status\n```",
            "```\ndeltawire status\n```",
            "```console\n$ ls\n```",
            "```text\ndeltawire status\n```",
            f"{run}\n```python\nx = 1\n```",
            f"{run}\nwords\n```sh\nls\n```",
            f"{run}\n{run}\n```sh\nls\n```",
            f"{run}\n",
            f"{run}\n```sh\nls\n",
            "<!-- test: skip -->\n```sh\nls\n```",
            "<!-- test: skip cannot -->\n```sh\nls\n```",
            "<!-- test: run -->\n```sh\nls\n```",
            "<!-- test: run on=a sometimes -->\n```sh\nls\n```",
            "<!-- test: walk on=a -->\n```sh\nls\n```",
            "<!-- test: booted -->\n```sh\nls\n```",
            "<!-- test: booted on=a keep -->\n```sh\nls\n```",
            "<!-- test: run on=a way=other -->\n```sh\nls\n```",
        ):
            with self.subTest(text), self.assertRaises(MarkError):
                parse(text)

    def test_allowed(self):
        found = parse(
            "<!-- test: nodes a=10.0.0.1 b=10.0.0.2 -->\n"
            "<!-- test: before on=a\nmkdir x\n-->\nWords.\n"
            '<!-- test: run on=a until="b c" -->\n```sh\nls\n```\n'
            "<!-- test: skip there is no GPU here -->\n```sh\nnvidia-smi\n```\n"
            "<!-- test: open b from=new -->\n\n```sh\nbash\n```\n"
            '<!-- test: booted on=a status=3 says="x y" -->\n```sh\nsystemctl\n```\n'
            "```text\nOutput: deltawire status\n```\n```python\nx = 1\n```\n"
        )
        self.assertEqual([b.kind for b in found.blocks], ["before", "run", "skip", "open", "booted"])
        self.assertEqual(found.nodes, {"a": "10.0.0.1", "b": "10.0.0.2"})
        self.assertEqual(found.blocks[1].options, {"on": "a", "until": "b c"})
        self.assertEqual(found.blocks[4].options, {"on": "a", "status": "3", "says": "x y"})
        self.assertEqual((found.blocks[0].text, found.blocks[2].text), ("mkdir x", "nvidia-smi"))
        self.assertEqual(found.shown, 2)


def documents() -> list[pathlib.Path]:
    return [
        ROOT / "README.md",
        ROOT / "docs" / "tutorial.md",
        *sorted((ROOT / "docs" / "howto").glob("*.md")),
    ]


def list_blocks() -> int:
    """All documents' marks; 1 where one is missing."""
    totals = {"run": 0, "open": 0, "booted": 0, "skip": 0}
    wrong = 0
    for path in documents():
        try:
            document = parse(path.read_text("utf-8"))
        except MarkError as error:
            print(f"{path.relative_to(ROOT)}:{error}")
            wrong += 1
            continue
        name = str(path.relative_to(ROOT))
        for block in document.blocks:
            if block.kind in totals:
                totals[block.kind] += 1
            if block.kind == ("run" if name in BOOTED else "booted"):
                print(f"{name}:{block.line}: {block.kind}: nobody would run it (BOOTED)")
                wrong += 1
            if block.kind == "skip":
                print(f"{name}:{block.line}: not run: {block.why}")
    print(f"{len(documents())} documents: {totals['run'] + totals['open']} blocks are run, "
          f"{totals['booted']} more in machines that boot, {totals['skip']} are not")  # fmt: skip
    return 1 if wrong or totals["run"] < 20 else 0


def read_inside(path: pathlib.Path) -> int:
    """In namespaces of our own, without the machine's network, /dev/shm and processes."""
    check("mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", "/dev/shm")
    os.makedirs("/run/netns", exist_ok=True)
    check("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    check("ip", "link", "set", "lo", "up")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deltawire-commands-") as folder:
        reader = Reader(parse(path.read_text("utf-8")), pathlib.Path(folder))
        try:
            reader.read()
        except AssertionError as error:
            print(f"{path.relative_to(ROOT)}: {error}", flush=True)
            for log in sorted(pathlib.Path(folder).rglob("*.log")):
                print(f"--- {log.name}\n{log.read_text('utf-8', 'replace')}")
            return 1
        for line in reader.skipped:
            print(f"not run: {path.relative_to(ROOT)}, {line}")
        print(f"{path.relative_to(ROOT)}: {reader.ran} blocks run, {len(reader.skipped)} not run, "
              f"in {time.monotonic() - started:.1f} s", flush=True)  # fmt: skip
    if reader.ran == 0:
        print(f"SKIPPED: no block of {path.relative_to(ROOT)} can run here")
    return 0


def main() -> int:
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if sys.argv[1:2] == ["--inside"]:
        return read_inside(pathlib.Path(sys.argv[2]))
    if sys.argv[1] == "--all":
        result = unittest.main(argv=sys.argv[:1], exit=False).result
        return list_blocks() if result.wasSuccessful() else 1
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        print("SKIPPED: no unshare or no ip on this machine")
        return 0
    probe = subprocess.run(
        [*unshare, "sh", "-ec", PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        print(f"SKIPPED: no namespaces of our own here: {probe.stderr.strip()}")
        return 0
    command = [*unshare, sys.executable, "-B", __file__, "--inside", str(ROOT / sys.argv[1])]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
