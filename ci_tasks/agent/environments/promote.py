"""From a venv into the store: the distributions that pip got from an index. What came from the checkout or a URL, and
what the steps changed after pip had installed it, stays in the venv."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from email.parser import HeaderParser
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ..quick_dataclass import dataclass
from ..setup_manifest import CLOCK_SECONDS, PREFIX, file_hashes, link_equal_files, write_manifest
from .layer import put_over, site_packages
from .store import EnvironmentRecord, EnvironmentStore, StoredEnvironment


class NotShareable(Exception):
    """Why what is installed serves this venv alone."""


class VenvIncomplete(Exception):
    """The venv has lost packages: nothing can be run with it."""


@dataclass(frozen=True)
class Distribution:
    """What is installed: its files below the venv, and the hashes of them that its RECORD has. `from_archive`: pip got
    it from a URL, not from an index or a directory."""

    name: str
    version: str
    files: Tuple[str, ...]
    hashes: Mapping[str, str]
    top_level: Tuple[str, ...]
    requires: Tuple[str, ...]
    from_index: bool
    from_archive: bool


def promote(venv: str, store: EnvironmentStore, key: str, now: float, seconds: float) -> Optional[StoredEnvironment]:
    """Store what pip got from an index in `seconds`, and put the venv over it. None where there is nothing of the kind.
    Whoever is killed has stored nothing; where it fails, the venv is as it was. Raises NotShareable, OSError,
    LockTimeout, and VenvIncomplete where it is not."""
    distributions = list(read_distributions(venv))
    hashes = file_hashes(venv, {file for each in distributions if each.from_index for file in each.files})
    changed = _changed_by_steps(distributions, hashes)
    if changed:
        raise NotShareable("the steps change what pip has installed: %s" % changed)
    chosen = _that_can_leave(distributions)
    if not chosen:
        return None
    hashes = {file: hashes[file] for each in chosen for file in each.files if file in hashes}
    lock = tuple(sorted("%s==%s" % (each.name, each.version) for each in chosen))
    size = sum(os.lstat(os.path.join(venv, file)).st_size for file in hashes)
    staging = store.new_directory()
    prefix = os.path.join(staging, PREFIX)
    try:
        _copy(venv, prefix, hashes, store)
        # Before the list is written: a file changes its state (ctime) when one of its names is removed.
        _take_out(venv, hashes)
        time.sleep(CLOCK_SECONDS)  # else each check would read every file again
        write_manifest(staging, PREFIX, {os.fsencode("/" + file): digest for file, digest in hashes.items()})
        record = EnvironmentRecord(key, lock, now, os.path.abspath(venv), size, seconds)
        environment = store.add(staging, record, venv)
    except BaseException:
        for file in hashes:
            if os.path.lexists(os.path.join(prefix, file)) and not os.path.lexists(os.path.join(venv, file)):
                _link(os.path.join(prefix, file), os.path.join(venv, file))
        raise
    finally:
        _remove_staging(staging)
    try:
        put_over(venv, environment.prefix, environment.record.scripts_of)
    except OSError as error:
        raise VenvIncomplete(str(error)) from None
    return environment


def _copy(venv: str, prefix: str, hashes: Mapping[str, str], store: EnvironmentStore) -> None:
    """The files of the venv below `prefix`, read-only; one with those of other environments where they are equal."""
    os.makedirs(site_packages(prefix))
    for file in hashes:
        _link(os.path.join(venv, file), os.path.join(prefix, file))
        _make_read_only(os.path.join(prefix, file))
    link_equal_files(prefix, hashes, [each.path for each in store.all()])
    for directory, _, _ in os.walk(prefix, topdown=False):
        _make_read_only(directory)


def read_distributions(venv: str) -> Iterator[Distribution]:
    packages = site_packages(venv)
    for entry in sorted(os.scandir(packages), key=lambda entry: entry.name):
        if entry.name.endswith(".dist-info"):
            with suppress(OSError, ValueError, csv.Error):
                yield _read_distribution(venv, packages, entry.path)


def _read_distribution(venv: str, packages: str, info: str) -> Distribution:
    files: List[str] = []
    hashes: Dict[str, str] = {}
    top_level: Set[str] = set()
    is_inside = True
    with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as source:
        for row in csv.reader(source):
            path = os.path.normpath(os.path.join(packages, row[0]))
            file = os.path.relpath(path, venv)
            is_inside = is_inside and not file.startswith("..")
            files.append(file)
            if len(row) > 1 and row[1].startswith("sha256="):
                hashes[file] = row[1][len("sha256=") :]
            if path.startswith(packages + os.sep):
                top_level.add(os.path.relpath(path, packages).split(os.sep)[0])
    with open(os.path.join(info, "METADATA"), encoding="utf-8", errors="replace") as source:
        metadata = HeaderParser().parse(source, headersonly=True)
    by_pip = _read(os.path.join(info, "INSTALLER")).strip() == "pip"
    url = _read(os.path.join(info, "direct_url.json"))
    return Distribution(
        name=_normalized(str(metadata["Name"])),
        version=str(metadata["Version"]),
        files=tuple(files),
        hashes=hashes,
        top_level=tuple(top_level),
        requires=tuple(_normalized(text) for text in metadata.get_all("Requires-Dist") or ()),
        from_index=by_pip and is_inside and not url,
        from_archive=bool(url) and "dir_info" not in json.loads(url),
    )


def _normalized(text: str) -> str:
    """The name at the beginning of a requirement, as indices compare names."""
    name = re.match(r"[\w.-]+", text)
    return re.sub(r"[-_.]+", "-", name[0]).lower() if name else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as source:
            return source.read()
    except FileNotFoundError:
        return ""


def _that_can_leave(distributions: Iterable[Distribution]) -> List[Distribution]:
    """Those from an index, but for what an archive's libraries may load by its place beside them, and for what has a
    directory with one that stays: a package is imported from one directory alone."""
    going = [each for each in distributions if each.from_index]
    staying = [each for each in distributions if not each.from_index]
    while True:
        kept = {name for each in staying for name in each.top_level if name != "__pycache__"}
        needed = {name for each in staying if each.from_archive or each.from_index for name in each.requires}
        more = [each for each in going if each.name in needed or kept.intersection(each.top_level)]
        if not more:
            return going
        going = [each for each in going if each not in more]
        staying += more


def _changed_by_steps(distributions: Iterable[Distribution], hashes: Mapping[str, str]) -> str:
    """A file that is not as pip has installed it; empty where all are. Where two distributions have one file, it is the
    later one's. Byte code that a wheel brings is replaced by pip's own."""
    expected: Dict[str, Set[str]] = {}
    for each in distributions:
        for file, digest in each.hashes.items() if each.from_index else ():
            expected.setdefault(file, set()).add(digest)
    for file, digests in expected.items():
        if not file.endswith(".pyc") and (file not in hashes or _as_in_record(hashes[file]) not in digests):
            return file
    return ""


def _as_in_record(digest: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")


def _link(source: str, target: str) -> None:
    """A second name for a file; a copy of a link, of a script, which every venv has with its own first line, and on a
    file system that has no second names."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.islink(source) and os.path.basename(os.path.dirname(source)) != "bin":
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target, follow_symlinks=False)


def _make_read_only(path: str) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode) & ~0o222)


def _take_out(venv: str, files: Iterable[str]) -> None:
    """Remove the venv's own names of what is stored now, with byte code that nobody has listed and empty directories.
    Scripts stay: they are the venv's already."""
    scripts = os.path.join(venv, "bin")
    directories: Set[str] = set()
    for file in files:
        path = os.path.join(venv, file)
        if os.path.dirname(path) != scripts:
            os.unlink(path)
            directories.add(os.path.dirname(path))
    for directory in sorted(directories, key=len, reverse=True):
        if directory != site_packages(venv):
            shutil.rmtree(os.path.join(directory, "__pycache__"), ignore_errors=True)
        while len(directory) > len(venv):
            try:
                os.rmdir(directory)
            except OSError:
                break
            directory = os.path.dirname(directory)


def _remove_staging(staging: str) -> None:
    """What is left of it where it could not be completed."""
    if os.path.lexists(staging):
        for directory, _, _ in os.walk(staging):
            os.chmod(directory, 0o700)
        shutil.rmtree(staging, ignore_errors=True)
