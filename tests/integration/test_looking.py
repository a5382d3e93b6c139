"""Looking executes nothing that a checkout names: each setting of git's that names a program has one that leaves a
mark, in every place where git would find it, and no command may leave a mark."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts.git import git, repository
from tests.parts.nightly import drawn

_FILTERS = "*.py filter=x diff=x merge=x\n*.md filter=y\n*.toml filter=z\n"
_HOOKS = (
    *("post-checkout", "post-index-change", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman", "pre-commit"),
)
# Section of git's configuration → its keys that name a program; each leaves the mark KEY.
_PROGRAMS = {
    "core": "fsmonitor sshCommand gitProxy askPass pager editor alternateRefsCommand",
    "diff": "external",
    'diff "x"': "textconv command",
    'merge "x"': "driver",
    "pager": "log config",
    "gpg": "program",
    "sequence": "editor",
    "uploadpack": "packObjectsHook",
}
# The same, and whatever has another form: `{mark-NAME}` is a command that leaves the mark NAME.
SETTINGS = "".join(
    f"[{section}]\n" + "".join(f'    {key} = "{{mark-{key}}}"\n' for key in keys.split())
    for section, keys in _PROGRAMS.items()
)
SETTINGS += """
[core]
    hooksPath = "{hooks}"
    attributesFile = "{attributes}"
[filter "x"]
    clean = "{mark-clean}; cat"
    smudge = "{mark-smudge}; cat"
[filter "y"]
    process = "{mark-process}"
    required = true
[include]
    path = "{included}"
[alias]
    rev-list = "!{mark-alias}"
    config = "!{mark-alias-config}"
[credential]
    helper = "!{mark-credential}"
[log]
    showSignature = true
[ssh]
    variant = simple
[submodule "third"]
    update = "!{mark-update}"
"""
_REMOTE = """
[remote "origin"]
    url = "{url}"
    promisor = true
    partialclonefilter = blob:none
    uploadpack = "{mark-uploadpack}"
[extensions]
    partialClone = origin
"""


class Traps:
    """`marks` gets a file for each program that was executed, PLACE.NAME."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.marks = directory, directory / "marks"
        self.marks.mkdir(parents=True)

    def text(self, place: str, settings: str, **more: str) -> str:
        hooks = self.directory / f"{place}.hooks"
        hooks.mkdir()
        for name in _HOOKS:
            (hooks / name).write_text(f"#!/bin/sh\ntouch '{self.marks}'/{place}.hook\n")
            (hooks / name).chmod(0o755)
        included = self.directory / f"{place}.included"
        clean = f"touch '{self.marks}'/{place}.included; cat"
        included.write_text(f'[filter "z"]\n    clean = "{clean}"\n')
        attributes = self.directory / "attributes"
        attributes.write_text(_FILTERS)
        paths = {"hooks": hooks, "included": included, "attributes": attributes, **more}
        for name, value in paths.items():
            settings = settings.replace(f"{{{name}}}", str(value))
        return settings.replace("{mark-", f"touch '{self.marks}'/{place}.").replace("}", "")

    def left(self) -> list[str]:
        return sorted(mark.name for mark in self.marks.iterdir())

    def reset(self) -> None:
        for mark in self.marks.iterdir():
            mark.unlink()


