"""The agent as one zip file that any Python 3.8+ can execute: it travels inside the run directory."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import io
import marshal
import os
import zipfile
from typing import Any, Dict, Mapping

from .files import content_of, read_file

_HERE = os.path.dirname(os.path.abspath(__file__))
_MAIN = b"import sys\nfrom agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: equal sources give equal bytes
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: named by the source's hash, which is not compared


def build() -> bytes:
    """The bytes of agent.pyz, of the sources of this process: equal ones give equal bytes."""
    sources = {"__main__.py": _MAIN}
    names = sorted(name for name in os.listdir(_HERE) if name.endswith(".py"))
    sources.update(("agent/" + name, read_file(os.path.join(_HERE, name), -1)) for name in names)
    return zipped(sources)


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return out.getvalue()


@functools.lru_cache(maxsize=1)
def for_this_machine() -> bytes:
    """The same with byte code, made for each command: a job could put code for later runs into a file that is kept."""
    return with_bytecode(build())


def with_bytecode(archive: bytes) -> bytes:
    """The same agent with this Python's byte code beside each source: to compile is half of an agent's start. Another
    version of Python finds a foreign magic number, and compiles the source."""
    files: Dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as sources:
        for name in sources.namelist():
            source = files[name] = sources.read(name)
            header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
            files[name + "c"] = header + marshal.dumps(_compiled(name, source))
    return zipped(files)


def _compiled(name: str, source: bytes) -> Any:
    """From the byte code that Python keeps beside our own files, if that is of this source."""
    path = os.path.join(_HERE, name[len("agent/") :])
    if source and content_of(path) == source:  # else it was removed, or is in a zip file
        return importlib.machinery.SourceFileLoader(name, path).get_code(name)
    return compile(source, name, "exec", dont_inherit=True)
