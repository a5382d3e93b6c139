"""What stands here for `actions/checkout` and `actions/setup-python`, and which of their inputs make a difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ci_tasks.records import Deviation
from ci_tasks.workflow.model import Step
from ci_tasks.workflow.resolve import Resolver

CHECKOUT = "actions/checkout"
SETUP_PYTHON = "actions/setup-python"
PYTHON_VERSION = "python-version"
# What checkout does differently when asked to: input → (what, what is here, why); not for values that change nothing.
_OF_CHECKOUT = {
    "submodules": ("submodules", "as they are in your checkout", "no server is asked for them"),
    "lfs": ("LFS files", "pointers, as committed", "no server is asked for them"),
    "sparse-checkout": ("sparse-checkout", "the whole tree", "your working tree is what is tested"),
    "fetch-depth": ("history", "one commit", "only the tested commit is sent"),
    "fetch-tags": ("tags", "none", "only the tested commit is sent"),
}
_USUAL = {"fetch-depth": "1"}
# Inputs of GitHub's actions that say how something is fetched, kept or shown, and not what a later step sees.
_WITHOUT_EFFECT = {
    CHECKOUT: frozenset(
        ("token", "ssh-key", "ssh-known-hosts", "ssh-strict", "ssh-user", "persist-credentials", "clean", "filter")
        + ("sparse-checkout-cone-mode", "show-progress", "set-safe-directory", "github-server-url")
    ),
    SETUP_PYTHON: frozenset(("cache", "cache-dependency-path", "check-latest", "token", "allow-prereleases")),
}


def used_inputs(step: Step) -> dict[str, object]:
    """The inputs of a step's action that make a difference, unevaluated."""
    action = (step.uses or "").split("@")[0]
    return {key: value for key, value in step.with_.items() if key not in _WITHOUT_EFFECT.get(action, ())}


def checked_out_elsewhere(inputs: Mapping[str, str], resolve: Resolver) -> list[str]:
    """The inputs of a checkout that ask for something else than the event's own commit."""
    github = resolve.contexts["github"]
    own = {
        "repository": ("", github.get("repository")),
        "ref": ("", github.get("sha"), github.get("ref")),
        "path": ("", ".", "./"),
    }
    return [key for key, values in own.items() if inputs.get(key, "") not in values]


def checkout_deviations(step: Step, inputs: Mapping[str, str]) -> Iterator[Deviation]:
    """What a checkout of the event's commit would have done otherwise."""
    for key, value in inputs.items():
        if key in _OF_CHECKOUT and value not in ("", "false", _USUAL.get(key)):
            what, here, why = _OF_CHECKOUT[key]
            yield Deviation(what, f"{key}: {value}", here, why)
        elif key not in _OF_CHECKOUT and key not in ("repository", "ref", "path"):
            yield _not_used(step, key, value)


def setup_python_deviations(step: Step, inputs: Mapping[str, str]) -> Iterator[Deviation]:
    for key, value in inputs.items():
        if key != PYTHON_VERSION:
            yield _not_used(step, key, value)


def _not_used(step: Step, key: str, value: str) -> Deviation:
    return Deviation(
        f"step {step.name!r}", f"{key}: {value}", "not used", f"{(step.uses or '').split('@')[0]} is not run"
    )
