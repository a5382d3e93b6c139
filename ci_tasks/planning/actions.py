"""What stands here for an action that a step `uses`.

`actions/checkout` is our code sync, `actions/setup-python` a venv; tools are to be on PATH; a build without a push is
docker's own; what only serves CI's machines, or people, is left out by name. Any other is an error that says how to
replace it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch

from ci_tasks.agent.records import Deviation
from ci_tasks.planning.script import part
from ci_tasks.workflow.context import EventContext, Resolver
from ci_tasks.workflow.expressions import references
from ci_tasks.workflow.model import Job, Step
from ci_tasks.workflow.runner import labels
from ci_tasks.workflow.values import OpenObject, Unknown, Value

CHECKOUT, SETUP_PYTHON, VERSION = "actions/checkout", "actions/setup-python", "python-version"
BUILD, PRE_COMMIT = "docker/build-push-action", "pre-commit/action"
UPLOAD, DOWNLOAD = "actions/upload-artifact", "actions/download-artifact"
_MOVES, FREES_ROOM, _TELLS = "only moves files around in CI", "frees disk space on CI's machine", "only tells people"
# An action, or the directory of several, and why nothing is run for it.
WITHOUT_EFFECT = {
    "actions/cache": _MOVES,
    f"{UPLOAD}/merge": _MOVES,
    "jlumbroso/free-disk-space": FREES_ROOM,
    "easimon/maximize-build-space": FREES_ROOM,
    "docker/login-action": "docker's own login on this host counts",
    "docker/setup-buildx-action": "docker's own builder is used",
    "docker/setup-qemu-action": "docker's own builder is used",
    "actions/create-github-app-token": "its token is empty",
    "codecov/codecov-action": _TELLS,
    "slackapi/slack-github-action": _TELLS,
    "rtCamp/action-slack-notify": _TELLS,
    "8398a7/action-slack": _TELLS,
    "huggingface/hf-workflows/.github/actions/post-slack": _TELLS,
}
# What GitHub's machines have and jobs remove, and the commands of a script that does no more than to make room.
_PLACE = (
    r"[\"']?/(?:usr/share/(?:dotnet|swift)|usr/local/(?:lib/(?:android|node_modules)|\.ghcup|share/(?:boost|powershell))"
    r"|opt/(?:az|ghc|hostedtoolcache)|var/lib/docker)\b[\w./*-]*[\"']?"
)
_MAKES_ROOM = re.compile(
    rf"(?:sudo )?(?:rm -\w+(?: {_PLACE})+|mv {_PLACE} \S+|sh -c \"mv \S+ {_PLACE}|apt-get (?:clean|autoremove)(?: -y)?"
    r"|npm cache clean --force|pip cache purge|docker \w+ prune[ \w-]*|(?:df|du|echo)\b[^>`$]*|true)?"
)
# Actions that install a program, which is to be here.
ON_PATH = {
    "astral-sh/setup-uv": "uv",
    "actions/setup-node": "node",
    "azure/setup-helm": "helm",
    "mozilla-actions/sccache-action": "sccache",
}
SCRIPTS = (*ON_PATH, BUILD, PRE_COMMIT, UPLOAD, DOWNLOAD)
# Outputs that are empty here, as if the cache had missed and the app had given no token.
_ABSENT_OUTPUTS: dict[str, dict[str, Value]] = {
    "actions/cache": {"cache-hit": ""},
    "actions/create-github-app-token": {"token": ""},
}
# What checkout does differently when asked to: input → (what, what is here, why); not for values that change nothing.
_OF_CHECKOUT = {
    "submodules": ("submodules", "as in your checkout", "`git submodule update --init` fetches missing ones"),
    "lfs": ("LFS files", "pointers, as committed", "no server is contacted"),
    "sparse-checkout": ("sparse-checkout", "the whole tree", "your working tree is tested"),
    "fetch-depth": ("history", "one commit", "only the tested commit is sent"),
    "fetch-tags": ("tags", "none", "only the tested commit is sent"),
}
# Inputs of actions that say how something is fetched, kept or shown, and not what a later step sees.
_UNUSED_INPUTS = {
    CHECKOUT: ("token", "ssh-key", "ssh-known-hosts", "ssh-strict", "ssh-user", "persist-credentials", "clean")
    + ("filter", "sparse-checkout-cone-mode", "show-progress", "set-safe-directory", "github-server-url"),
    SETUP_PYTHON: ("cache", "cache-dependency-path", "check-latest", "token", "allow-prereleases"),
    BUILD: ("cache-from", "cache-to", "provenance", "sbom", "github-token", "builder", "annotations", "outputs"),
}
_BUILD_OPTIONS = {"file": "-f", "target": "--target", "platforms": "--platform", "network": "--network"}
_BUILD_LISTS = {"tags": "-t", "build-args": "--build-arg", "labels": "--label", "build-contexts": "--build-context"}
_ARM = re.compile(r"(.*[-_.])?(arm|arm64|aarch64)([-_.].*)?", re.IGNORECASE)


def name_of(step: Step) -> str:
    return (step.uses or "").split("@")[0]


def without_effect(action: str) -> str | None:
    """Why nothing is run for the action, or a part of it, such as actions/cache/restore."""
    return next((why for name, why in WITHOUT_EFFECT.items() if _is_part(action, name)), None)


def only_makes_room(script: str) -> bool:
    lines = [line for line in script.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    commands = [" ".join(each.split()) for line in lines for each in re.split(r"&&|\|\||;", line)]
    return re.search(_PLACE, script) is not None and all(map(_MAKES_ROOM.fullmatch, commands))


def _is_part(action: str, name: str) -> bool:
    return action == name or action.startswith(name + "/")


def version_matches(requested: str, version: str) -> bool:
    """Whether `version` (3.10.13) is what setup-python's `requested` (3.10, 3.x, 3.10.13) asks for."""
    parts = requested.split(".")
    return all(part in ("x", "*") or part == have for part, have in zip(parts, version.split("."), strict=False))


