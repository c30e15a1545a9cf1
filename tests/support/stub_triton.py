#!/usr/bin/env python3
"""Makes an installed megatron-core load without triton, which is 1 GB that only a GPU would use.

megatron-core guards its imports of triton, but for one file of kernels. There this puts an object in
triton's place that takes the decorators; nothing on a CPU calls the kernels. Only for a throw-away
virtual environment.

Usage: stub_triton.py SITE_PACKAGES
"""
import pathlib
import sys

IMPORTS = "import triton\nimport triton.language as tl\n"


def main(site):
    kernels = site / "megatron/core/transformer/moe/ops/paged_stash.py"
    if (site / "triton").exists() or not kernels.exists():
        return
    text = kernels.read_text()
    kernels.write_text(text.replace(IMPORTS, "from unittest import mock\n\ntriton = tl = mock.MagicMock()\n"))


main(pathlib.Path(sys.argv[1]))
