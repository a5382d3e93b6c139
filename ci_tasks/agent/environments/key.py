"""The key of an environment: a hash of everything that decides what install steps get from an index, except the state
of the index on that day."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import platform
import re
import sys
import sysconfig
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from ..records import InstallStep, InstallSteps

_WORD = re.compile(r"[^\s'\"`;|&<>()=,\[\]]+")
_WORKSPACE = re.compile(r"^(?:\$\{?(?:GITHUB_WORKSPACE|PWD)\}?|\.)(?:/|$)")
_JOINED = re.compile(r"^-[rce](?=.)")  # -rrequirements.txt
_PACKAGING = re.compile(r"(?:pyproject\.toml|setup\.py|setup\.cfg|.*(?:requirements|constraints).*\.(?:txt|in))")
_NAMES_OTHERS = (".txt", ".in", ".toml", ".cfg", ".py", ".sh")
# How pip and uv reach an index and what they print, by their documentation; not what is installed.
_REACH = re.compile(
    r"PIP_(?:CACHE_DIR|CERT|CLIENT_CERT|(?:DEFAULT_)?TIMEOUT|DISABLE_PIP_VERSION_CHECK|LOG|NO_CACHE_DIR|NO_COLOR|NO_INPUT"
    r"|PROGRESS_BAR|PROXY|QUIET|RETRIES|ROOT_USER_ACTION|TRUSTED_HOST|VERBOSE)"
    r"|UV_(?:CACHE_DIR|HTTP_TIMEOUT|NO_CACHE|NO_PROGRESS)"
)
# In a path: what the shell puts in. A list in braces has lost its commas.
_UNKNOWN = re.compile(r"\$(?:\{\w+\}|\w+)|\{[^}]*$|^[^{]*\}|[*?{}]+")
_MAX_FILES, _LARGEST = 1000, 1 << 20  # no file that names others has more bytes


def environment_key(install: InstallSteps, workspace: str, environ: Mapping[str, str]) -> str:
    """The key for `install` run by this interpreter on the checkout in `workspace`. It begins with `steps_key`."""
    index = sorted(item for item in environ.items() if item[0].startswith(("PIP_", "UV_")))
    python = sys.version, sysconfig.get_platform(), sysconfig.get_config_var("SOABI"), platform.libc_ver()
    pip = [item for item in index if not _REACH.fullmatch(item[0])], [_digest(path) for path in _pip_settings(environ)]
    files = sorted(named_files(install.steps, workspace).items())
    return steps_key(install) + _hash((python, install.steps, sorted(install.env), pip, files))[:16]


def steps_key(install: InstallSteps) -> str:
    """Alike for the same steps, whatever is in the files that they name."""
    return _hash(install.steps)[:8]


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()


def named_files(steps: Sequence[InstallStep], workspace: str) -> Dict[str, str]:
    """The files of the checkout that decide what `steps` install, with their hashes: those that the steps name, those
    that these name, and what describes the package in a directory whose requirements are installed."""
    top = os.path.realpath(workspace)
    digests: Dict[str, str] = {}
    texts: List[Tuple[str, str, Tuple[str, ...]]] = [
        (step.text, os.path.join(top, step.directory), ("",)) for step in steps
    ]
    while texts and len(digests) < _MAX_FILES:
        text, directory, endings = texts.pop()
        for path in map(os.path.realpath, _named(text, directory, top)):
            file = os.path.relpath(path, top)
            is_inside = path.startswith(top + os.sep) and path.endswith(endings)
            if is_inside and file not in digests and os.path.isfile(path):
                digests[file] = _digest(path)
                if path.endswith(_NAMES_OTHERS):
                    with open(path, encoding="utf-8", errors="surrogateescape") as source:
                        texts.append((source.read(_LARGEST), os.path.dirname(path), _NAMES_OTHERS))
    return digests


def _named(text: str, *directories: str) -> Iterator[str]:
    """What may be a path among the words of `text`; extras such as `.[test]` are cut off, and of a path with variables
    or wildcards it is each file that it may be."""
    for line in text.replace("\\\n", " ").splitlines():
        for word in _WORD.findall(line):
            word = _WORKSPACE.sub("", word.lstrip("@"), count=1) or "."
            pattern = _UNKNOWN.sub("*", word)
            is_inside = pattern.strip("*/.") and not pattern.startswith("/") and ".." not in pattern
            for directory in directories if "\0" not in word and len(word) < 1024 else ():
                path = os.path.join(directory, word)
                yield from (path, os.path.join(directory, _JOINED.sub("", word)))
                if is_inside and _UNKNOWN.search(word):
                    yield from itertools.islice(glob.iglob(os.path.join(glob.escape(directory), pattern)), _MAX_FILES)
                elif os.path.isdir(path) and "--no-deps" not in line:
                    yield from (entry.path for entry in os.scandir(path) if _PACKAGING.fullmatch(entry.name))


def _pip_settings(environ: Mapping[str, str]) -> List[str]:
    """Where pip reads its settings, as its documentation lists them for Linux."""
    home = environ.get("HOME") or os.path.expanduser("~")
    own = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = [os.path.join(place, "pip", "pip.conf") for place in ("/etc/xdg", own)]
    return [*files, "/etc/pip.conf", os.path.join(home, ".pip", "pip.conf"), environ.get("PIP_CONFIG_FILE", "")]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return ""