def architecture(job: Job, resolve: Resolver) -> str:
    """As `runner.arch` has it."""
    return "ARM64" if any(_ARM.fullmatch(label) for label in labels(job, resolve)) else "X64"


def used_inputs(step: Step) -> dict[str, object]:
    """The inputs of a step's action that make a difference, unevaluated."""
    action = name_of(step)
    unused = step.with_ if action in ON_PATH else _UNUSED_INPUTS.get(action, ())
    return {key: value for key, value in step.with_.items() if key not in unused}


def checked_out_elsewhere(inputs: Mapping[str, str], resolve: Resolver) -> list[str]:
    """The inputs of a checkout that ask for something else than the event's own commit."""
    github = resolve.contexts["github"]
    refs = ("", github.get("sha"), github.get("ref"))
    own = {"repository": ("", github.get("repository")), "ref": refs, "path": ("", ".", "./")}
    return [key for key, values in own.items() if inputs.get(key, "") not in values]


def checked_out_beside(step: Step, resolve: Resolver) -> str:
    """The other repository that a checkout puts below the tested one; "" for none."""
    repository, path = (resolve.text(step.with_.get(key, ""), step=step).strip() for key in ("repository", "path"))
    own = str(resolve.contexts["github"].get("repository"))
    names = {name.rpartition("/")[2].lower() for name in (repository, own)}  # a fork has the tested one's name
    is_other = repository and len(names) == 2 and own != EventContext.repository  # of no known origin
    is_below = posixpath.normpath(path or ".").split("/")[0] not in (".", "..", "", ".git")
    return repository if is_other and is_below else ""


def fetched(step: Step) -> Step:
    """The step with what run_parts.sh needs to fetch that repository."""
    inputs = {f"CI_TASKS_{name.upper()}": str(step.with_.get(name) or "") for name in ("repository", "ref", "path")}
    return replace(step, env={**step.env, **inputs})


def is_by_input(step: Step) -> bool:
    """Whether an input of the workflow says which ref is checked out."""
    return any(name.startswith(("inputs.", "github.event.inputs.")) for name in references(str(step.with_.get("ref"))))


def input_deviations(action: str, step: Step, inputs: Mapping[str, str]) -> Iterator[Deviation]:
    """What the action would have done otherwise."""
    for key, value in inputs.items():
        if action == CHECKOUT and key in _OF_CHECKOUT:
            if value not in ("", "false", "1" if key == "fetch-depth" else ""):
                what, here, why = _OF_CHECKOUT[key]
                yield Deviation(what, f"{key}: {value}", here, why)
        elif key not in {CHECKOUT: ("repository", "ref", "path"), SETUP_PYTHON: (VERSION,)}[action]:
            yield Deviation(f"step {step.name!r}", f"{key}: {value}", "not used", f"{action} is not run")


def _blocked(why: str) -> str:
    return f"{{ echo {shlex.quote(f'ci-tasks: blocked: {why}')} >&2; exit 125; }}\n"


def script(action: str, inputs: Mapping[str, str], workspace: str, uploaded: Iterable[str]) -> tuple[str, str]:
    """The script that stands for one of SCRIPTS, and what it does; "" for what has no equivalent here. `uploaded` are
    the artifacts that there are."""
    if program := ON_PATH.get(action):
        why = f"{action} is not run, and {program} is not on PATH here: install {program}"
        return f"command -v {program} || {_blocked(why)}", "is to be on PATH"
    if action == UPLOAD:
        return _upload(inputs, workspace)
    if action == DOWNLOAD:
        return _download(inputs, uploaded)
    if action == BUILD:
        text = _docker_build(inputs)
    else:  # the commands of pre-commit/action
        arguments = inputs.get("extra_args") or "--all-files"
        text = f"python -m pip install pre-commit\npre-commit run --show-diff-on-failure --color=always {arguments}\n"
    return text, text.strip()


