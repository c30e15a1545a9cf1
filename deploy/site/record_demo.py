"""Records a run of the demo on a terminal as an SVG picture.

    record_demo.py DELTAWIRE FILE.svg [ARGUMENT of the demo...]

Lines appear when they appeared in the run, but none sooner than LEAST_S after the one before, so
that they can be followed. A viewer without animations shows all of them.
"""

from __future__ import annotations

import html
import os
import pathlib
import pty
import re
import subprocess
import sys
import textwrap
import time

COLUMNS = 100
LEAST_S = 0.25
LIMIT_S = 600
CHAR, LINE, MARGIN, BAR = 8.4, 19.0, 16.0, 30.0
YES = re.compile(r"  yes$")
STYLE = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dae0;
white-space:pre}
.p{fill:#7ec699}.h{fill:#fff;font-weight:bold}.y{fill:#7ec699}
@keyframes a{from{opacity:0}to{opacity:1}}
@media (prefers-reduced-motion:no-preference){g{animation:a .05s both}}
"""


def record(command: list[str]) -> list[tuple[float, str]]:
    """What stays on the terminal: lines, each with its time. What was overwritten goes."""
    ours, its = pty.openpty()
    started = time.monotonic()
    env = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=env)
    os.close(its)
    lines: list[tuple[float, str]] = []
    rest = b""
    while time.monotonic() - started < LIMIT_S:
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # EIO: the run has ended
            break
        *whole, rest = (rest + more).split(b"\n")
        now = time.monotonic() - started
        for line in whole:
            text = line.decode("utf-8").rstrip("\r")
            # "\r\x1b[K" begins the line anew: only what follows the last one stays.
            text = text.rsplit("\r", 1)[-1].replace("\x1b[K", "")
            lines.append((now, text))
    if child.wait(10) != 0 or not lines:
        sys.exit(f"{command} failed: {lines}")
    return lines


def broken(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Lines that are too long for the picture, broken at spaces."""
    out = []
    for at, text in lines:
        parts = (
            textwrap.wrap(text, COLUMNS, subsequent_indent="  ") if len(text) > COLUMNS else [text]
        )
        out += [(at, part) for part in parts]
    return out


def row(number: int, delay: float, text: str) -> str:
    y = BAR + MARGIN + LINE * number
    if not text.strip():
        return ""
    kind = (
        ' class="p"'
        if text.startswith("$ ")
        else ' class="h"'
        if text.startswith("version ")
        else ""
    )
    said = html.escape(text)
    if YES.search(text):
        said = said[: -len("yes")] + '<tspan class="y">yes</tspan>'
    length = f"{CHAR * len(text):.1f}"
    return (f'<g style="animation-delay:{delay:.2f}s"><text{kind} x="{MARGIN:.0f}" y="{y:.0f}" '
            f'textLength="{length}" xml:space="preserve">{said}</text></g>\n')  # fmt: skip


def picture(command: str, lines: list[tuple[float, str]]) -> str:
    rows, delay, before = [row(0, 0.0, f"$ {command}")], 0.5, 0.0
    for number, (at, text) in enumerate(lines, 1):
        rows.append(row(number, delay, text))
        step = max(LEAST_S if text.strip() else 0.0, at - before)
        delay, before = delay + step, at
    width = 2 * MARGIN + CHAR * COLUMNS
    height = BAR + 2 * MARGIN + LINE * len(lines)
    dots = "".join(f'<circle cx="{20 + 18 * i}" cy="16" r="5.5" fill="{c}"/>'
                   for i, c in enumerate(("#e0655b", "#e5b84d", "#68b957")))  # fmt: skip
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">'
        f"<title>{html.escape(command)}</title>\n"
        f"<style>{STYLE}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#1e2127"/>{dots}\n{"".join(rows)}</svg>\n'
    )


def main() -> None:
    tool, file, *arguments = sys.argv[1:]
    lines = broken(record([tool, "demo", *arguments]))
    text = picture(" ".join(["./run demo", *arguments]), lines)
    pathlib.Path(file).write_text(text, "utf-8")
    print(f"{file}: {len(lines)} lines, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