@pytest.fixture
def traps() -> Iterator[Traps]:
    """Below a path that needs no quotes in git's settings."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Traps(Path(directory))


def _append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def _repository(path: Path) -> Path:
    repository(path, dict.fromkeys(("inside.py", "inside.md", "inside.toml"), "inside\n"))
    (path / ".gitattributes").write_text(_FILTERS)
    return path


def _arm(checkout: Path, traps: Traps) -> dict[str, Path]:
    """Every place with its settings. Returns the directories in which git obeys them."""
    library = _repository(traps.directory / "library")
    git(checkout, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "third")
    git(checkout, "commit", "-q", "-m", "submodule")
    _repository(checkout / "nested")
    bare = checkout / "bare"
    for name in ("objects", "refs", "info"):
        (bare / name).mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "inside.py").write_text("inside\n")
    (bare / "config").write_text("[core]\n    repositoryformatversion = 0\n    bare = false\n    worktree = .\n")
    _append(bare / "config", traps.text("bare", SETTINGS))
    (bare / "info/attributes").write_text(_FILTERS)
    _append(checkout / ".git/modules/third/config", traps.text("submodule", SETTINGS))
    _append(checkout / "nested/.git/config", traps.text("nested", SETTINGS))
    _append(checkout / ".lfsconfig", traps.text("lfsconfig", '[lfs]\n    url = "{mark-url}"\n' + SETTINGS))
    _append(checkout / ".gitattributes", _FILTERS)
    (checkout / ".git/info/attributes").write_text(_FILTERS)
    for file in [*checkout.rglob("*.py"), *checkout.rglob("*.md"), *checkout.rglob("*.toml")]:
        if ".git" not in file.parts:
            os.utime(file, (1, 1))  # git reads what has another time than in the index
    subprocess.run(["git", "config", "extensions.worktreeConfig", "true"], cwd=checkout, check=True)
    (checkout / ".git/config.worktree").write_text(traps.text("worktree", SETTINGS.replace("{included}", "/none")))
    _append(checkout / ".git/config", traps.text("repo", SETTINGS))
    return {"worktree": checkout, "submodule": checkout / "third", "nested": checkout / "nested", "bare": bare}


def _assert_armed(places: dict[str, Path], traps: Traps) -> None:
    """git itself falls into them."""
    for place, directory in places.items():
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        for pattern in ("*.py", "*.md", "*.toml"):
            subprocess.run(["git", "add", "-n", pattern], cwd=directory, capture_output=True, env=environ)
        subprocess.run(["git", "log", "-p"], cwd=directory, capture_output=True, env=environ)
        assert f"{place}.clean" in traps.left()
    expected = {"repo.included", "worktree.fsmonitor", "submodule.process", "bare.clean"}
    assert expected <= set(traps.left())
    traps.reset()


def test_no_command_that_looks_executes_what_a_checkout_names(person: Any, traps: Traps) -> None:
    log = person.home.with_name("job.log")
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: bad\n')
    person.write("tests/test_tiny_ckpt.py", "print('step 0:', {'x': 1})\n")
    assert person.ci_tasks("remote", "--host", "sim", "ckpt", "--only", "async").code == 0
    for number in range(2):
        person.write("note.txt", f"{number}\n")
        person.git("add", "--all")
        person.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "another")
    places = _arm(person.checkout, traps)
    _assert_armed(places, traps)
    person.env.update(HF_ENDPOINT="http://127.0.0.1:9", GIT_PAGER="cat")
    commands = [
        *("jobs --json", "jobs --rev main", "jobs changed --base main~1"),
        *("plan ckpt", "plan changed --base main~1", "plan ckpt --rev main~1"),
        *("lint --rev main", "coverage --diff main~1", "prefetch ckpt --dry-run", f"triage {log}"),
        *("remote --host sim ckpt --only async; diff last", "runs", "report last", "lint", "doctor"),
    ]
    chosen = sorted(drawn(commands, 8), key=commands.index)
    for command in (each for several in chosen for each in several.split("; ")):
        said = person.ci_tasks(*command.split(" "))
        assert traps.left() == [], command
        assert said.code in (0, 1, 125), f"{command}: {said.err}"


@pytest.mark.parametrize(
    ("url", "trap"), [("{far}", "repo.uploadpack"), ("ssh://nowhere.invalid/far", "repo.sshCommand")]
)
def test_no_command_fetches_what_a_clone_lacks(person: Any, traps: Traps, tmp_path: Path, url: str, trap: str) -> None:
    far = person.checkout
    person.edit("pyproject.toml", "[build-system]", "# edited\n[build-system]")
    person.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", "edited")
    person.git("config", "uploadpack.allowFilter", "true")
    near = tmp_path / "near"
    subprocess.run(["git", "clone", "-q", "--filter=blob:none", f"file://{far}", str(near)], check=True)
    (near / ".git/config").write_text(
        "[core]\n    repositoryformatversion = 1\n"
        + traps.text("repo", SETTINGS + _REMOTE, url=url.replace("{far}", str(far)))
    )
    subprocess.run(["git", "show", "main~1:pyproject.toml"], cwd=near, capture_output=True)
    assert traps.left() == [trap], "git itself fetches"
    traps.reset()
    person.checkout = near
    for command in ("plan ckpt", "lint", "jobs --rev main~1"):
        assert person.ci_tasks(*command.split()).code in (0, 1), command
        assert traps.left() == [], command
    for command in ("plan ckpt --rev main~1", "lint --rev main~1", "remote --host sim ckpt --rev main~1"):
        said = person.ci_tasks(*command.split())
        assert (said.code, traps.left()) == (2, []), (command, said.out, said.err)
        assert "in a partial clone: `git fetch --refetch --no-filter`" in said.err, said.err
