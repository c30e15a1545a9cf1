#!python
"""Runs the program of this script's name, which the package `deltawire` holds.

It imports nothing of the package, so that a program starts as fast as Python does.
"""

import os
import sys

name = os.path.basename(os.path.realpath(__file__))
for folder in sys.path:
    program = os.path.join(folder, "deltawire", "bin", name)
    if os.access(program, os.X_OK):
        # The demo reads its result with this Python, too.
        os.environ.setdefault("DELTAWIRE_PYTHON", sys.executable)
        os.execv(program, [program, *sys.argv[1:]])
sys.exit(f"{name}: {sys.executable} finds no deltawire/bin/{name}; install the wheel again")
