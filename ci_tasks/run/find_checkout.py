"""Which checkout is meant."""

from __future__ import annotations

import os
from pathlib import Path

from ci_tasks import registry, resources
from ci_tasks.errors import CheckoutError
from ci_tasks.resources import user_path

REPO_ENV = "CI_TASKS_REPO"
SAMPLE = "examples/tiny-slime"


def find_checkout(repo: str | None) -> tuple[Path, str]:
    """The directory that is meant, and how it was found. Raises CheckoutError."""
    if repo:
        return _directory(repo, "--repo"), "--repo"
    if named := os.environ.get(REPO_ENV):
        return _directory(named, REPO_ENV), REPO_ENV
    if directory := current_checkout():
        return directory, "the current directory"
    here = Path.cwd()
    for name in (suite.directory for suite in registry.suites() if suite.directory):
        if _has_workflow(here.parent / name):
            return (here.parent / name).resolve(), f"the sibling ../{name}"
    return resources.path(SAMPLE), "no checkout was named and none is here"


def current_checkout() -> Path | None:
    """The checkout that the current directory is, or lies in."""
    here = Path.cwd()
    return next((directory for directory in (here, *here.parents) if _has_workflow(directory)), None)


def _directory(name: str, what: str) -> Path:
    path = user_path(name).absolute()
    if not path.is_dir():
        raise CheckoutError(f"{what} names {path}, which is not a directory")
    return path.resolve()


def _has_workflow(directory: Path) -> bool:
    return any((directory / f"{name}{end}").is_file() for name in usual_workflows() for end in ("", ".j2"))


def usual_workflows() -> list[str]:
    """The paths of the workflows that the suites know."""
    return [suite.workflow for suite in registry.suites() if suite.workflow]
