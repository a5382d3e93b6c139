"""The packages of install steps, shared by the runs of a host, and what run.sh asks for around these steps: a venv over
the environment that earlier runs have stored for them, to store what they have installed, and a venv for each row.

An environment is found by its key, checked before use, and removed when unused for long or too many. A venv over
another prefix has that one's packages and scripts, and changes nothing there. A row that changes the venv or the
checkout of the install steps changes what the next rows test, so each row is told what is no longer as the first one
found it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import run_directory
from .containers import below, remove_tree
from .files import content_of, file_lock, replace_file
from .records import Event, InstallSteps

MOST = 8  # environments of a host; of CUDA's torch each has about 6 GB
LOCK_SECONDS = 300.0  # another row may list all files of the install steps
PACKAGES = "packages"  # beside the log: which packages are used again
_KEY = os.path.join("tmp", "environment-key")
_ENVIRONMENT = os.path.join("tmp", "environment")  # the path of the one that the venv is over
_MOST_NAMED = 3
# With the caller's `known_paths`, pip takes the directory out of an isolated build, as it does with site-packages.
_LINE = "import site, sys; site.addsitedir(%r, sys._getframe(1).f_locals.get('known_paths'))\n"
_NOTE = re.compile(r"\d+ packages, resolved \d{4}-\d\d-\d\d \d\d:\d\d UTC\Z")
_WORD = re.compile(r"[^\s'\"`;|&<>()=,\[\]]+")
# What describes packages, wherever it is in the checkout.
_PACKAGING = re.compile(
    r"(?i)(?:.*/)?(?:pyproject\.toml|setup\.(?:py|cfg)|(?:gnu)?makefile|[^/]*\.(?:lock|mk))"
    r"|.*(?:\breq|requirements|constraints).*\.(?:txt|in)"
)
_PYTHON_SCRIPT = re.compile(rb"#!(?:/bin/sh\n'''exec' )?\"?(?!/usr/bin/|/bin/)[^\n\"]*/bin/python[\d.]*\b")


class SharedEnvironment:
    """The one in the directory `path`, called KEY-TIME. It has no `description` if it is not complete, or was given
    up."""

    def __init__(self, path: str) -> None:
        self.path, self.name, self.prefix = path, os.path.basename(path), os.path.join(path, "prefix")
        self._users, self._files, self._note = (os.path.join(path, name) for name in ("users", "files", "description"))
        found = _NOTE.match(content_of(self._note, 100).decode("ascii", "replace"))  # a job may have written there
        self.description = found[0] if found else ""
        self.unused_days = (time.time() - os.stat(path).st_mtime) / 86400

    @property
    def is_used(self) -> bool:
        """Whether a venv over it exists."""
        names = os.listdir(self._users) if os.path.isdir(self._users) else ()  # half of it was removed
        return any(os.path.exists(os.path.join(self._users, name)) for name in names)

    def add_user(self, venv: str) -> None:
        """It stays as long as the venv exists."""
        os.makedirs(venv, exist_ok=True)
        os.symlink(os.path.abspath(venv), os.path.join(self._users, "%d-%d" % (os.getpid(), time.time_ns())))
        os.utime(self.path)

    def seal(self, packages: int) -> None:
        """It is complete: what stat says of its files is noted."""
        write_listing(self._files, self.prefix)
        self.description = "%d packages, resolved %s" % (packages, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
        replace_file(self._note, self.description.encode())

    def changed(self) -> List[str]:
        """Its files that are not as they were stored."""
        return changed_files(self._files, self.prefix)

    def give_up(self) -> None:
        """It is not used again, and removed when no venv is over it."""
        with suppress(FileNotFoundError):
            os.unlink(self._note)


class EnvironmentStore:
    def __init__(self, directory: str) -> None:
        self.directory, self._lock = directory, os.path.join(directory, "lock")

    def all(self) -> List[SharedEnvironment]:
        """The incomplete ones too; the newest first."""
        entries = os.scandir(self.directory) if os.path.isdir(self.directory) else ()
        found = [SharedEnvironment(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
        return sorted(found, key=lambda each: each.name.rpartition("-")[2], reverse=True)

    def take(self, key: str, venv: str) -> Optional[SharedEnvironment]:
        """The newest environment with this key, with `venv` among its users."""
        if not os.path.isdir(self.directory):
            return None
        with file_lock(self._lock, exclusive=True, timeout=LOCK_SECONDS):
            newest = next((each for each in self.all() if each.description and each.name.startswith(key)), None)
            if newest is not None:
                newest.add_user(venv)
        return newest

    def new(self, key: str, venv: str) -> SharedEnvironment:
        """One for `venv`, to be filled and sealed."""
        os.makedirs(self.directory, exist_ok=True)
        path = os.path.join(self.directory, "%s-%d" % (key, time.time_ns()))
        with file_lock(self._lock, exclusive=True, timeout=LOCK_SECONDS):
            os.makedirs(os.path.join(path, "users"))
            SharedEnvironment(path).add_user(venv)
        return SharedEnvironment(path)

    def clean(self, days: float = 14.0, everything: bool = False) -> List[Tuple[str, Sequence[str]]]:
        """Remove what is not complete, unused for `days`, or least recently used above MOST, or all; never what is in
        use. Returns a sentence for each, and what could not be removed of it."""
        lines: List[Tuple[str, Sequence[str]]] = []
        for number, each in enumerate(sorted(self.all(), key=lambda each: each.unused_days), 1):
            if each.description and each.unused_days <= days and number <= MOST and not everything:
                continue
            with file_lock(self._lock, exclusive=True, timeout=LOCK_SECONDS):  # no command takes it meanwhile
                if each.is_used:
                    continue
                each.give_up()
            why = "unused for %.0f days" % each.unused_days if each.description else "not complete"
            lines.append(("environment %s: removed, %s" % (each.name, why), remove_tree(each.path, None, "none", {})))
        return lines


# -- what run.sh asks for ----------------------------------------------------------------------------------------------


def main(verb: str, *words: str) -> int:
    """The exit code: 1 if there is no venv, or one that is no longer whole."""
    try:
        {"venv": make_venv, "store-packages": store_packages, "row-venv": make_row_venv}[verb](*words)
    except (OSError, subprocess.CalledProcessError) as error:
        _print("the venv cannot be used: %s" % error)
        return 1
    return 0


def make_venv(run_dir: str, directory: str) -> None:
    """Make the venv of the run's install steps, over the packages that they have installed before."""
    install = run_directory.read_plan(run_directory.RunDir(run_dir)).install
    key = environment_key(install, os.environ.get("GITHUB_WORKSPACE", ""), os.environ)
    environment = None if install.fresh else EnvironmentStore(install.store).take(key, directory)
    if environment is not None and (changed := environment.changed()):
        environment.give_up()
        _print("shared packages were changed, so they are installed again: %s" % _named(changed))
        environment = None
    print("creating the venv of the install steps", flush=True)  # it takes seconds, and pip says nothing yet
    create_venv(directory, environment.prefix if environment else None)
    if environment is None:
        _write(run_dir, _KEY, key)
    else:
        _write(run_dir, _ENVIRONMENT, environment.path)
        _write(run_dir, PACKAGES, environment.description)
        _print("reusing packages of earlier runs with these steps: %s" % environment.description)


