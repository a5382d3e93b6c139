"""The key of an environment: a hash of what decides what install steps get from an index, except the state of the
index on that day. Steps run over an environment all the same, so that a key which knows too little only means that pip
finds older packages which satisfy the steps.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
from typing import Dict, List, Mapping

from ..directories import below
from ..files import content_of
from ..records import InstallSteps

_WORD = re.compile(r"[^\s'\"`;|&<>()=,\[\]]+")
# What describes packages, wherever it is in the checkout.
_PACKAGING = re.compile(r"(?i)pyproject\.toml|setup\.(?:py|cfg)|.*\.lock|.*(?:requirements|constraints).*\.(?:txt|in)")


def environment_key(install: InstallSteps, workspace: str, environ: Mapping[str, str]) -> str:
    """The key for `install` run by this interpreter on the checkout in `workspace`."""
    settings = sorted(item for item in environ.items() if item[0].startswith(("PIP_", "UV_")))
    pip = settings, [_digest(path) for path in _pip_files(environ)]
    python = sys.version, sysconfig.get_platform(), sysconfig.get_config_var("SOABI"), platform.libc_ver()
    files = sorted(deciding_files(install, workspace).items())
    value = repr((python, install.steps, sorted(install.env), pip, files))
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def deciding_files(install: InstallSteps, workspace: str) -> Dict[str, str]:
    """The files of the checkout that may decide what the steps install, with their hashes: those that describe
    packages, and those that the steps name."""
    words = {os.path.basename(word) for step in install.steps for word in _WORD.findall(step.text)}
    return {
        os.path.relpath(entry.path, workspace): _digest(entry.path)
        for entry in below(workspace, excluded=os.path.join(workspace, ".git"))
        if entry.is_file() and (entry.name in words or _PACKAGING.fullmatch(entry.name))
    }


def _pip_files(environ: Mapping[str, str]) -> List[str]:
    """Where pip reads its settings, as its documentation lists them for Linux."""
    home = environ.get("HOME") or os.path.expanduser("~")
    own = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = [os.path.join(place, "pip", "pip.conf") for place in ("/etc/xdg", own)]
    return [*files, "/etc/pip.conf", os.path.join(home, ".pip", "pip.conf"), environ.get("PIP_CONFIG_FILE", "")]


def _digest(path: str) -> str:
    return hashlib.sha256(content_of(path)).hexdigest()
