"""The picture in README.md: what a run of the sample ends with on a terminal, as SVG.

    python bench/picture.py                       runs the label and writes docs/run.svg
    python bench/picture.py --label ckpt --columns 90 --out ckpt.svg

Needs a terminal of its own, which it makes.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = [str(Path(sys.executable).parent / "ci-tasks")]
_FONTS_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # an image loads none, and a page should not


def screen(words: list[str], env: dict[str, str]) -> str:
    """What the program prints on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*_PROGRAM, *words], env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # on Linux, the end of the output of a terminal
                break
            if not piece:
                break
            output += piece
    os.close(ours)
    return output.decode().replace("\r\n", "\n")


def picture(output: str, title: str, columns: int) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(output))
        svg = console.export_svg(title=title, unique_id="run")
    return "\n".join(line.rstrip() for line in _FONTS_FROM_ELSEWHERE.sub("", svg).splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--label", default="cpu-unittest")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/run.svg")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        env = {
            **os.environ,
            "CI_TASKS_HOME": state,
            "CI_TASKS_REPO": str(ROOT / "examples/tiny-slime"),
            "COLUMNS": str(options.columns),
            "TERM": "xterm-256color",
        }
        run = ["remote", "--host", "sim", options.label]
        subprocess.run([*_PROGRAM, *run], env=env, check=False)  # its exit code is that of the label
        shown = screen(["report", "last"], env).replace(state, "~/.local/state/ci-tasks")
    options.out.write_text(picture(shown, f"ci-tasks {' '.join(run)}", options.columns), encoding="utf-8")


if __name__ == "__main__":
    main()
