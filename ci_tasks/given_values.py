"""What a person gives beside the checkout: values that only GitHub knows, and overlays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass


@dataclass(frozen=True)
class OverlaySource:
    """A working tree that is laid over what is installed, or its revision `rev`. One that
    is a `submodule` of the checkout, of that path, takes its place instead."""

    name: str
    path: str
    rev: str | None = None
    submodule: str = ""


@dataclass(frozen=True)
class GivenValues:
    """What a person says of what only GitHub knows. `outputs` is by job; `event` is a payload or a part of one.
    `sources` says where each comes from, by its name in expressions, such as `vars.REGISTRY`.
    `overlays` are working trees beside the checkout. `gpus` is the count of rows for which the workflow says none.
    `tests` are the only ones that rows run, as pytest names them: `FILE` or `FILE::NAME`.
    `outputs_from` is the log or the URL of a job in CI that used outputs of other jobs.
    `workflow_dirs` has checkouts of other repositories, by OWNER/REPO, for the workflows of theirs that are called."""

    vars: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    event: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    overlays: tuple[OverlaySource, ...] = ()
    gpus: int | None = None
    tests: tuple[str, ...] = ()
    workflow_dirs: Mapping[str, str] = field(default_factory=dict)
    outputs_from: str = ""

    @property
    def pytest_options(self) -> str:
        """The option with which pytest runs the given tests alone; "" for all. Its -k takes parts of names, so that the
        name of a test below a class, or with another one's in it, selects both."""
        each = [" and ".join([test.split("::")[0].rpartition("/")[2], *test.split("::")[1:]]) for test in self.tests]
        return f"-k '{' or '.join(f'({names})' for names in each)}'" if each else ""

    def with_overlay_at(self, name: str, rev: str) -> GivenValues:
        """The same, with the overlay `name` at one of its revisions instead of as its working tree is."""
        at_rev = (replace(overlay, rev=rev) if overlay.name == name else overlay for overlay in self.overlays)
        return replace(self, overlays=tuple(at_rev))


def by_job(outputs: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The outputs `JOB.NAME` by job."""
    found: dict[str, dict[str, str]] = {}
    for name, value in outputs.items():
        found.setdefault(name.split(".")[0], {})[name.partition(".")[2]] = value
    return found


NOTHING_GIVEN = GivenValues()
