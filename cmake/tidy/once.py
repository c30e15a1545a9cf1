"""once.py BUILD [FILE...]: writes BUILD/once/compile_commands.json, which has one command for each
source of BUILD/compile_commands.json that is not generated, also if several targets compile it, since
clang-tidy reads a source once for each command. Prints the sources, or those among FILE, each with a
NUL behind it. Fails if no target compiles a FILE."""

import json
import pathlib
import sys


def main(build: pathlib.Path, wanted: list[str]) -> None:
    commands = {}
    for command in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(command["directory"], command["file"]).resolve()
        if build.resolve() not in source.parents:
            commands.setdefault(source, command)
    (build / "once").mkdir(exist_ok=True)
    (build / "once" / "compile_commands.json").write_text(json.dumps(list(commands.values())))
    chosen = [pathlib.Path(name).resolve() for name in wanted] or sorted(commands)
    for source in chosen:
        if source not in commands:
            sys.exit(f"no target compiles {source}; headers are checked with the sources that include them")
        sys.stdout.write(f"{source}\0")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
