"""The agent as one zip file that any Python 3.8+ can execute: it travels inside the run directory."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from typing import List

_MAIN = "import sys\nfrom agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: equal sources give equal bytes


def build() -> bytes:
    """The bytes of agent.pyz."""
    here = os.path.dirname(os.path.abspath(__file__))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        for name in _sources(here):
            with open(os.path.join(here, name), encoding="utf-8") as source:
                entry = zipfile.ZipInfo("agent/" + name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, source.read())
    return out.getvalue()


def _sources(top: str) -> List[str]:
    names = [
        os.path.relpath(os.path.join(directory, name), top)
        for directory, _, files in os.walk(top)
        for name in files
        if name.endswith(".py")
    ]
    return sorted(names)


def digest(archive: bytes) -> str:
    """The name of the agent on a host: equal sources have equal names."""
    return hashlib.sha256(archive).hexdigest()
