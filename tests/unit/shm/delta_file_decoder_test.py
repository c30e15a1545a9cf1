"""The golden delta file, and the document's dump of it, by a reader written from the document.

    delta_file_decoder_test.py ROOT
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root / "tests" / "support"))
import delta_file_decoder as decoder  # noqa: E402

golden = (root / "tests" / "golden" / "delta_file_v1.bin").read_bytes()
text = (root / "docs" / "delta_file.md").read_text("utf-8")
dump = re.findall(r"^([0-9a-f]{3})  ((?:[0-9a-f]{2} ?)+)$", text, re.MULTILINE)
assert bytes.fromhex("".join(row for _, row in dump)) == golden, "the document's dump is another"

file = decoder.read(golden)
assert (file.seed, file.chunks) == (3, 9)
assert (file.from_.epoch, file.from_.version, file.from_.root) == (1, 6, 7)
assert (file.to.epoch, file.to.version, file.to.root) == (1, 8, 9)
assert [(e.chunk, e.kind, e.before, e.after, e.payload) for e in file.entries] == [
    (0, "fast", 10, 11, b"first"), (0, "fast", 11, 12, b"second one"),
    (4, "whole", 13, 14, b""), (8, "fast", 15, 16, b"3")]

for cut in range(len(golden)):
    try:
        decoder.read(golden[:cut])
    except decoder.Malformed:
        continue
    raise AssertionError(f"cut to {cut} bytes it is taken")
print("ok")