def store_packages(run_dir: str, directory: str) -> None:
    """Store what the steps have installed, if that is not where it comes from. Raises OSError if the venv is no longer
    whole."""
    store = EnvironmentStore(run_directory.read_plan(run_directory.RunDir(run_dir)).install.store)
    key = content_of(os.path.join(run_dir, _KEY)).decode()
    if not key:
        return  # nothing new
    try:
        packages = shareable(directory)
    except OSError as error:
        _print("packages are not shared with other runs: %s" % error)
        return
    if packages:
        environment = store.new(key, directory)
        move([file for files in packages.values() for file in files], directory, environment.prefix)
        environment.seal(len(packages))
        _write(run_dir, _ENVIRONMENT, environment.path)
        put_over(directory, environment.prefix)
        _print("stored for other runs of these steps: %s" % environment.description)
        for sentence, _ in store.clean():
            _print(sentence)
    os.unlink(os.path.join(run_dir, _KEY))


def make_row_venv(directory: str, below: str) -> None:
    """Make a row's venv over the install steps' venv in `below`, and put into the row's events what other rows
    have changed of theirs, and of their checkout; the first row lists what there is."""
    create_venv(directory, below)
    setup = os.path.dirname(below)
    tops = {"packages": below, "checkout": os.environ["GITHUB_WORKSPACE"]}
    listings = {what: os.path.join(setup, "tmp", what) for what in tops}  # they go with the venv
    os.makedirs(os.path.join(setup, "tmp"), exist_ok=True)
    with file_lock(os.path.join(setup, "tmp", "lock"), exclusive=True, timeout=LOCK_SECONDS):
        if not os.path.exists(listings["checkout"]):
            for what, top in tops.items():
                write_listing(listings[what], top)
            return
    changed = {what: changed_files(listings[what], top) for what, top in tops.items()}
    environment = content_of(os.path.join(setup, _ENVIRONMENT)).decode("utf-8", "surrogateescape")
    changed["packages"] += SharedEnvironment(environment).changed() if environment else []
    listed = _read_listing(listings["checkout"])
    changed["checkout"] = [file for file in changed["checkout"] if file in listed]  # new files are a row's
    run = run_directory.RunDir(os.environ[run_directory.ENV_RUN_DIR])
    with open(run.events, "a", encoding="ascii") as events:
        for what, files in changed.items():
            if files:
                text = "changed since the install steps: " + _named(files)
                events.write(Event(time.time(), "changed " + what, name=text).line())


