"""What differs from CI in a planned row, each difference by name. What a container's runtime adds, the agent says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci_tasks.agent.records import AGENT, Checkout, Deviation, GpuRequest, ProbeRules
from ci_tasks.config import HostSpec
from ci_tasks.errors import short
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.actions import architecture, version_matches
from ci_tasks.planning.steps import PlannedSteps, condition_texts, expression_texts, referenced_names
from ci_tasks.records import ONLY_TESTS
from ci_tasks.workflow.context import ASSUMED, EventContext, Resolver
from ci_tasks.workflow.model import OF_REPOSITORY, Job, Row, Workflow
from ci_tasks.workflow.runner import labels
from ci_tasks.workflow.values import Unknown, leaves, shown, unknowns

# "Workflow syntax for GitHub Actions": the default of jobs.<job_id>.timeout-minutes.
_GITHUB_MINUTES = 360
CODE, CONVERTED, OVERLAY, LOCKS = "code", "files unlike CI's checkout", "overlay", "GPU locks"
_OF_PULL_REQUEST = ("github.event.pull_request.number", "github.event.number", "github.ref", "github.head_ref")


def deviations(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    event: EventContext,
    resolve: Resolver,
    planned: PlannedSteps,
    python: str,
    *,
    shared: bool,
) -> tuple[Deviation, ...]:
    """What is not CI's in how the row runs on the host. `python` is the version at hand, `shared` says that the install
    steps are done once for all rows."""
    read = _read(workflow, job, planned)
    return (
        Deviation("PYTEST_ADDOPTS", "unset", "--junitxml=…", "evidence of the tests that ran"),
        *_time(row, host),
        *planned.deviations,
        *_python(row, planned, host, python, shared=shared),
        *runner_deviations(job, row, host, resolve),
        *_of_job(workflow, job, row, event, resolve),
        *_event(event, resolve, read),
        *_secrets(workflow, resolve, read),
        *_of_host(host),
    )


def code_deviations(checkout: Checkout) -> Iterator[Deviation]:
    """What is said of the code under test."""
    why = f"{checkout.rev} is tested" if checkout.rev else "your working tree is tested"
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


def _python(row: Row, planned: PlannedSteps, host: HostSpec, python: str, *, shared: bool) -> Iterator[Deviation]:
    if planned.python and not version_matches(planned.python, python):
        yield Deviation("Python", planned.python, python, f"no Python {planned.python} on this host")
    if shared:
        yield Deviation("install steps", "once a row", "once for all rows", "all rows share one checkout")
    if host.simulate and not planned.python:
        here = f"a venv over Python {python}"
        yield Deviation("Python packages", "the image's", here, f"{host.name} has no image")
    elif planned.layers_venv(row, host):
        ci, here = "the image's own" if row.image else "the runner's", "a venv over the python3 on PATH"
        yield Deviation("Python packages", ci, here, "packages that a row installs are removed with it")


def runner_deviations(job: Job, row: Row, host: HostSpec, resolve: Resolver) -> Iterator[Deviation]:
    """The parts of the machine of `runs-on` that a Linux host, its GPUs and its container do not replace."""
    names = ", ".join(labels(job, resolve))
    if list(unknowns(resolve.value(job.runs_on))):
        yield Deviation("machine", names, f"host {host.name}", "only GitHub knows the runner")
    elif row.runner == "github-hosted":
        yield Deviation("machine", "GitHub's runner", f"host {host.name}", "CI's packages may be missing here")
    if architecture(job, resolve) == "ARM64":
        yield Deviation("architecture", f"ARM64 ({names})", f"that of host {host.name}", "you chose the host")
    if row.gpus_given:
        yield Deviation("GPU count", f"that of the runner {names}", str(row.gpus), "--gpus")
    if host.simulate and row.needed_gpus:
        yield Deviation("GPUs", "the runner's", "simulated GPUs", f"{host.name} simulates them")
    if row.image and host.runtime != "docker":
        here = "no container" if host.runtime == "none" else host.runtime
        yield Deviation("container", row.image, here, f"runtime of host {host.name}")


def _of_job(workflow: Workflow, job: Job, row: Row, event: EventContext, resolve: Resolver) -> Iterator[Deviation]:
    """Keys of the workflow and the job that have no effect here; that rows run beside each other, that the job runs at
    all, and without the jobs before it, whose outputs are unknown unless they were run."""
    if not workflow.is_for_pull_requests:
        yield Deviation("event", ", ".join(workflow.events), "pull_request", "the workflow starts on other events")
    for key in (*workflow.unused, *job.unused):
        of_other_event = key.name.startswith("on.") and not key.name.startswith("on.pull_request")
        is_met = key.name == "on.pull_request.branches" and event.base in workflow.filters.get("branches", ())
        if not of_other_event and not is_met and not key.name.startswith("strategy."):
            yield Deviation(key.name, "as the workflow says", "not used", key.why)

    fail_fast, limit = (resolve.contexts["strategy"][key] for key in ("fail-fast", "max-parallel"))
    if row.total > 1 and fail_fast is not False:
        ci = "a failed row cancels the others"
        yield Deviation("strategy.fail-fast", ci, "only with --fail-fast", "every row's result counts")
    if row.total > 1 and (isinstance(limit, Unknown) or limit != row.total):
        ci = f"{shown(limit)} rows at once"
        yield Deviation("strategy.max-parallel", ci, "as many as fit", "--jobs and the GPUs decide")
    called = dict.fromkeys(each.call.workflow.path for each in workflow.jobs.values() if each.call)
    for of in filter(None, map(OF_REPOSITORY.fullmatch, called)):
        yield Deviation("called workflow", of[0], event.given.workflow_dirs[of[1]], "--workflow-dir")
    holds = resolve.decide(job.condition)
    if holds is not True:
        ci = "only GitHub knows if it runs" if isinstance(holds, Unknown) else "does not run"
        yield Deviation("if", f"{ci}: {job.condition}", "runs", "you named it")
    outputs = {name: resolve.contexts["needs"].get(name, {}).get("outputs") for name in job.needs}
    left_out = [name for name, each in outputs.items() if list(unknowns(each)) or not (each or name in event.outputs)]
    if left_out:
        yield Deviation("needs", f"after {', '.join(left_out)}", "not run", "you selected the row")


def _event(event: EventContext, resolve: Resolver, read: Iterable[str]) -> Iterator[Deviation]:
    """What replaces GitHub's values that the row reads: none, a person's, or an assumption."""
    given = event.given
    if not given.event and any(name.startswith(_OF_PULL_REQUEST) for name in read):
        yield Deviation("pull request", "its number and refs", "none", "only GitHub knows them")
    names = {name.lower().replace("github.event.inputs.", "inputs.") for name in read}
    for name, value in _given(given).items():
        # an expression may read the whole object
        if any(name.lower() == each or name.lower().startswith(f"{each}.") for each in names):
            yield Deviation(name, "GitHub's value", value, given.sources.get(name, "given"))
    if given.tests:
        yield Deviation("tests", "all of the row", " ".join(given.tests), ONLY_TESTS)
    if given.event and any(name.startswith(("github.event.", *_OF_PULL_REQUEST)) for name in names):
        yield Deviation("github.event", "GitHub's payload", "the given one", given.sources.get("github.event", "given"))
    for name in () if given.event else read:
        if name in ASSUMED:
            here = resolve.shown(f"${{{{ {name} }}}}")
            yield Deviation(name, "GitHub's value", here, "usual for a labelled pull request")


def _given(given: GivenValues) -> dict[str, str]:
    outputs = {(job, name): value for job, values in given.outputs.items() for name, value in values.items()}
    return {
        **{f"vars.{name}": value for name, value in given.vars.items()},
        **{f"inputs.{name}": value for name, value in given.inputs.items()},
        **{f"needs.{job}.outputs.{name}": value for (job, name), value in outputs.items()},
    }


def _secrets(workflow: Workflow, resolve: Resolver, read: Iterable[str]) -> Iterator[Deviation]:
    """Secrets that the row's own texts name and that the caller's environment does not have."""
    referenced: list[str] = []
    for name in read:
        context, _, key = ("secrets.GITHUB_TOKEN" if name == "github.token" else name).partition(".")
        if context == "secrets":
            referenced += [key.split(".")[0]] if key else workflow.secrets
    available = {name.lower() for name in resolve.contexts["secrets"]}
    missing = [name for name in dict.fromkeys(referenced) if name.lower() not in available]
    if missing:
        yield Deviation("secrets", ", ".join(missing), "unset", "not in your environment")


def _of_host(host: HostSpec) -> Iterator[Deviation]:
    """What hosts.yaml gives to every job of the host."""
    if host.env:
        why = f"hosts.yaml env of {host.name}; values are not shown"
        yield Deviation("host env", "the runner's", " ".join(host.env), why)


def agent_deviations(locks: GpuRequest | None, probe: ProbeRules | None, checkout: Checkout) -> Iterator[Deviation]:
    """A row without a lock script has CI's GPUs for itself in another way, or in none; and what is added to the row."""
    if locks is not None and locks.by == AGENT:
        yield Deviation(LOCKS, "none in the row's steps", "taken by ci-tasks", "keeps its GPUs from other runs")
    if probe is not None:
        here = "Python processes record imports, failures and how they end; torch's flight recorder is on"
        yield Deviation("probe", "none", here, "evidence from inside the job; --no-probe leaves it out")
    for overlay in checkout.overlays:
        here = f"{overlay.title}, tree {short(overlay.tree)}"
        yield Deviation(f"{OVERLAY} {overlay.name}", "the installed one", here, f"--with {overlay.name}={overlay.path}")


def _read(workflow: Workflow, job: Job, planned: PlannedSteps) -> list[str]:
    """What the row's expressions read, as dotted names: the environment's, the container's and its steps'."""
    values = (*workflow.env.values(), *job.env.values(), job.timeout_minutes, job.shell, job.working_directory)
    texts = [str(value) for value in (*values, *leaves(job.matrix), *leaves(job.runs_on))]
    texts += condition_texts(job.condition)
    if job.container:
        options = (job.container.image, job.container.options, *job.container.volumes)
        texts += [*options, *(str(value) for value in job.container.env.values())]
    return referenced_names([*texts, *(text for step in planned.sources for text in expression_texts(step))])
