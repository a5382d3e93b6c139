"""The packages that differ between two environments, each version of them in a layer: a directory of its own that pip
made here, which runs get as an overlay, before all that is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.bisection.axis import Change
from ci_tasks.features.failures.bisection.environments import ChangedEnvironment, checked, run_named
from ci_tasks.known_secrets import masked
from ci_tasks.resources import user_path
from ci_tasks.results import store
from ci_tasks.results.read_record import load_record

_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:==\s*([^\s;#]+)|@\s*(\S+))?")
_AT_ONCE = 4
_NO_INDEX = "they did not come from an index"
_NAME, _VERSION = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
# What is part of the interpreter's own tools, and of no program under test.
_TOOLS = frozenset(("pip", "setuptools", "wheel", "uv"))


@dataclass(frozen=True)
class PackageVersions:
    """Versions by normalized name; `elsewhere` came from a URL or a directory. `python` is the version of the
    interpreter, such as 3.12; "" where it is not known."""

    versions: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    python: str = ""


@dataclass(frozen=True)
class PackageLayers:
    """The packages that differ, and the directory of each version by name and version."""

    found: ChangedEnvironment
    directories: Mapping[tuple[str, str], str]


def changed_packages(good: str, bad: str, label: str, row: str) -> PackageLayers:
    """Those of which the version differs, as far as pip can install both. `good` and `bad` are runs of the row, or
    files as `pip freeze` prints them. Raises UsageError."""
    old, new = (_installed(name, option, label, row) for option, name in (("--good", good), ("--bad", bad)))
    names = sorted({*old.versions, *new.versions} - _TOOLS)
    changes = [Change(name, old.versions.get(name), new.versions.get(name)) for name in names]
    changes = [change for change in changes if change.good != change.bad]
    elsewhere = [
        change.name for change in changes if change.name in old.elsewhere | new.elsewhere or not _is_name(change)
    ]
    changes = [change for change in changes if change.name not in elsewhere]
    python = new.python or old.python
    wanted = [(change.name, version) for change in changes for version in (change.good, change.bad) if version]
    if wanted:
        print(f"pip puts {len(wanted)} versions of {len(changes)} packages into {_home()}", flush=True)
    directories, problems = install_layers(wanted, python)
    left_out = {_NO_INDEX: tuple(elsewhere)}
    for (name, _), problem in problems.items():
        left_out[f"pip cannot install them ({problem})"] = (
            *left_out.get(f"pip cannot install them ({problem})", ()),
            name,
        )
    usable = tuple(change for change in changes if change.name not in {name for name, _ in problems})
    return PackageLayers(checked(ChangedEnvironment(usable, left_out), "package", good, bad), directories)


def read_requirements(lines: Iterable[str]) -> PackageVersions:
    """What `pip freeze` prints."""
    versions: dict[str, str] = {}
    elsewhere: set[str] = set()
    for line in lines:
        matched = _REQUIREMENT.match(line.strip())
        if matched and (matched[2] or matched[3]):
            name = _normalized(matched[1])
            versions[name] = matched[2] or matched[3]
            if matched[3]:
                elsewhere.add(name)
    return PackageVersions(versions, frozenset(elsewhere))


def install_layers(
    wanted: Sequence[tuple[str, str]], python: str = ""
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
    """The directory of each, and why pip could not install the others."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(lambda each: _install(each[0], each[1], python), wanted))
    made = {each: directory for each, (directory, problem) in zip(wanted, results, strict=True) if not problem}
    return made, {each: problem for each, (_, problem) in zip(wanted, results, strict=True) if problem}


def shown_use(run: str, names: Sequence[str]) -> dict[str, str]:
    """What the probe saw of the layers of these packages in a run: shown, contradicted, or not seen."""
    runs = store.find(run) if run else []
    deviations = load_record(runs[0][1]).deviations if runs else ()
    why = {each.what: each.why.partition("; ")[2] for each in deviations}
    return {name: why.get(f"overlay {name}", "") for name in names}


def _home() -> Path:
    return store.home() / "layers"


def _install(name: str, version: str, python: str) -> tuple[str, str]:
    """The directory, and why there is none. It appears whole."""
    place = _home() / (python or "python") / f"{name}-{version}"
    if place.is_dir():
        return str(place), ""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".making-"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps"]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = ["--python-version", python] if python not in ("", own) else []
    done = subprocess.run(
        # A record may come from a host that lies: what a sdist would execute here is never built.
        [*pip, "--only-binary=:all:", "--no-compile", *other, "--target", str(made / "layer"), f"{name}=={version}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    try:
        if done.returncode or not (made / "layer").is_dir():
            lines = masked(done.stderr).strip().splitlines() or ["it installed nothing"]
            return "", lines[-1].removeprefix("ERROR: ")
        try:
            os.rename(made / "layer", place)
        except OSError:
            if not place.is_dir():  # else another command was faster
                raise
        return str(place), ""
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _installed(name: str, option: str, label: str, row: str) -> PackageVersions:
    file = user_path(name)
    if file.is_file():
        found = read_requirements(file.read_text(encoding="utf-8", errors="replace").splitlines())
        if not found.versions:
            raise UsageError(f"{option} {name} has no line NAME==VERSION", hint="such as the output of `pip freeze`")
        return found
    around = load_record(run_named(name, option, label, row)).environment
    known = [(around.packages, around.direct), *((each.packages, each.direct) for each in around.containers)]
    packages, direct = next((each for each in known if each[0]), ({}, {}))
    if not packages:
        raise UsageError(
            f"{option} {name}: its packages were not seen", hint="name a file as `pip freeze` prints it instead"
        )
    return PackageVersions(
        {_normalized(each): version for each, version in packages.items()},
        frozenset(map(_normalized, direct)),
        ".".join((around.python or "").split(".")[:2]),
    )


def _is_name(change: Change) -> bool:
    versions = [version for version in (change.good, change.bad) if version]
    return _NAME.fullmatch(change.name) is not None and all(map(_VERSION.fullmatch, versions))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
