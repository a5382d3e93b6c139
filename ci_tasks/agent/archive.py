"""The agent as one zip file that any Python 3.8+ can execute: it travels inside the run directory."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import io
import marshal
import os
import types
import zipfile
import zlib
from typing import List, Optional, Tuple

Sources = List[Tuple[str, bytes]]  # names in the zip file, and what they hold

_MAIN = "import sys\nfrom agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: equal sources give equal bytes
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: named by the source's hash, which nobody compares


def build(sources: Optional[Sources] = None) -> bytes:
    """The bytes of agent.pyz: sources alone, as they are, so that equal sources give equal bytes. `sources`: see
    `read_sources`."""
    return _zipped(sources or read_sources())


def packed(archive: bytes) -> bytes:
    """As it travels to a host."""
    return zlib.compress(archive, 6)


@functools.lru_cache(maxsize=1)
def for_this_machine() -> bytes:
    """The same with byte code. It is made anew for each command: in a file that is kept, a job could put its own code
    for later runs."""
    return _with_bytecode(read_sources())


def with_bytecode(archive: bytes) -> bytes:
    """The same agent with this Python's byte code beside each source: to compile is half of an agent's start. Another
    version of Python finds a foreign magic number, and compiles the source."""
    with zipfile.ZipFile(io.BytesIO(archive)) as sources:
        return _with_bytecode([(name, sources.read(name)) for name in sources.namelist()])


def _with_bytecode(sources: Sources) -> bytes:
    entries: Sources = []
    for name, source in sources:
        header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
        entries += [(name, source), (name + "c", header + marshal.dumps(_compiled(name, source)))]
    return _zipped(entries, level=1)  # it stays on this machine: larger, and written in half of the time


def _compiled(name: str, source: bytes) -> types.CodeType:
    """From the byte code that Python keeps beside our own files, where that is of this source."""
    path = _path(name[len("agent/") :])
    loader = importlib.machinery.SourceFileLoader(name, path)
    try:
        kept = loader.get_code(name) if loader.get_data(path) == source else None
    except OSError:  # removed, or in a zip file
        kept = None
    return kept or compile(source, name, "exec", dont_inherit=True)


def _zipped(entries: Sources, level: Optional[int] = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content in entries:
            entry = zipfile.ZipInfo(name, _EPOCH)
            is_plain = level is None or name.endswith(".pyc")
            entry.compress_type = zipfile.ZIP_STORED if is_plain else zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return out.getvalue()


def read_sources() -> Sources:
    """What this process was loaded from."""
    return [("__main__.py", _MAIN.encode()), *(("agent/" + name, _read(name)) for name in _names())]


def _names() -> List[str]:
    top = _path("")
    return sorted(
        os.path.relpath(os.path.join(directory, name), top)
        for directory, _, files in os.walk(top)
        for name in files
        if name.endswith(".py")
    )


def _read(name: str) -> bytes:
    with open(_path(name), "rb") as source:
        return source.read()


def _path(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def digest(archive: bytes) -> str:
    """What it is called on a host: equal sources have equal names."""
    return hashlib.sha256(archive).hexdigest()
