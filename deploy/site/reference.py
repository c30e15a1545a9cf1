"""Reference pages that are made from what they are about, while the site is built: options from
`--help`, metrics from a scrape of a running pair, the API from the comments of the .proto files.

    reference.py FOLDER     writes the pages there (DELTAWIRE_BIN_DIR names the programs)
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

from scrapes import scrape_pair  # noqa: E402

# ---- options -------------------------------------------------------------------------------------

SECTION = re.compile(r"^(\S.*):$")
ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
FURTHER = re.compile(r"^ {12,}(\S.*)$")


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True)
    return done.stdout


def sections(text: str) -> dict[str, list[list[str]]]:
    """What a `--help` lists: of each section the entries, as [entry, description]."""
    found: dict[str, list[list[str]]] = {}
    entries: list[list[str]] | None = None
    for line in text.splitlines():
        if heading := SECTION.match(line):
            entries = found.setdefault(heading[1], [])
        elif entries is not None and (more := FURTHER.match(line)) and entries:
            entries[-1][1] = f"{entries[-1][1]} {more[1]}".strip()
        elif entries is not None and (entry := ENTRY.match(line)):
            entries.append([entry[1], entry[2] or ""])
        elif line.strip():
            entries = None
    return found


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def option_tables(help_text: str, level: str) -> str:
    out = []
    for name, entries in sections(help_text).items():
        if name in ("Subcommands", "Exit codes"):
            continue
        rows = [[f"`{entry}`", cell(said)] for entry, said in entries if "--help" not in entry]
        if rows:
            out += [f"{level} {name}\n", table(["option", "what for"], rows)]
    if not out:
        raise RuntimeError(f"no options are found in this help:\n{help_text}")
    return "\n".join(out)


def daemon_page(root: pathlib.Path, programs: pathlib.Path, side: str) -> str:
    said = run(programs / f"deltawire-{side}", "--help")
    sample = (root / "configs" / f"{side}.toml").read_text("utf-8")
    return (
        f"# Options of deltawire-{side}\n\n{said.splitlines()[0]}\n\n"
        "Each option can also stand in a TOML file (`--config`), by its long name without the "
        "dashes. The command line overrides the file. In square brackets: the default.\n\n"
        f"{option_tables(said, '##')}\n## The sample file\n\n```toml\n{sample}```\n"
    )


def tool_page(programs: pathlib.Path) -> str:
    tool = programs / "deltawire"
    whole = run(tool, "--help")
    codes = whole[whole.index("Exit codes:") : whole.index("With --json, ")].strip()
    out = [f"# The command line\n\n{whole.splitlines()[0]}\n\n```text\n{codes}\n```\n"]
    for name, _ in sections(whole)["Subcommands"]:
        said = run(tool, name, "--help")
        usage = next(line for line in said.splitlines() if line.startswith("Usage: "))
        tables = option_tables(said, "###").replace("### Options", "").replace(
            "### Positionals", "")  # fmt: skip
        out.append(f"## {name}\n\n{said.splitlines()[0]}\n\n"
                   f"```text\n{usage.removeprefix('Usage: ')}\n```\n\n{tables}\n")  # fmt: skip
    return "\n".join(out)


# ---- metrics -------------------------------------------------------------------------------------


HISTOGRAM_SERIES = re.compile(r"_(bucket|sum|count)$")


def metric_rows(text: str) -> list[list[str]]:
    helps, kinds, labels = {}, {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            helps[name] = said
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
        elif series := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            names = re.findall(r'(\w+)="', series[2] or "")
            family = HISTOGRAM_SERIES.sub("", series[1])
            if kinds.get(family) != "histogram":
                family = series[1]
            labels.setdefault(family, [n for n in names if n != "le"])  # the buckets' own
    rows = [[f"`{n}`", kinds[n], ", ".join(f"`{x}`" for x in labels.get(n, [])), cell(helps[n])]
            for n in helps if n.startswith("deltawire_")]  # fmt: skip
    if len(rows) < 10:
        raise RuntimeError(f"a scrape with too few metrics:\n{text}")
    return rows


def metrics_page(programs: pathlib.Path) -> str:
    out = ["# Metrics\n", "`--metrics-listen HOST:PORT` makes a daemon answer Prometheus at "
           "`/metrics`. [Alerts and a dashboard](../operations.md#metrics-and-alerts) go by these "
           "names.\n"]  # fmt: skip
    for side, text in scrape_pair(programs).items():
        out += [
            f"## {side.capitalize()}\n",
            table(["name", "kind", "labels", "what"], metric_rows(text)),
        ]
    return "\n".join(out)


# ---- API -----------------------------------------------------------------------------------------

API = {
    "api_sender.md": ("sender.proto", "The sender: receivers and orchestrators"),
    "api_receiver.md": ("receiver.proto", "The receiver"),
    "api_trainer.md": ("trainer.proto", "The sender: trainers"),
    "api_common.md": ("common.proto", "Messages that the services share"),
}
SERVICE, MESSAGE, ENUM = 6, 4, 5  # numbers of FileDescriptorProto's fields, for source paths
TYPES = {
    v: k.removeprefix("TYPE_").lower() for k, v in descriptor_pb2.FieldDescriptorProto.Type.items()
}


class Source:
    """One .proto file with its comments."""

    def __init__(self, file):
        self.file = file
        self._said = {tuple(loc.path): loc for loc in file.source_code_info.location}

    def said(self, *path: int) -> str:
        """The comment above an element, or behind it, as one paragraph each."""
        found = self._said.get(path)
        if found is None:
            return ""
        text = found.leading_comments + found.trailing_comments
        return re.sub(
            r"(?<!\n)\n(?!\n)", " ", "\n".join(x.strip() for x in text.split("\n"))
        ).strip()

    def head(self) -> str:
        """The comment at the head of the file, which belongs to `syntax`."""
        return self.said(12)


def roles_of(method, options_class) -> list[str]:
    options = options_class.FromString(method.options.SerializeToString())
    for field, value in options.ListFields():
        if field.full_name == "deltawire.v1.allow":
            names = field.enum_type.values_by_number
            return [names[v].name.lower() for v in value]
    return []


def type_of(field) -> str:
    name = field.type_name.removeprefix(".deltawire.v1.").removeprefix(".")
    text = f"`{name or TYPES[field.type]}`"
    return f"repeated {text}" if field.label == field.LABEL_REPEATED else text


def api_page(source: Source, title: str, options_class) -> str:
    out = [f"# {title}\n", f"`{source.file.name}`\n", source.head() + "\n"]
    for s, service in enumerate(source.file.service):
        out += [f"## {service.name}\n", source.said(SERVICE, s) + "\n"]
        for m, method in enumerate(service.method):
            stream = "stream of " if method.server_streaming else ""
            roles = roles_of(method, options_class)
            if not roles:
                raise RuntimeError(f"{method.name} names no roles")
            asked, answered = (
                t.rpartition(".")[2] for t in (method.input_type, method.output_type)
            )
            out += [
                f"### {service.name}.{method.name}\n", cell(source.said(SERVICE, s, 2, m)) + "\n",
                f"* Request: `{asked}`\n* Answer: {stream}`{answered}`\n"
                f"* Roles that may call it: {', '.join(roles)}\n",
            ]  # fmt: skip
    if source.file.message_type:
        out.append("## Messages\n")
    for i, message in enumerate(source.file.message_type):
        out += [f"### {message.name}\n", cell(source.said(MESSAGE, i)) + "\n"]
        rows = [
            [f"`{f.name}`", str(f.number), type_of(f), cell(source.said(MESSAGE, i, 2, n))]
            for n, f in enumerate(message.field)
        ]
        out.append(table(["field", "number", "type", "meaning"], rows) if rows else "No fields.\n")
    for i, enum in enumerate(source.file.enum_type):
        out += [f"### {enum.name}\n", cell(source.said(ENUM, i)) + "\n"]
        rows = [[f"`{v.name}`", str(v.number), cell(source.said(ENUM, i, 2, n))]
                for n, v in enumerate(enum.value)]  # fmt: skip
        out.append(table(["value", "number", "meaning"], rows))
    return "\n".join(out)


def api_pages(root: pathlib.Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as at:
        out = pathlib.Path(at) / "set"
        names = [f"proto/deltawire/v1/{name}" for name, _ in API.values()]
        subprocess.run(["protoc", f"-I{root}", "--include_imports", "--include_source_info",
                        f"--descriptor_set_out={out}", *names], check=True, cwd=root)  # fmt: skip
        content = out.read_bytes()
    every = descriptor_pb2.FileDescriptorSet.FromString(content)
    pool = descriptor_pool.DescriptorPool()
    for file in every.file:
        pool.Add(file)
    options = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("google.protobuf.MethodOptions")
    )
    message_factory.GetMessageClassesForFiles([file.name for file in every.file], pool)
    sources = {file.name: Source(file) for file in every.file}
    return {page: api_page(sources[f"proto/deltawire/v1/{name}"], title, options)
            for page, (name, title) in API.items()}  # fmt: skip


def all_pages(root: pathlib.Path, programs: pathlib.Path) -> dict[str, str]:
    return {
        "sender.md": daemon_page(root, programs, "sender"),
        "receiver.md": daemon_page(root, programs, "receiver"),
        "deltawire.md": tool_page(programs),
        "metrics.md": metrics_page(programs),
        **api_pages(root),
    }


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[2]
    for page, text in all_pages(here, pathlib.Path(os.environ["DELTAWIRE_BIN_DIR"])).items():
        (pathlib.Path(sys.argv[1]) / page).write_text(text, "utf-8")
