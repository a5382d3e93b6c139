"""Does the README do what it says? Its blocks are executed against a real checkout, one JSON line for each command.

    python bench/readme.py ~/slime
    python bench/readme.py ~/slime --timeout 3600 --match cpu-unittest

`exit` is the command's exit code: 125 where a machine without GPUs cannot run a label. A line that needs what is not
here (another host, a log of CI) has `skipped` with the reason. A block of YAML is read as hosts.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
# What a line may need that this machine does not have → the reason.
NEEDS = {
    r"h100|--host H\b|cluster": "another host",
    r"failed\.log|gh run|github\.com|GH_TOKEN": "a log of CI",
    r"\bverl\b|BRIDGE_REPO": "Megatron-Bridge and verl",
    r"mirror\.example": "a mirror",
    r"^invoke shell": "a failed row that was kept",
    r"python3 -m venv|pytest|activate|uv tool|pipx": "an installation of its own",
    r"^export CI_TASKS_REPO|^eval|^\. ": "a shell of its own",
}

_NEWEST_RUN = '"$(ls -t "$CI_TASKS_HOME/runs" | head -1).01"'


def blocks() -> Iterator[tuple[str, int, str, str]]:
    """(heading, line, language, text) of each block."""
    heading, opened = "", False
    for token in MarkdownIt("commonmark").parse((ROOT / "README.md").read_text(encoding="utf-8")):
        if opened:
            heading = token.content
        opened = token.type == "heading_open"
        if token.type == "fence" and token.info in ("bash", "yaml"):
            yield heading, (token.map or [0])[0] + 1, token.info, token.content


def run(command: str, env: dict[str, str], timeout: float) -> dict[str, Any]:
    """Exit code, seconds and the last line of what it printed; None as exit code where it took longer."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        started = subprocess.Popen(
            ["bash", "-c", command],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # ^C reaches the command, and not only bash
        )
        code: int | None
        try:
            code = started.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(started.pid, signal.SIGINT)
            started.wait()
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.strip()]
    return {"exit": code, "seconds": round(time.monotonic() - begun, 1), "last": lines[-1] if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a command")
    parser.add_argument("--match", default="", help="only lines with this text")
    parser.add_argument("--skip", default="", help="no lines with this text, such as one that takes long")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what `nohup` or `&` ignores, the commands would too
    with tempfile.TemporaryDirectory() as state:
        env = {
            "CI_TASKS_HOME": state,
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CI_TASKS_REPO": str(options.checkout.resolve()),
        }
        for heading, line, language, text in blocks():
            if language == "yaml":
                hosts = Path(state, "block.yaml")
                hosts.write_text(text)
                result = run("ci-tasks hosts", {**env, "CI_TASKS_HOSTS": str(hosts)}, options.timeout)
                print(json.dumps({"block": heading, "line": line, "command": "(hosts.yaml)", **result}), flush=True)
                continue
            for number, command in enumerate(text.splitlines(), line + 1):
                if not command.strip() or options.match not in command:
                    continue
                if options.skip and options.skip in command:
                    continue
                command = re.sub(r"\bRUN\b", _NEWEST_RUN, command)
                why = next((reason for pattern, reason in NEEDS.items() if re.search(pattern, command)), "")
                result = {"skipped": f"needs {why}"} if why else run(command, env, options.timeout)
                print(json.dumps({"block": heading, "line": number, "command": command, **result}), flush=True)


if __name__ == "__main__":
    main()
