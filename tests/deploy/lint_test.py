"""deploy/ by other people's linters: lint_test.py shellcheck|yamllint|hadolint

A linter that is not here is skipped and said to be.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
DEPLOY = HERE.parents[2] / "deploy"
sys.path.insert(0, str(HERE.parents[1] / "support"))

import skipping  # noqa: E402


def tool(name: str) -> str:
    """From this Python's environment (tests/deploy/requirements.txt), or the machine's."""
    beside = pathlib.Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        skipping.leave(f"no {name} on this machine")
    return found


def is_script(path: pathlib.Path) -> bool:
    return path.is_file() and path.read_bytes()[:2] == b"#!" and b"sh" in path.read_bytes()[:32]


def command(name: str) -> list[str]:
    if name == "yamllint":
        return ["--strict", "-c", str(DEPLOY / ".yamllint.yaml"), str(DEPLOY),
                str(DEPLOY.parent / "mkdocs.yml")]  # fmt: skip
    if name == "hadolint":
        return ["--no-color", "--failure-threshold", "style",
                str(DEPLOY / "containers" / "Containerfile")]  # fmt: skip
    if name == "shellcheck":
        # Debian's maintainer scripts are templates; lintian reads what becomes of them.
        scripts = [str(p) for p in sorted(DEPLOY.rglob("*")) if is_script(p) and p.suffix != ".in"]
        assert len(scripts) >= 4, scripts
        return scripts
    sys.exit(f"there is no linter {name} here")


def main() -> None:
    name = sys.argv[1]
    sys.exit(subprocess.run([tool(name), *command(name)], check=False).returncode)


if __name__ == "__main__":
    main()
