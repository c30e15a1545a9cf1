"""What the API promises, as lines, and whether a later API keeps it.

    compatibility.py check BASELINE     compares proto/ of this tree with the baseline
    compatibility.py renew BASELINE     writes the baseline anew: at a release, and not in between

Both take --protoc PROGRAM and --root DIRECTORY. A line is a fact: a message, a field with its
number, an RPC. Facts may come; one that is gone or differs breaks a peer, or a reader of `--json`,
that was built before. A field or a value of an enum may go if its number and its name are reserved.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
DESCRIPTOR = "google/protobuf/descriptor.proto"
LINE = re.compile(r'(\w+)(?:: (?:"(.*)"|(\S+))| (\{))|(\})')
HEADER = """\
# The API of the last release, for the test `proto: compatibility`. Made from proto/, at a release:
#   python3 tests/unit/proto/compatibility.py renew tests/golden/api_v1.txt
"""

Facts = dict[str, str]  # "field deltawire.v1.Identity 1" -> "epoch single uint64 json=epoch"


def describe(root: pathlib.Path, files: list[pathlib.Path], protoc: str) -> str:
    """The FileDescriptorSet of `files` as protobuf's text form. An error is CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, "api.bin")
        command = [protoc, f"--proto_path={root}", f"--descriptor_set_out={made}", *map(str, files)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        decode = [protoc, "--decode=google.protobuf.FileDescriptorSet", DESCRIPTOR]
        with made.open("rb") as given:
            done = subprocess.run(decode, stdin=given, check=True, capture_output=True)
    return done.stdout.decode("utf-8")


def parse(text: str) -> dict[str, list]:
    """Protobuf's text form, as far as descriptors use it: each key with its values in order."""
    stack: list[dict[str, list]] = [{}]
    for number, line in enumerate(text.splitlines(), 1):
        found = LINE.fullmatch(line.strip())
        if not found:
            raise ValueError(f"line {number} is not understood: {line}")
        key, quoted, plain, opens, closes = found.groups()
        if closes:
            stack.pop()
        elif opens:
            inner: dict[str, list] = {}
            stack[-1].setdefault(key, []).append(inner)
            stack.append(inner)
        else:
            stack[-1].setdefault(key, []).append(plain if quoted is None else quoted)
    if len(stack) != 1:
        raise ValueError("a block is not closed")
    return stack[0]


def one(tree: dict[str, list], key: str, default: str = "") -> str:
    return tree.get(key, [default])[0]


def _field(field: dict[str, list], oneofs: list[str]) -> str:
    label = one(field, "label").removeprefix("LABEL_").lower()
    explicit = one(field, "proto3_optional") == "true"
    if label == "optional" and not explicit:
        label = "single"
    kind = one(field, "type_name").lstrip(".") or one(field, "type").removeprefix("TYPE_").lower()
    text = f"{one(field, 'name')} {label} {kind} json={one(field, 'json_name')}"
    if "oneof_index" in field and not explicit:
        text += f" oneof={oneofs[int(one(field, 'oneof_index'))]}"
    return text


def _reserve(facts: Facts, name: str, tree: dict[str, list], last: int) -> None:
    """`last`: 0 where a range names its last number, 1 where it names the number after it."""
    for block in tree.get("reserved_range", []):
        facts[f"reserved {name} {one(block, 'start')} {int(one(block, 'end')) - last}"] = ""
    for reserved in tree.get("reserved_name", []):
        facts[f"reserved_name {name} {reserved}"] = ""


def _enum(facts: Facts, scope: str, enum: dict[str, list]) -> None:
    name = f"{scope}.{one(enum, 'name')}"
    facts[f"enum {name}"] = ""
    for value in enum.get("value", []):
        key = f"value {name} {one(value, 'number')}"
        facts[key] = " ".join(sorted([*facts.get(key, "").split(), one(value, "name")]))
    _reserve(facts, name, enum, 0)


def _message(facts: Facts, scope: str, message: dict[str, list]) -> None:
    name = f"{scope}.{one(message, 'name')}"
    facts[f"message {name}"] = ""
    oneofs = [one(o, "name") for o in message.get("oneof_decl", [])]
    for field in message.get("field", []):
        facts[f"field {name} {one(field, 'number')}"] = _field(field, oneofs)
    _reserve(facts, name, message, 1)
    for nested in message.get("nested_type", []):
        _message(facts, name, nested)
    for enum in message.get("enum_type", []):
        _enum(facts, name, enum)


def _service(facts: Facts, scope: str, service: dict[str, list]) -> None:
    name = f"{scope}.{one(service, 'name')}"
    facts[f"service {name}"] = ""
    for rpc in service.get("method", []):
        stream = ["stream " if one(rpc, f"{end}_streaming") == "true" else ""
                  for end in ("client", "server")]  # fmt: skip
        given, answer = (one(rpc, key).lstrip(".") for key in ("input_type", "output_type"))
        facts[f"rpc {name}.{one(rpc, 'name')}"] = (
            f"({stream[0]}{given}) returns ({stream[1]}{answer})"
        )


def facts_of(text: str) -> Facts:
    """Of a FileDescriptorSet in protobuf's text form."""
    facts: Facts = {}
    for file in parse(text).get("file", []):
        package = one(file, "package")
        facts[f"package {package}"] = ""
        for message in file.get("message_type", []):
            _message(facts, package, message)
        for enum in file.get("enum_type", []):
            _enum(facts, package, enum)
        for service in file.get("service", []):
            _service(facts, package, service)
    return facts


def facts_of_tree(root: pathlib.Path, protoc: str) -> Facts:
    return facts_of(describe(root, sorted((root / "proto").rglob("*.proto")), protoc))


def write(facts: Facts) -> str:
    lines = [f"{key} = {value}" if value else key for key, value in facts.items()]
    return HEADER + "".join(f"{line}\n" for line in lines)


def read(text: str) -> Facts:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {key: value for key, _, value in (line.partition(" = ") for line in lines)}


@dataclasses.dataclass
class Reserved:
    """What messages and enums have reserved: ranges of numbers (the last included), and names."""

    ranges: dict[str, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    names: set[tuple[str, str]] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, facts: Facts) -> Reserved:
        found = cls()
        for key in facts:
            kind, *words = key.split()
            if kind == "reserved":
                found.ranges.setdefault(words[0], []).append((int(words[1]), int(words[2])))
            elif kind == "reserved_name":
                found.names.add((words[0], words[1]))
        return found

    def covers(self, name: str, first: int, last: int) -> bool:
        """Several ranges may cover it together."""
        for low, high in sorted(self.ranges.get(name, [])):
            if low <= first:
                first = max(first, high + 1)
        return first > last


def _gone_number(key: str, value: str, reserved: Reserved) -> str:
    """Of a field or a value of an enum that is not there any more; "" if that is allowed."""
    kind, name, number = key.split()
    missing = [] if reserved.covers(name, int(number), int(number)) else [f"reserved {number};"]
    # Of a value with several names each must be kept from being used again.
    names = value.split() if kind == "value" else value.split()[:1]
    missing += [f'reserved "{n}";' for n in names if (name, n) not in reserved.names]
    if not missing:
        return ""
    return f"{kind} {name}.{names[0]} ({number}) is gone without `{' '.join(missing)}`"


def breaks(old: Facts, new: Facts) -> list[str]:
    """What an API with the facts `new` does not keep of `old`, a line each."""
    reserved = Reserved.of(new)
    packages = {key.split()[1] for key in old if key.startswith("package ") and key not in new}
    found = [f"package {p} is gone, and all that was in it" for p in sorted(packages)]
    gone = {key.split()[1] for key in old if key.split()[0] in ("message", "enum", "service")
            and key not in new}  # fmt: skip
    for key, value in old.items():
        kind, name = key.split()[:2]
        if any(name.startswith(f"{p}.") for p in packages):
            continue
        if kind == "reserved":
            first, last = map(int, key.split()[2:])
            if name not in gone and not reserved.covers(name, first, last):
                found.append(f"{name} does not reserve {first} to {last} any more")
        elif kind == "reserved_name":
            if name not in gone and (name, key.split()[2]) not in reserved.names:
                found.append(f'{name} does not reserve "{key.split()[2]}" any more')
        elif key in new and new[key] != value:
            number = f" {key.split()[2]}" if len(key.split()) > 2 else ""
            found.append(f"{kind} {name}{number} was `{value}` and is `{new[key]}`")
        elif key not in new and kind in ("field", "value"):
            if name not in gone and (line := _gone_number(key, value, reserved)):
                found.append(line)
        elif key not in new and kind != "package" and name.rpartition(".")[0] not in gone:
            found.append(f"{kind} {name} is gone")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["check", "renew"])
    parser.add_argument("baseline", type=pathlib.Path)
    parser.add_argument("--protoc", default="protoc")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    args = parser.parse_args()
    new = facts_of_tree(args.root, args.protoc)
    if args.command == "renew":
        args.baseline.write_text(write(new), "utf-8")
        print(f"{len(new)} facts in {args.baseline}")
        return 0
    old = read(args.baseline.read_text("utf-8"))
    found = breaks(old, new)
    for line in found:
        print(line)
    print(f"{len(old)} facts of the last release, {len(new.keys() - old.keys())} new ones, "
          f"{len(found)} violations")  # fmt: skip
    # A baseline that holds nothing must not pass.
    return 1 if found or not old else 0


if __name__ == "__main__":
    sys.exit(main())