def _upload(inputs: Mapping[str, str], workspace: str) -> tuple[str, str]:
    """The script that keeps what upload-artifact uploads, and where: below the deepest directory that all paths have in
    common, or by its name if the path is one file."""
    lines = [line.strip() for line in inputs.get("path", "").splitlines() if line.strip()]
    paths = [posixpath.join(workspace, line) for line in lines if not line.startswith("!")]
    searched = [posixpath.dirname(_WILDCARD.split(path)[0]) if _WILDCARD.search(path) else path for path in paths]
    root = posixpath.commonpath(searched or [workspace])
    place = f"artifacts/uploaded/{inputs.get('name') or 'artifact'}"
    patterns = shlex.join(posixpath.relpath(path, root) for path in paths)
    code = "1" if inputs.get("if-no-files-found") == "error" else "0"
    script = part("UPLOAD", place=shlex.quote(place), root=shlex.quote(root), patterns=patterns, code=code)
    return script, f"kept in {place}"


_WILDCARD = re.compile(r"[*?[]")


def _download(inputs: Mapping[str, str], uploaded: Iterable[str]) -> tuple[str, str]:
    """The script that stands for download-artifact, and what it does: it unpacks what jobs that ran here uploaded."""
    name, into = inputs.get("name", ""), inputs.get("path") or "."
    meant = [each for each in uploaded if each == name or (not name and fnmatch(each, inputs.get("pattern") or "*"))]
    if not meant or inputs.get("run-id"):
        why = f"no job that ran here uploaded {name or inputs.get('pattern') or 'artifacts'}, at most 1.5 MB packed"
        return _blocked(f"{why}; an override of the step in hosts.yaml replaces it"), f"blocked: {why}"
    is_flat = name or inputs.get("merge-multiple") == "true"
    pairs = [(shlex.quote(each), shlex.quote(into if is_flat else f"{into}/{each}")) for each in meant]
    lines = [f'mkdir -p -- {to} && tar -xzf "$CI_TASKS_RUN_DIR/tmp/artifacts/"{each} -C {to}\n' for each, to in pairs]
    return "".join(lines), f"uploads of jobs that ran here: {', '.join(meant)}"


def _docker_build(inputs: Mapping[str, str]) -> str:
    """`docker build` with the inputs of docker/build-push-action; "" for one that pushes or has an input without an
    option."""
    known = {"context", "push", "load", "no-cache", "pull", "secrets", *_BUILD_OPTIONS, *_BUILD_LISTS}
    if inputs.get("push", "false") not in ("false", "") or not known.issuperset(inputs) or inputs.get("secrets"):
        return ""
    words = ["docker", "build"]
    words += [f"--{key}" for key in ("no-cache", "pull") if inputs.get(key) == "true"]
    words += [word for key, flag in _BUILD_OPTIONS.items() if inputs.get(key) for word in (flag, inputs[key])]
    for key, flag in _BUILD_LISTS.items():
        lines = re.split(r"[,\n]" if key == "tags" else r"\n", inputs.get(key, ""))
        words += [word for line in lines if line.strip() for word in (flag, line.strip())]
    return shlex.join([*words, inputs.get("context") or "."]) + "\n"


def result(step: Step | None, id: str) -> dict[str, Value]:
    """What later steps see of this one. A step's own script, or one that stands for its action, leaves it when it ends;
    an action that is not run succeeds. What is not known later either, such as the end of an action of the checkout,
    has no name of its own."""
    name = f"steps.{id}"
    action = name_of(step) if step else ""
    unknown = Unknown((f"{name}.outputs",))
    if step is None or (not action and not only_makes_room(step.run or "")):
        return OpenObject(name, {"outputs": OpenObject(f"{name}.outputs")})
    if (action in SCRIPTS and action != UPLOAD) or (action == CHECKOUT and step.with_.get("path")):
        return OpenObject(name, {"outputs": unknown})
    if step.action:
        end = Unknown((f"{name}.outcome",))
        return OpenObject(name, {"outputs": {}, "outcome": end, "conclusion": end})
    outputs: Value = next((dict(known) for of, known in _ABSENT_OUTPUTS.items() if _is_part(action, of)), unknown)
    return OpenObject(name, {"outputs": outputs, "outcome": "success", "conclusion": "success"})
