"""A venv over another prefix: it has that one's packages and scripts, and changes nothing there."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import venv
from typing import Iterator, Optional

# Before the .pth of an editable install, as packages in site-packages come before it.
_PTH = "00-ci-tasks-environment.pth"
# With the caller's `known_paths`, pip takes the directory out of an isolated build, as it does with site-packages.
_LINE = "import site, sys; site.addsitedir(%r, sys._getframe(1).f_locals.get('known_paths'))\n"
_OWN_SCRIPT = re.compile(r"python[\d.]*|activate.*|Activate\.ps1")
_SHEBANG = re.compile(rb"#!(?:/bin/sh\n'''exec' )?\"?([^\n\"]*?/bin/python[\d.]*)\"?(?: \"\$0\" \"\$@\"\n' ''')?\n")
_LONGEST_SHEBANG = 127  # what Linux reads of it, on older kernels


def create_venv(directory: str, over: Optional[str], scripts_of: str = "") -> None:
    """A venv of this interpreter; over a prefix without a pip of its own. Raises OSError, CalledProcessError."""
    venv.EnvBuilder(symlinks=True, with_pip=over is None).create(directory)
    if over is not None:
        put_over(directory, over, scripts_of or over)


def put_over(directory: str, below: str, scripts_of: str) -> None:
    """Put the venv over the prefix `below`. Its scripts were made for the Python of the venv `scripts_of`."""
    packages, own = site_packages(below), site_packages(directory)
    os.makedirs(own, exist_ok=True)  # all that was there may be below now
    with open(os.path.join(own, _PTH), "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(_LINE % packages)
    for path in _files(below, packages):
        target = os.path.join(directory, os.path.relpath(path, below))
        if not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.dirname(path) != os.path.join(below, "bin") or not _copy_script(
                path, target, directory, scripts_of
            ):
                os.symlink(path, target)


def site_packages(prefix: str) -> str:
    """Where this interpreter has the packages of a venv."""
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    return sysconfig.get_path("purelib", scheme, {"base": prefix, "platbase": prefix})


def _files(below: str, packages: str) -> Iterator[str]:
    """The files and links of a prefix that are neither packages nor what makes it a venv."""
    for directory, names, files in os.walk(below):
        names[:] = [name for name in names if os.path.join(directory, name) != packages]
        in_bin = directory == os.path.join(below, "bin")
        for name in files:
            if not (in_bin and _OWN_SCRIPT.fullmatch(name)) and not (directory == below and name == "pyvenv.cfg"):
                yield os.path.join(directory, name)


def _copy_script(path: str, target: str, venv_directory: str, scripts_of: str) -> bool:
    """Copy a script of Python with the venv's Python in its first line; False where it is none."""
    with open(path, "rb") as source:
        head = _SHEBANG.match(source.read(4096))
        python = os.fsdecode(head[1]) if head else ""
        if head is None or os.path.dirname(python) != os.path.join(scripts_of, "bin"):
            return False
        source.seek(head.end())
        with open(target, "wb") as out:
            out.write(_shebang(os.path.join(venv_directory, "bin", os.path.basename(python))))
            shutil.copyfileobj(source, out)
    shutil.copymode(path, target)
    os.chmod(target, os.stat(target).st_mode | 0o200)
    return True


def _shebang(python: str) -> bytes:
    """As pip writes it: a long path, or one with a blank, is left to the shell."""
    line = b"#!%s\n" % os.fsencode(python)
    if len(line) <= _LONGEST_SHEBANG and b" " not in line:
        return line
    quoted = '"%s"' % python if " " in python else python
    return b"#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % os.fsencode(quoted)
