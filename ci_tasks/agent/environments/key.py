"""The key of an environment: a hash of everything that decides what install steps get from an index, but the index's
own state on that day."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import platform
import re
import sys
import sysconfig
from typing import Dict, Iterator, List, Mapping, Sequence, Set

from ..records import InstallStep, InstallSteps

_WORD = re.compile(r"[^\s'\"`;|&<>()=,\[\]]+")
_WORKSPACE = re.compile(r"^(?:\$GITHUB_WORKSPACE|\$\{GITHUB_WORKSPACE\}|\$PWD|\$\{PWD\}|\.)/")
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
_LARGEST = 1 << 20  # bytes; no file that names others is larger
_MAX_FILES = 1000


def environment_key(install: InstallSteps, workspace: str, environ: Mapping[str, str]) -> str:
    """The key for `install` run by this interpreter on the checkout in `workspace`."""
    parts = {
        "python": [sys.version, sysconfig.get_platform(), str(sysconfig.get_config_var("SOABI")), *platform.libc_ver()],
        "steps": [repr(step) for step in install.steps],
        "env": sorted(install.env),
        "index": sorted("%s=%s" % item for item in environ.items() if _is_setting(item[0])),
        "pip.conf": [_digest(path) for path in _pip_settings(environ)],
        "files": ["%s %s" % item for item in sorted(named_files(install.steps, workspace).items())],
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode("utf-8", "surrogateescape")).hexdigest()


def _is_setting(name: str) -> bool:
    return name.startswith(("PIP_", "UV_")) and not _REACH.fullmatch(name)


def named_files(steps: Sequence[InstallStep], workspace: str) -> Dict[str, str]:
    """The files of the checkout that decide what `steps` install, with their hashes: those which the steps name, those
    which these name, and what describes the package in a directory whose requirements are installed."""
    top = os.path.realpath(workspace)
    digests: Dict[str, str] = {}
    tried: Set[str] = set()
    unread = [path for step in steps for path in _named_by_step(step, top)]
    while unread and len(digests) < _MAX_FILES:
        path = os.path.realpath(unread.pop())
        if path in tried or not path.startswith(top + os.sep):
            continue
        tried.add(path)
        if os.path.isfile(path):
            digests[os.path.relpath(path, top)] = _digest(path)
            if path.endswith(_NAMES_OTHERS) and os.path.getsize(path) <= _LARGEST:
                with open(path, encoding="utf-8", errors="surrogateescape") as source:
                    named = _named(source.read(), os.path.dirname(path), top)
                unread += [other for other in named if other.endswith(_NAMES_OTHERS)]
    return digests


def _named_by_step(step: InstallStep, top: str) -> Iterator[str]:
    for line in step.text.replace("\\\n", " ").splitlines():
        for path in _named(line, os.path.join(top, step.directory), top):
            if os.path.isfile(path):
                yield path
            elif os.path.isdir(path) and "--no-deps" not in line:
                yield from (entry.path for entry in os.scandir(path) if _PACKAGING.fullmatch(entry.name))


def _named(text: str, *directories: str) -> Iterator[str]:
    """What may be a path among the words of `text`; extras such as `.[test]` are cut off."""
    for word in _WORD.findall(text):
        word = _WORKSPACE.sub("", word.lstrip("@"), count=1)
        if word.strip("$/{}") in ("GITHUB_WORKSPACE", "PWD"):
            word = "."
        if "\0" not in word and len(word) < 1024:
            for directory in directories:
                yield os.path.join(directory, word)
                yield os.path.join(directory, _JOINED.sub("", word))
                yield from _matching(directory, word)


def _matching(directory: str, word: str) -> Iterator[str]:
    """The files that a path may be, of which the shell knows a part: `requirements/*.txt`, `$DIR/dev.txt`."""
    pattern = _UNKNOWN.sub("*", word)
    if _UNKNOWN.search(word) and pattern.strip("*/.") and not pattern.startswith("/") and ".." not in pattern:
        found = glob.iglob(os.path.join(glob.escape(directory), pattern))
        yield from itertools.islice((path for path in found if os.path.isfile(path)), _MAX_FILES)


def _pip_settings(environ: Mapping[str, str]) -> List[str]:
    """Where pip reads its settings, as its documentation lists them for Linux."""
    home = environ.get("HOME") or os.path.expanduser("~")
    folders = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = [*(os.path.join(folder, "pip", "pip.conf") for folder in folders), "/etc/pip.conf"]
    files += [os.path.join(home, ".pip", "pip.conf"), os.path.join(own, "pip", "pip.conf")]
    return files + [path for path in [environ.get("PIP_CONFIG_FILE", "")] if path]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as source:
            digest = hashlib.sha256()
            for chunk in iter(lambda: source.read(_LARGEST), b""):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError:
        return ""
