"""A stand-in for docker and podman, for what real ones do not do on request: hang, die, keep a container."""

from __future__ import annotations

import json
from pathlib import Path

# Knows `ps --filter label=`, `inspect`, `stop` and `rm`; answers as docker and podman do and refuses anything else.
FAKE = """\
#!{python} -IS
import json, os, pathlib, sys, time

words, home = sys.argv[1:], pathlib.Path({home!r})
runtime = os.path.basename(sys.argv[0])
with open(home / "calls", "a") as out:
    out.write(" ".join([runtime, *words, "[" + os.environ.get("DOCKER_HOST", "") + "]"]) + "\\n")
if (home / "hangs").exists():
    time.sleep(300)
if (home / "dead").exists():
    sys.exit("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?")
kept = home / runtime
kept.mkdir(exist_ok=True)
there = {{path.name: json.loads(path.read_text()) for path in kept.iterdir()}}
asked = words[words.index("--") + 1:] if "--" in words else []
if words[0] == "ps" and [word for word in words[1:-1] if word != "--all"] == ["--quiet", "--no-trunc", "--filter"]:
    key, _, value = words[-1].partition("=")[2].partition("=")
    has = {{name for name, labels in there.items() if key in labels and value in ("", labels[key])}}
    print("\\n".join("id-" + name for name in there if name in has))
elif words[:3] == ["inspect", "--type", "container"]:
    known = [name for name in dict.fromkeys(word.replace("id-", "") for word in asked) if name in there]
    print(json.dumps([{{"Id": "id-" + name, "Name": "/" + name, "Image": "sha256:1", "State": {{"Running": True}},
        "Created": str(os.stat(kept / name).st_mtime_ns),
        "Config": {{"Image": "img", "Labels": there[name] or None}}}} for name in known]))
    if len(known) < len(asked):
        sys.exit("Error response from daemon: No such container: x")
elif words[:3] == ["rm", "--force", "--volumes"]:
    if (home / "sticky").exists():
        sys.exit("Error response from daemon: device or resource busy")
    if (home / "removing").exists():  # somebody else does, and is done after a few more questions
        asks = home / "asks"
        asks.write_text("x" + (asks.read_text() if asks.exists() else ""))
        if len(asks.read_text()) < 6:
            sys.exit("Error response from daemon: removal of container id-a is already in progress")
    for name in asked:
        (kept / name.replace("id-", "")).unlink()
elif words[0] != "stop":
    sys.exit("unexpected: " + " ".join(words))
"""


class Fake:
    def __init__(self, home: Path) -> None:
        self.home = home

    def has(self, name: str, runtime: str = "docker", **labels: str) -> None:
        (self.home / runtime).mkdir(exist_ok=True)
        (self.home / runtime / name).write_text(json.dumps({key.replace("_", "."): v for key, v in labels.items()}))

    def left(self, runtime: str = "docker") -> list[str]:
        directory = self.home / runtime
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def calls(self, word: str = "") -> list[str]:
        path = self.home / "calls"
        return [line for line in path.read_text().splitlines() if f" {word}" in line] if path.exists() else []

    def be(self, how: str, on: bool = True) -> None:
        if on:
            (self.home / how).touch()
        else:
            (self.home / how).unlink()
