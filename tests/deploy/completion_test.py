"""Shell completions, each in its shell: subcommands, options of a subcommand, options of a daemon."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
COMPLETION = ROOT / "deploy" / "completion"
BIN = os.environ["DELTAWIRE_BIN_DIR"]
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402

BASH = """
source "$1"; shift
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_deltawire
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh's completion runs inside of its line editor only, so its functions are replaced by ones that
# print what they are given.
ZSH = """
file=$1; shift
words=("$@") CURRENT=$#
_describe() { print -l -- ${${(P)2}%%:*} }
compadd() { print -l -- ${(P)2} }
_files() { :; }
function complete_it() { source $file }
complete_it
"""


def run(shell: str, *command: str) -> set[str]:
    if shutil.which(shell) is None:
        raise unittest.SkipTest(f"no {shell} on this machine")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [shell, *command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return {line.split("\t")[0] for line in done.stdout.split("\n") if line}


def bash(*words: str) -> set[str]:
    return run("bash", "-c", BASH, "bash", str(COMPLETION / "deltawire.bash"), *words)


def zsh(*words: str) -> set[str]:
    found = run("zsh", "-fc", ZSH, "zsh", str(COMPLETION / "_deltawire"), *words)
    return {word for word in found if word.startswith(words[-1])}


def fish(*words: str) -> set[str]:
    script = f"source {COMPLETION / 'deltawire.fish'}; complete -C \"{' '.join(words)}\""
    return run("fish", "--no-config", "-c", script)


class Shell(unittest.TestCase):
    def check(self, complete):
        self.assertEqual(complete("deltawire", "p"), {"pause", "plan", "publish"})
        self.assertEqual(complete("deltawire", "wait", "--serv"), {"--served"})
        self.assertEqual(complete("deltawire", "help", "p"), {"pause", "plan", "publish"})
        self.assertEqual(complete("deltawire", "completion", "z"), {"zsh"})
        options = complete("deltawire-receiver", "--")
        self.assertLessEqual({"--follow", "--no-follow", "--model", "--engine"}, options)
        self.assertEqual(complete("deltawire-sender", "--bulk-l"), {"--bulk-listen"})


class Bash(Shell):
    def test_it_completes(self):
        self.check(bash)


class Zsh(Shell):
    def test_it_completes(self):
        self.check(zsh)


class Fish(Shell):
    def test_it_completes(self):
        self.check(fish)


class Printed(unittest.TestCase):
    """`deltawire completion SHELL`, for tarballs and wheels."""

    def test_the_tool_prints_the_scripts(self):
        for shell, file in (("bash", "deltawire.bash"), ("zsh", "_deltawire"), ("fish", "deltawire.fish")):
            with self.subTest(shell):
                said = subprocess.run([f"{BIN}/deltawire", "completion", shell], capture_output=True,
                                      check=True)  # fmt: skip
                self.assertEqual(said.stdout, (COMPLETION / file).read_bytes())


class ManualPages(unittest.TestCase):
    """What `./run package` makes manual pages of."""

    def test_every_command_has_a_page(self):
        said = subprocess.run([f"{BIN}/deltawire", "--help"], capture_output=True, text=True, check=True)
        listed = said.stdout.partition("Subcommands:\n")[2].partition("\n\n")[0]
        commands = re.findall(r"^  ([a-z][a-z-]+) ", listed, re.MULTILINE)
        self.assertGreater(len(commands), 15)
        text = (ROOT / "cmake" / "DeltawirePackages.cmake").read_text()
        self.assertEqual(re.search(r"foreach\(command ([^)]*)\)", text)[1].split(), commands)

    def test_a_page_that_cannot_be_made_is_no_empty_one(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "page.1.gz")
            done = subprocess.run(["sh", ROOT / "deploy" / "debian" / "manual.sh", "false", page, "program",
                                   "page", "1", "0.1.0", "what it does"], check=False)  # fmt: skip
            self.assertNotEqual(done.returncode, 0)
            self.assertFalse(page.exists())


if __name__ == "__main__":
    skipping.main()
