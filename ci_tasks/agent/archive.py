"""The agent as one zip file that any Python 3.8+ can execute: it travels inside the run directory."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import io
import marshal
import os
import zipfile
import zlib
from typing import Any, List, Optional, Tuple

Sources = List[Tuple[str, bytes]]  # names in the zip file, and what they hold

_HERE = os.path.dirname(os.path.abspath(__file__))
_MAIN = b"import sys\nfrom agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: equal sources give equal bytes
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: named by the source's hash, which is not compared


def build(entries: Optional[Sources] = None) -> bytes:
    """The bytes of agent.pyz: by default of sources alone, as they are, so that equal sources give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries or read_sources():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return out.getvalue()


def packed(archive: bytes) -> bytes:
    """As it travels to a host."""
    return zlib.compress(archive, 6)


def digest(archive: bytes) -> str:
    """What it is called on a host: equal sources have equal names."""
    return hashlib.sha256(archive).hexdigest()


@functools.lru_cache(maxsize=1)
def for_this_machine() -> bytes:
    """The same with byte code, made for each command: a job could put code for later runs into a file that is kept."""
    return with_bytecode(build())


def with_bytecode(archive: bytes) -> bytes:
    """The same agent with this Python's byte code beside each source: to compile is half of an agent's start. Another
    version of Python finds a foreign magic number, and compiles the source."""
    entries: Sources = []
    with zipfile.ZipFile(io.BytesIO(archive)) as sources:
        for name in sources.namelist():
            source = sources.read(name)
            header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
            entries += [(name, source), (name + "c", header + marshal.dumps(_compiled(name, source)))]
    return build(entries)


def _compiled(name: str, source: bytes) -> Any:
    """From the byte code that Python keeps beside our own files, if that is of this source."""
    path = os.path.join(_HERE, name[len("agent/") :])
    loader = importlib.machinery.SourceFileLoader(name, path)
    try:
        kept = loader.get_code(name) if loader.get_data(path) == source else None
    except OSError:  # removed, or in a zip file
        kept = None
    return kept or compile(source, name, "exec", dont_inherit=True)


def read_sources() -> Sources:
    """What this process was loaded from."""
    sources: Sources = [("__main__.py", _MAIN)]
    for directory, _, files in sorted(os.walk(_HERE)):
        for path in sorted(os.path.join(directory, name) for name in files if name.endswith(".py")):
            with open(path, "rb") as source:
                sources.append(("agent/" + os.path.relpath(path, _HERE), source.read()))
    return sources