def _named(files: Sequence[str]) -> str:
    more = len(files) - _MOST_NAMED
    return ", ".join([*files[:_MOST_NAMED], *(["%d more" % more] if more > 0 else [])])


def _write(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(text)


def _print(text: str) -> None:
    print("ci-tasks: " + text, flush=True)


# -- files that must stay as they are ----------------------------------------------------------------------------------


def write_listing(path: str, top: str) -> None:
    """Note in the file `path` what is below `top`."""
    replace_file(path, json.dumps(_states(top)).encode())


def changed_files(listing: str, top: str) -> List[str]:
    """The files below `top` that are not as listed. Byte code that a row has cached is removed, and is not among them:
    Python would run it without a look at the source."""
    listed, now = _read_listing(listing), _states(top)
    changed = sorted(file for file in {*listed, *now} if listed.get(file) != now.get(file))
    byte_code = {file for file in changed if os.path.basename(os.path.dirname(file)) == "__pycache__"}
    for file in byte_code:
        with suppress(OSError):
            os.unlink(os.path.join(top, file))
    return [file for file in changed if file not in byte_code or os.path.lexists(os.path.join(top, file))]


def _read_listing(path: str) -> Dict[str, List[int]]:
    """Without the list nothing is listed: every file counts as changed."""
    with suppress(ValueError, AttributeError, RecursionError):  # a job may have written there
        return dict(json.loads(content_of(path)).items())
    return {}


def _states(top: str) -> Dict[str, List[int]]:
    """Each file and link below `top`, but for git's own, with all that stat says of it but the time of its last access.
    Only root can choose the time of a file's last change (ctime)."""
    found: Dict[str, List[int]] = {}
    for directory, names, files in os.walk(top):
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        names[:] = [name for name in names if name != ".git"]
        for path in (os.path.join(directory, name) for name in files + links):
            with suppress(OSError):  # it is gone by now
                info = os.lstat(path)
                # uv links files of its cache into a venv, and a further link is such a change.
                changed_at = 0 if info.st_nlink > 1 else info.st_ctime_ns
                values = [info.st_mode, info.st_size, info.st_mtime_ns, changed_at, info.st_ino]
                found[os.path.relpath(path, top)] = values
    return found


# -- venvs over another prefix -----------------------------------------------------------------------------------------


def create_venv(directory: str, over: Optional[str]) -> None:
    """A venv of this interpreter; over a prefix without a pip of its own. Raises OSError, CalledProcessError."""
    venv.EnvBuilder(symlinks=True, with_pip=over is None).create(directory)
    if over is not None:
        put_over(directory, over)


def put_over(directory: str, below: str) -> None:
    """Put the venv over the prefix `below`. Scripts of Python there run with the venv's Python."""
    packages, own = site_packages(below), site_packages(directory)
    os.makedirs(own, exist_ok=True)
    # Before the .pth of an editable install, as packages in site-packages come before it.
    _write(own, "00-ci-tasks-environment.pth", _LINE % packages)
    for top, names, files in os.walk(below):
        names[:] = [name for name in names if os.path.join(top, name) != packages]
        into = os.path.join(directory, os.path.relpath(top, below))
        os.makedirs(into, exist_ok=True)
        for name in files:
            path, target = os.path.join(top, name), os.path.join(into, name)
            if os.path.lexists(target):  # its own, as bin/python
                continue
            if top == os.path.join(below, "bin") and _PYTHON_SCRIPT.match(content_of(path, 4096)):
                # By the path of the caller: a venv over this one has a link to it.
                _write(into, name, '#!/bin/sh\nexec "${0%%/*}/python" %s "$@"\n' % shlex.quote(path))
                os.chmod(target, 0o755)
            else:
                os.symlink(path, target)


def site_packages(prefix: str) -> str:
    """Where this interpreter has the packages of a venv."""
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    return sysconfig.get_path("purelib", scheme, {"base": prefix, "platbase": prefix})


# -- what pip has installed --------------------------------------------------------------------------------------------


def shareable(directory: str) -> Dict[str, List[str]]:
    """The distributions of a venv that pip got from an index, as name==version, each with its files below the venv.
    One that shares a package with what stays is not among them: a package is imported from one directory alone. Raises
    OSError, also if one is not as pip has installed it."""
    found = list(distributions(path=[site_packages(directory)]))
    beside = {top for each in found if not _is_from_index(each) for top in _top_levels(each)}
    going = [each for each in found if _is_from_index(each) and not beside & _top_levels(each)]
    return {"%s==%s" % (each.metadata["Name"], each.version): _files(each, directory) for each in going}


def move(files: Sequence[str], directory: str, prefix: str) -> None:
    """Move files of the venv into the prefix, read-only; scripts are copied."""
    for file in dict.fromkeys(files):  # two distributions may have a file, and byte code of a wheel is listed twice
        source, target = os.path.join(directory, file), os.path.join(prefix, file)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        (shutil.copy2 if os.path.dirname(file) == "bin" else shutil.move)(source, target)
        if not os.path.islink(target):
            os.chmod(target, os.stat(target).st_mode & 0o555)
    for top, _, _ in os.walk(prefix):
        os.chmod(top, 0o555)
    for top, _, _ in os.walk(site_packages(directory), topdown=False):
        with suppress(OSError):  # it is not empty
            os.rmdir(top)


def _is_from_index(each: Distribution) -> bool:
    return (each.read_text("INSTALLER") or "").strip() == "pip" and not each.read_text("direct_url.json")


def _top_levels(each: Distribution) -> Set[str]:
    return {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}


def _files(each: Distribution, directory: str) -> List[str]:
    """The existing files. Raises OSError if one differs from what pip installed; it replaces byte code of wheels."""
    names = []
    for file in each.files or ():
        path = os.path.normpath(str(file.locate()))
        name = os.path.relpath(path, directory)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content_of(path)).digest()).decode().rstrip("=")
        if file.hash and file.suffix != ".pyc" and file.hash.value != digest:
            raise OSError("the steps change packages that pip installed: %s" % name)
        names += [name] if os.path.lexists(path) and not name.startswith("..") else []
    return names


