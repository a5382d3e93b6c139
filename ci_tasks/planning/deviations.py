"""What differs from CI in a planned row, each difference by name. What a container's runtime adds, the runner says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci_tasks.agent.records import ProbeRules
from ci_tasks.config import HostSpec
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.expression_references import condition_texts, expression_texts, referenced_names
from ci_tasks.planning.runners import runner_deviations
from ci_tasks.planning.steps import PlannedSteps, version_matches
from ci_tasks.records import Checkout, Deviation
from ci_tasks.workflow.context import ASSUMED, EventContext
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.naming import leaves
from ci_tasks.workflow.resolve import Resolver
from ci_tasks.workflow.values import Unknown, shown, unknowns

# "Workflow syntax for GitHub Actions": the default of jobs.<job_id>.timeout-minutes.
_GITHUB_MINUTES = 360
CODE, CONVERTED, OVERLAY = "code", "files unlike CI's checkout", "overlay"
_NOT_SET = "not set"
_OF_PULL_REQUEST = ("github.event.pull_request.number", "github.event.number", "github.ref", "github.head_ref")


def deviations(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    resolve: Resolver,
    planned: PlannedSteps,
    checkout: Checkout,
    python: str,
    *,
    shared: bool,
    event: EventContext,
) -> tuple[Deviation, ...]:
    """Every way in which the row's plan is not CI's. `python` is the version at hand, `shared` says that the install
    steps are done once for all rows."""
    read = _read(workflow, job, planned)
    return (
        *code_deviations(checkout),
        Deviation("PYTEST_ADDOPTS", "unset", "--junitxml=…", "evidence of the tests that ran"),
        *_time(row, host),
        *planned.deviations,
        *_python(row, planned, host, python, shared=shared),
        *runner_deviations(job, row, host, resolve),
        *_machine(row, host),
        *_unused(workflow, job, event),
        *_strategy(row, resolve),
        *_condition(job, resolve),
        *_needs(job, resolve),
        *_pull_request(event, read),
        *_given(event.given, read),
        *_assumed(event, resolve, read),
        *_secrets(workflow, resolve, read),
    )


def probe_deviation(probe: ProbeRules | None) -> Iterator[Deviation]:
    if probe is not None:
        here = "Python processes note what they import, how they fail and how they end; torch's flight recorder is on"
        yield Deviation("probe", "none", here, "evidence from inside the job; --no-probe leaves it out")


def host_deviations(host: HostSpec) -> Iterator[Deviation]:
    """What hosts.yaml gives to every job of the host."""
    if host.env:
        here = " ".join(host.env)
        yield Deviation("host env", "the runner's", here, f"hosts.yaml env of {host.name}; values are not shown")


def overlay_deviations(checkout: Checkout) -> Iterator[Deviation]:
    for overlay in checkout.overlays:
        here = f"{overlay.title}, tree {overlay.tree[:12]}"
        yield Deviation(f"{OVERLAY} {overlay.name}", "the installed one", here, f"--with {overlay.name}={overlay.path}")
        if overlay.build:
            yield Deviation(f"{OVERLAY} {overlay.name}: build", "none", overlay.build, "--build, in its tree")


def code_deviations(checkout: Checkout) -> Iterator[Deviation]:
    """What is said of the code under test."""
    why = f"{checkout.rev} is what is tested" if checkout.rev else "your working tree is what is tested"
    yield Deviation(CODE, "the pull request's merge commit", checkout.title, why)
    disk = "as committed" if checkout.rev else "as on your disk"
    for found in checkout.conversions:
        more = found.count - len(found.files)
        files = ", ".join(found.files) + (f" and {more} more" if more else "")
        yield Deviation(CONVERTED, "as actions/checkout writes them", f"{disk}: {files}", found.why)


def _time(row: Row, host: HostSpec) -> Iterator[Deviation]:
    if row.timeout_minutes is None and host.timeout_minutes != _GITHUB_MINUTES:
        ci, here = f"{_GITHUB_MINUTES} min, GitHub's default", f"{host.timeout_minutes:g} min"
        yield Deviation("timeout", ci, here, f"timeout_minutes of host {host.name}")


def _pull_request(event: EventContext, read: Iterable[str]) -> Iterator[Deviation]:
    if not event.given.event and any(name.startswith(_OF_PULL_REQUEST) for name in read):
        yield Deviation("pull request", "its number and refs", "none", "only GitHub knows them")


def _python(row: Row, planned: PlannedSteps, host: HostSpec, python: str, *, shared: bool) -> Iterator[Deviation]:
    if planned.python and not version_matches(planned.python, python):
        yield Deviation("Python", planned.python, python, f"no Python {planned.python} on this host")
    if shared:
        why = "the same for every row; rows share one checkout"
        yield Deviation("install steps", "once a row", "once for all rows", why)
    if host.simulate and not planned.python:
        here = f"a venv over Python {python}"
        yield Deviation("Python packages", "the image's", here, f"{host.name} has no image")
    elif row.image and host.runtime == "none" and not planned.python:
        here = "a venv over the python3 on PATH"
        yield Deviation("Python packages", "the image's own", here, "what a row installs is gone with it")


def _machine(row: Row, host: HostSpec) -> Iterator[Deviation]:
    if host.simulate and row.needed_gpus:
        yield Deviation("GPUs", "the runner's", "simulated GPUs", f"{host.name} simulates them")
    if row.image and host.runtime != "docker":
        here = "no container" if host.runtime == "none" else host.runtime
        yield Deviation("container", row.image, here, f"runtime of host {host.name}")


def _unused(workflow: Workflow, job: Job, event: EventContext) -> Iterator[Deviation]:
    """Keys of the workflow and the job that have no effect here."""
    if not workflow.is_for_pull_requests:
        yield Deviation("event", ", ".join(workflow.events), "pull_request", "no pull request starts this workflow")
    for key in (*workflow.unused, *job.unused):
        of_other_event = key.name.startswith("on.") and not key.name.startswith("on.pull_request")
        is_met = key.name == "on.pull_request.branches" and event.base in workflow.branches
        if not of_other_event and not is_met and not key.name.startswith("strategy."):
            yield Deviation(key.name, "as the workflow says", "not used", key.why)


def _strategy(row: Row, resolve: Resolver) -> Iterator[Deviation]:
    strategy = resolve.contexts["strategy"]
    if row.total < 2:
        return
    if strategy["fail-fast"] is not False:
        yield Deviation(
            "strategy.fail-fast", "a failed row cancels the others", "only with --fail-fast", "each row is of interest"
        )
    limit = strategy["max-parallel"]
    if isinstance(limit, Unknown) or limit != row.total:
        ci = f"{shown(limit)} rows at once"
        yield Deviation("strategy.max-parallel", ci, "as many as fit", "--jobs and the GPUs decide")


def _condition(job: Job, resolve: Resolver) -> Iterator[Deviation]:
    holds = resolve.decide(job.condition)
    if holds is not True:
        ci = "only GitHub knows whether it runs" if isinstance(holds, Unknown) else "does not run"
        yield Deviation("if", f"{ci}: {job.condition}", "runs", "it was asked for by name")


def _needs(job: Job, resolve: Resolver) -> Iterator[Deviation]:
    """Jobs that CI runs before. What they would output is unknown, unless they were run for it."""
    outputs = {name: resolve.contexts["needs"].get(name, {}).get("outputs") for name in job.needs}
    left_out = [name for name, known in outputs.items() if not known or list(unknowns(known))]
    if left_out:
        yield Deviation("needs", f"after {', '.join(left_out)}", "not run", "the row was asked for alone")


def _given(given: GivenValues, read: Iterable[str]) -> Iterator[Deviation]:
    """What somebody says of what only GitHub knows, where the row reads it."""
    values = {
        **{f"vars.{name}": value for name, value in given.vars.items()},
        **{f"inputs.{name}": value for name, value in given.inputs.items()},
        **{
            f"needs.{job}.outputs.{name}": value
            for job, outputs in given.outputs.items()
            for name, value in outputs.items()
        },
    }
    names = {name.lower().replace("github.event.inputs.", "inputs.") for name in read}
    for name, value in values.items():
        if any(_covers(read_name, name.lower()) for read_name in names):
            yield Deviation(name, "GitHub's value", value, given.sources.get(name, "given"))
    if given.event and any(name.startswith(("github.event.", *_OF_PULL_REQUEST)) for name in names):
        yield Deviation("github.event", "GitHub's payload", "the given one", given.sources.get("github.event", "given"))


def _covers(read_name: str, name: str) -> bool:
    """Whether an expression that reads `read_name`, perhaps a whole object, reads `name`."""
    return name == read_name or name.startswith(read_name + ".")


def _assumed(event: EventContext, resolve: Resolver, read: Iterable[str]) -> Iterator[Deviation]:
    for name in read:
        if name in ASSUMED and not event.given.event:
            here = resolve.shown(f"${{{{ {name} }}}}")
            yield Deviation(name, "GitHub's value", here, "what a labelled pull request usually has")


def _secrets(workflow: Workflow, resolve: Resolver, read: Iterable[str]) -> Iterator[Deviation]:
    """Secrets that the row's own texts name and that the caller's environment does not have."""
    referenced: list[str] = []
    for name in read:
        if name == "secrets":
            referenced += workflow.secrets
        elif name.startswith("secrets."):
            referenced.append(name.split(".")[1])
        elif name == "github.token":
            referenced.append("GITHUB_TOKEN")
    available = {name.lower() for name in resolve.contexts["secrets"]}
    missing = [name for name in dict.fromkeys(referenced) if name.lower() not in available]
    if missing:
        yield Deviation("secrets", ", ".join(missing), "unset", "not in your environment")


def _read(workflow: Workflow, job: Job, planned: PlannedSteps) -> list[str]:
    """What the row's expressions read, as dotted names: the environment's, the container's and those of its steps."""
    values = (*workflow.env.values(), *job.env.values(), job.timeout_minutes, job.shell, job.working_directory)
    texts = [str(value) for value in (*values, *leaves(job.matrix), *leaves(job.runs_on))]
    texts += condition_texts(job.condition)
    if job.container:
        options = (job.container.image, job.container.options, *job.container.volumes)
        texts += [*options, *(str(value) for value in job.container.env.values())]
    return referenced_names([*texts, *(text for step in planned.sources for text in expression_texts(step))])
