"""Prints deltawire/_answers.py: the daemons' answers as classes, from the messages in proto/.

    python3 python/make_answers.py > python/deltawire/_answers.py

The test `python: directing daemons` compares.
"""

from __future__ import annotations

import pathlib
import re

PROTO = pathlib.Path(__file__).resolve().parents[1] / "proto" / "deltawire" / "v1"
#: The messages of the methods in deltawire/control.py. The messages in them are added.
ROOTS = ("SenderStatusResponse", "ReceiverInfo", "SyncProgress", "WaitCommittedUpdate",
         "VersionInfo", "UnregisterModelResponse", "ReceiverStatusResponse", "SyncUpdate",
         "VerifyResponse", "CommitInfo", "ServedInfo")
# 64-bit hashes are hexadecimal text in the answers.
PLAIN = {"string": ("str", '""'), "fixed64": ("str", '""'), "bool": ("bool", "False"),
         "double": ("float", "0.0"), "float": ("float", "0.0"), "uint32": ("int", "0"),
         "uint64": ("int", "0"), "int32": ("int", "0"), "int64": ("int", "0")}

HEAD = '''"""The daemons' answers as classes; made by python/make_answers.py from proto/deltawire/v1.

Each has the fields of the message of its name there, which says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltawire._answer import Answer'''


def messages() -> dict[str, list[tuple[bool, str, str]]]:
    """Returns the fields (repeated, type, name) of each message, by its name."""
    found = {}
    for path in sorted(PROTO.glob("*.proto")):
        text = re.sub(r"//[^\n]*", "", path.read_text("utf-8"))
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            found[name] = [(bool(repeated), kind, field) for repeated, kind, field in re.findall(
                r"^  (repeated )?([\w.]+) (\w+) = \d+[^;]*;", body, re.MULTILINE)]
    return found


def made() -> str:
    known, order = messages(), list[str]()

    def add(name: str) -> None:
        for _, kind, _ in known[name]:
            if kind in known:
                add(kind)
        if name not in order:
            order.append(name)

    for name in ROOTS:
        add(name)
    lines = [HEAD]
    for name in order:
        lines += ["", "", "@dataclass(frozen=True, eq=False)", f"class {name}(Answer):"]
        for repeated, kind, field in known[name]:
            of, default = PLAIN.get(kind, (kind, f"{kind}()"))
            lines.append(f"    {field}: tuple[{of}, ...] = ()" if repeated
                         else f"    {field}: {of} = {default}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(made(), end="")
