"""Which checkout is meant, and what its workflow says."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import resources
from ci_tasks.errors import CheckoutError, ConfigError, printable
from ci_tasks.model import Workflow
from ci_tasks.suites import slime
from ci_tasks.sync.git import Git
from ci_tasks.workflow.reader import read as read_workflow

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.workflow.context import Situation

REPO_ENV = "CI_TASKS_REPO"
HOSTS_ENV = "CI_TASKS_HOSTS"
SAMPLE = "examples/tiny-slime"


@dataclass(frozen=True)
class Source:
    """A checkout, how it was found, and its workflow. `rev` is None for the working tree."""

    path: Path
    how: str
    workflow: Workflow
    sample: bool = False
    rev: str | None = None

    @property
    def headline(self) -> str:
        if self.sample:
            return f"checkout: the embedded sample {SAMPLE} ({self.how}); --repo DIR or {REPO_ENV} picks another"
        return printable(f"checkout: {self.path}{f' at {self.rev}' if self.rev else ''} ({self.how})")


def open_source(repo: str | None = None, rev: str | None = None, workflow: str | None = None) -> Source:
    """Find the checkout and read its workflow. Raises CheckoutError, WorkflowError."""
    path, how = _find(repo)
    sample = path == resources.path(SAMPLE)
    return Source(path, how, _read(path, rev, workflow), sample, rev)


def situation(source: Source, *, secrets: tuple[str, ...]) -> Situation:
    """What GitHub would know of this checkout. `secrets` are the names that count as set."""
    from ci_tasks.workflow.context import Situation

    return Situation(repository=_repository(source.path), secrets=secrets)


def given_secrets(workflow: Workflow) -> tuple[str, ...]:
    """The workflow's secrets that the caller's environment has. Only names leave this function."""
    return tuple(name for name in workflow.secrets if os.environ.get(name))


def open_config() -> Config:
    """CI_TASKS_HOSTS, else ./hosts.yaml, else the user's, else the one that ships. Raises ConfigError."""
    from ci_tasks.config import read

    named = os.environ.get(HOSTS_ENV)
    candidates = (
        [Path(named).expanduser()] if named else [Path("hosts.yaml"), _users_hosts(), resources.path("hosts.yaml")]
    )
    for path in candidates:
        if path.is_file():
            return read(path.read_text(encoding="utf-8"), str(path))
    raise ConfigError("there is no such file", file=str(candidates[0]), hint=f"{HOSTS_ENV} names it")


def _users_hosts() -> Path:
    from platformdirs import user_config_path

    return user_config_path("ci-tasks") / "hosts.yaml"


def _find(repo: str | None) -> tuple[Path, str]:
    if repo:
        return _directory(repo, "--repo"), "--repo"
    if named := os.environ.get(REPO_ENV):
        return _directory(named, REPO_ENV), REPO_ENV
    here = Path.cwd()
    for directory in (here, *here.parents):
        if _has_workflow(directory):
            return directory, "the current directory"
    if _has_workflow(here.parent / "slime"):
        return (here.parent / "slime").resolve(), "the sibling ../slime"
    return resources.path(SAMPLE), "no checkout was named and none is here"


def _directory(name: str, what: str) -> Path:
    path = Path(name).expanduser().absolute()
    if not path.is_dir():
        raise CheckoutError(f"{what} names {path}, which is not a directory")
    return path.resolve()


def _has_workflow(directory: Path) -> bool:
    return (directory / slime.WORKFLOW).is_file() or (directory / slime.TEMPLATE).is_file()


def _read(path: Path, rev: str | None, name: str | None) -> Workflow:
    wanted = name or slime.WORKFLOW
    text = _text(path, rev, wanted)
    if text is not None and not wanted.endswith(".j2"):
        return read_workflow(text, wanted)
    template = wanted if wanted.endswith(".j2") else wanted + ".j2"
    text = _text(path, rev, template) if text is None else text
    if text is None:
        _not_bare(path)
        raise CheckoutError(
            f"{path} has no {wanted}{f' at {rev}' if rev else ''}, nor {template}", hint=_choices(path, rev)
        )
    from ci_tasks.workflow.template import render

    return read_workflow(render(text, template), template, rendered=True)


def _text(path: Path, rev: str | None, name: str) -> str | None:
    if rev is None:
        file = path / name
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    from ci_tasks.sync.snapshot import resolve_rev

    commit = resolve_rev(path, rev)
    return Git(path).maybe("show", f"{commit}:./{name}")


def _not_bare(path: Path) -> None:
    if Git(path).maybe("rev-parse", "--is-bare-repository") == "true":
        raise CheckoutError(
            f"{path} is a bare repository: it has no files to run",
            hint=f"git -C {shlex.quote(str(path))} worktree add DIR makes a checkout for --repo DIR",
        )


def _choices(path: Path, rev: str | None) -> str:
    if rev is None:
        files = [str(file.relative_to(path)) for file in sorted((path / ".github/workflows").glob("*.y*ml*"))]
    else:
        files = (Git(path).maybe("ls-tree", "--name-only", rev, ".github/workflows/") or "").splitlines()
    return (
        f"--workflow FILE picks one of: {', '.join(files)}"
        if files
        else "it has no workflow at all: is it the right one?"
    )


def _repository(path: Path) -> str:
    """owner/name as the remote `origin` says it; a neutral name where there is none."""
    found = re.search(r"([^/:]+/[^/]+?)(?:\.git)?/?$", origin(path))
    return found[1] if found else "owner/repository"


def origin(path: Path) -> str:
    """The address of the remote `origin`, "" without one."""
    try:
        return Git(path).maybe("config", "--get", "remote.origin.url") or ""
    except CheckoutError:
        return ""
