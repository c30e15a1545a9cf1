#!/usr/bin/env python3
"""Writes tests/golden/delta_v3/*/foreign*.bin: tight payloads of golden cases with parameters that
our encoders never choose and every decoder must accept.

    make_delta_foreign.py DIR

It is run once for each format version, after make_delta_golden, whose output DIR holds, inputs
included.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "unit/kernels"))
import delta_encoder as encoder
import delta_golden_test as golden


def main(argv):
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(argv[1])
    for name, depth in golden.FOREIGN:
        case = golden.Case(directory, directory, golden.entry_of(directory, name))
        payload = encoder.encode_tight(case.decode_fast(case.fast), case.old, case.width,
                                       case.entry["function"], case.past[:depth],
                                       random.Random(name + str(depth)))
        (directory / name / ("foreign%d.bin" % depth)).write_bytes(payload)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