# -- the key -----------------------------------------------------------------------------------------------------------


def environment_key(install: InstallSteps, workspace: str, environ: Mapping[str, str]) -> str:
    """A hash of what decides what `install` gets from an index, run by this interpreter on the checkout in `workspace`,
    except the state of the index on that day. Steps run over an environment all the same: with a key that knows too
    little, pip only finds older packages that satisfy the steps."""
    settings = sorted(item for item in environ.items() if item[0].startswith(("PIP_", "UV_")))
    # Where pip reads its settings, as its documentation lists them for Linux.
    home = environ.get("HOME") or os.path.expanduser("~")
    own = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    paths = [own + "/pip/pip.conf", home + "/.pip/pip.conf", "/etc/pip.conf", "/etc/xdg/pip/pip.conf"]
    pip = settings, [_digest(path) for path in (*paths, environ.get("PIP_CONFIG_FILE", ""))]
    python = sys.version, sysconfig.get_platform(), sysconfig.get_config_var("SOABI"), platform.libc_ver()
    files = sorted(deciding_files(install, workspace).items())
    value = repr((python, install.texts, pip, files))
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def deciding_files(install: InstallSteps, workspace: str) -> Dict[str, str]:
    """The files of the checkout that may decide what the steps install, with their hashes: those that describe
    packages, and those that the steps name."""
    words = {os.path.basename(word) for step in install.texts for word in _WORD.findall(step)}
    return {
        os.path.relpath(entry.path, workspace): _digest(entry.path)
        for entry in below(workspace, excluded=os.path.join(workspace, ".git"))
        if entry.is_file() and (entry.name in words or _PACKAGING.fullmatch(entry.path[len(workspace) :]))
    }


def _digest(path: str) -> str:
    return hashlib.sha256(content_of(path)).hexdigest()
