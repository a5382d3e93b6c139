"""The container adapter: the `docker` of a run directory. The only place where CI's scripts are adapted to this host.

It gets the exact argv that CI would have given to docker, records it and what runs instead in docker.json, and then
becomes (exec) the real docker or podman, or the inner command where there are no containers. What is not possible here
is blocked (exit 125), not failed: nothing of the test has run. Messages go to stderr; those of a blocked run begin with
BLOCKED.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ..argv_masking import masked
from ..codec import RecordError
from ..gpus.run_resources import visible_gpus
from ..job_environment import secret_values
from ..records import Deviation, Plan
from ..run_directory import BLOCKED, EXIT_BLOCKED, RunDir, read_plan
from . import apptainer, kept, podman, probe_mounts, pyxis, ray_nodes
from .bare import bare_deviations, container_command, container_environment, inner_environment
from .container_names import names_here, with_names_here
from .docker_argv import DockerArgvError, DockerRun, is_run, parse_run, render, split_global
from .journal import ContainerBlocked, journal, masked_invocation, record_container, record_pull
from .mounts import bind_sources
from .rewrite import client_environment, rewrite
from .rootless import apply_rules
from .rules import APPTAINER, DOCKER, NONE, PODMAN, PYXIS, ContainerRules
from .run_containers import RunContainer
from .slurm_variables import VISIBLE, slurm_variables

# As docker's own exit codes, so that a script sees no difference.
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

_QUERY_SECONDS = 30.0
_DAEMONS = (DOCKER, PODMAN)
_ROOTLESS = {PYXIS: pyxis.rootless_command, APPTAINER: apptainer.rootless_command}
# Without a daemon these commands do nothing, so that a script that begins with them continues.
_SKIPPED = (["pull"], ["image", "pull"], ["login"], ["logout"])


def main(argv: Sequence[str], run_dir: str) -> int:
    """Run `docker ARGV` on this host. Returns only where nothing could be, or had to be, executed."""
    try:
        return _main(list(argv), RunDir(run_dir))
    except (ContainerBlocked, DockerArgvError, RecordError) as reason:
        _print_error(BLOCKED + str(reason))
        return EXIT_BLOCKED


def _main(argv: list[str], run_dir: RunDir) -> int:
    plan = read_plan(run_dir)
    rules = _read_rules(run_dir, plan)
    if not is_run(argv):
        return _run_other_command(argv, rules, run_dir)
    run = parse_run(argv)
    if rules.runtime == NONE:
        return _run_bare(run, rules, run_dir, plan)
    if rules.runtime in _ROOTLESS:
        return _run_rootless(run, rules, run_dir)
    return _run_in_container(run, rules, run_dir, plan)


def _read_rules(run_dir: RunDir, plan: Plan) -> ContainerRules:
    rules = plan.container
    if rules is None:
        raise ContainerBlocked(f"{run_dir.plan} has no `container` rules, so docker cannot be adapted to this host")
    env = {**rules.env, **slurm_variables(os.environ, rules.runtime in _DAEMONS), **visible_gpus()}
    return dataclasses.replace(rules, env=env, secrets=tuple(secret_values(plan)))


# -- docker and podman -----------------------------------------------------------------------------------------------


def _run_in_container(run: DockerRun, rules: ContainerRules, run_dir: RunDir, plan: Plan) -> int:
    if ray_nodes.other_node_count(os.environ):
        raise ContainerBlocked(
            f"{rules.runtime} cannot start the job's other nodes; runtime: pyxis, apptainer or none can"
        )
    program = _real_program(rules.runtime, run_dir)
    container, retry = None, plan.retry
    if retry:  # `docker` is the adapter itself on the job's PATH
        environ = {**os.environ, "PATH": os.path.dirname(program) + os.pathsep + os.environ.get("PATH", os.defpath)}
        container = kept.kept_container(tuple(_ci_words(run)), retry.directories, environ)
    # Before the journal is locked: it takes as long as it takes.
    is_pulled = plan.probe is not None and not container and _pull(run, rules, run_dir, program)
    with journal(run_dir) as invocations:
        number = 1 + sum(is_run(invocation.ci) for invocation in invocations)
        here, deviations = rewrite(run, rules, number)
        if container:
            here, deviations = _in_kept(run, here, deviations, container)
        if rules.runtime == PODMAN:
            here, more = _for_podman(run, here, program)
            deviations = [item for item in deviations if item.what != "init"] + more
        _check_sources(run, here)
        if plan.probe is not None:
            here = probe_mounts.without_pull(here) if is_pulled else here
            variables = container_environment(run, rules, os.environ, _lines)
            overlays = plan.probe.overlays
            here, deviation = probe_mounts.with_probe(here, run_dir, program, os.environ, variables, overlays)
            deviations.append(deviation)
        invocations.append(masked_invocation(render(run), render(here), deviations, rules.runtime, here.last("name")))
    if here.last("pull") == "always":
        record_pull(run_dir, here.image)
    record_container(run_dir, here.last("name"))
    return _execute(program, [rules.runtime, *render(here)], {**os.environ, **client_environment(run, rules)})


def _pull(run: DockerRun, rules: ContainerRules, run_dir: RunDir, program: str) -> bool:
    """Pull the image where the run would: its PYTHONPATH must be known before it starts."""
    here, _ = rewrite(run, rules)
    if rules.runtime == PODMAN:
        here, _ = _for_podman(run, here, program)
    if not probe_mounts.pulls(here, program, os.environ):
        return False
    record_pull(run_dir, here.image)
    return probe_mounts.pull(here, program, os.environ)


def _ci_words(run: DockerRun) -> Sequence[str]:
    """As docker.json has them."""
    return masked_invocation(render(run), (), (), "", None).ci


def _in_kept(
    ci: DockerRun, here: DockerRun, deviations: list[Deviation], container: RunContainer
) -> tuple[DockerRun, list[Deviation]]:
    """With the files of the container that a failed run kept in the image's place."""
    done = kept.commit(container)
    if done.code != 0:
        raise ContainerBlocked(f"the kept container {container.name}: {done.problem}")
    here = probe_mounts.without_pull(dataclasses.replace(here, image=kept.image_of(container)))
    why = "retry goes on with the files that the failed run's container had at its end"
    kept_files = Deviation("image", ci.image, f"files of {container.name}", why)
    return here, [*(item for item in deviations if item.what not in ("image", "pull")), kept_files]


def _for_podman(ci: DockerRun, here: DockerRun, program: str) -> tuple[DockerRun, list[Deviation]]:
    init = podman.init_options()
    image = here.image
    if here.last("pull") == "always" or not _has_image(program, image):
        image = podman.qualified_image(image)
    here, deviations = podman.adapt(here, init, image)
    if not init and ci.is_on("init"):
        deviations.append(Deviation("init", "--init", "(none)", podman.NO_INIT))
    return here, deviations


def _has_image(program: str, image: str) -> bool:
    """Whether podman knows a local image by this name; one that was built here has no registry."""
    argv = [program, "image", "exists", image]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _check_sources(ci: DockerRun, here: DockerRun) -> None:
    """Docker would create a missing source as an empty directory that root owns, and the test would miss its data."""
    ci_sources = bind_sources(ci)
    for at, source in enumerate(bind_sources(here)):
        if os.path.exists(source):
            continue
        if at >= len(ci_sources):
            raise ContainerBlocked(f"the volume {source!r} of plan.json's `container` does not exist on this host")
        ci_source = ci_sources[at]
        mapped = f" (CI's {ci_source!r}, by hosts.yaml mounts)" if ci_source != source else ""
        raise ContainerBlocked(
            f"mount source {source!r}{mapped} does not exist on this host; docker would create it empty and owned by "
            f"root. Create it, or set its directory in hosts.yaml: mounts: {{{ci_source}: DIR}}"
        )


def _run_other_command(argv: list[str], rules: ContainerRules, run_dir: RunDir) -> int:
    if rules.runtime not in _DAEMONS:
        return _skip(argv, rules.runtime, run_dir)
    args = split_global(argv)[1]
    program = _real_program(rules.runtime, run_dir)
    is_pull = args[:1] == ["pull"] or args[:2] == ["image", "pull"]
    here = [*argv[:-1], podman.qualified_image(argv[-1])] if is_pull and rules.runtime == PODMAN else argv
    with journal(run_dir) as invocations:
        here, deviations = with_names_here(here, names_here(invocations))
        invocations.append(masked_invocation(argv, here, deviations, rules.runtime, None))
    if is_pull:
        record_pull(run_dir, args[-1])
    return _execute(program, [rules.runtime, *here], os.environ)


def _real_program(name: str, run_dir: RunDir) -> str:
    """The first `name` on PATH that is not the run directory's. Raises ContainerBlocked."""
    own = os.path.realpath(run_dir.bin)
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(directory or ".", name)
        if os.path.realpath(directory or ".") == own or not os.path.isfile(candidate):
            continue
        if os.access(candidate, os.X_OK):
            return candidate
    raise ContainerBlocked(
        f"no {name} on PATH; install it, or give the host another runtime in hosts.yaml (runtime: none)"
    )


# -- pyxis and apptainer ---------------------------------------------------------------------------------------------


def _run_rootless(run: DockerRun, rules: ContainerRules, run_dir: RunDir) -> int:
    here, deviations = apply_rules(run, rules)
    environment = container_environment(run, rules, os.environ, _lines)
    if ray_nodes.other_node_count(os.environ):
        ray_nodes.with_token(environment)
    with journal(run_dir) as invocations:
        number = 1 + sum(is_run(invocation.ci) for invocation in invocations)
        scratch = os.path.join(run_dir.path, "tmp", f"container-{number}")
        command = _ROOTLESS[rules.runtime](here, environment, os.environ, scratch)
        _check_sources(run, here)
        program = _real_program(command.argv[0], run_dir)
        _make_scratch(scratch)
        deviations += command.deviations
        invocations.append(masked_invocation(render(run), command.argv, deviations, rules.runtime, None))
    record_container(run_dir, None)
    if ray_nodes.other_node_count(os.environ):
        environment.pop(VISIBLE, None)  # each node has its own
        # No scratch: on a shared disk, Ray's sockets of several nodes would meet in one directory.
        worker = _ROOTLESS[rules.runtime](ray_nodes.joining_run(here), environment, os.environ, None)
        _start_other_nodes(worker.argv, worker.environment, run_dir)
    if not run.is_on("interactive"):
        _close_stdin()
    return _execute(program, command.argv, command.environment)


def _start_other_nodes(argv: Sequence[str], environment: Mapping[str, str], run_dir: RunDir) -> None:
    argv = ray_nodes.srun_on_other_nodes(argv, ray_nodes.other_node_count(os.environ))
    job = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    program, nodes = _real_program(argv[0], run_dir), os.environ[ray_nodes.HOSTNAMES].split()
    try:
        ray_nodes.start(program, argv, {**job, **environment}, nodes)
    except OSError as error:
        raise ContainerBlocked(f"the job's other nodes cannot be started: {error}") from None


def _make_scratch(path: str) -> None:
    """The container's /tmp, so that it can be collected; it is removed with the run."""
    for name in ("ray", "tmp"):
        os.makedirs(os.path.join(path, name), exist_ok=True)
        os.chmod(os.path.join(path, name), 0o1777)  # as any /tmp


# -- without containers ----------------------------------------------------------------------------------------------


def _run_bare(run: DockerRun, rules: ContainerRules, run_dir: RunDir, plan: Plan) -> int:
    if run.is_on("detach"):
        raise ContainerBlocked("docker run --detach needs a container, and this host's runtime is none")
    command = container_command(run, NONE)
    directory = run.last("workdir")
    if directory and not (os.path.isabs(directory) and os.path.isdir(directory)):
        raise ContainerBlocked(
            f"working directory {directory!r} (docker run -w) does not exist on this host, whose runtime is none"
        )
    environment = inner_environment(run, rules, os.environ, _lines)
    if plan.probe is not None:
        path = environment.get(probe_mounts.PYTHONPATH, "")
        environment[probe_mounts.PYTHONPATH] = probe_mounts.probe_path(run_dir.probe, path)
    deviations = bare_deviations(run, rules, os.path.exists)
    if ray_nodes.other_node_count(os.environ):
        ray_nodes.with_token(environment)
    with journal(run_dir) as invocations:
        invocations.append(masked_invocation(render(run), command, deviations, NONE, None))
    if ray_nodes.other_node_count(os.environ):
        _start_other_nodes(container_command(ray_nodes.joining_run(run), NONE), environment, run_dir)
    if directory:
        os.chdir(directory)
    if not run.is_on("interactive"):
        _close_stdin()  # as docker does; else the command would read the rest of a script that bash reads from stdin
    return _execute(command[0], command, environment)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as source:
            return source.read().splitlines()
    except OSError as error:
        raise ContainerBlocked(f"docker run --env-file {path!r}: {error.strerror}") from None


def _close_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _skip(argv: list[str], runtime: str, run_dir: RunDir) -> int:
    args = split_global(argv)[1]
    command = next((skipped for skipped in _SKIPPED if args[: len(skipped)] == skipped), None)
    if command is None:
        raise ContainerBlocked(
            f"docker {' '.join(args[:1]) or '(no subcommand)'} needs docker, and this host's runtime is {runtime}"
        )
    what = "docker " + " ".join(command)
    if "--password-stdin" in args:
        sys.stdin.buffer.read()  # else the writer of the pipe might get SIGPIPE
    deviation = Deviation(what, " ".join(masked(argv)), "nothing done", f"hosts.yaml runtime: {runtime}")
    with journal(run_dir) as invocations:
        invocations.append(masked_invocation(argv, [], [deviation], runtime, None))
    _print_error(f"ci-tasks: {what}: nothing to do, this host's runtime is {runtime}")
    return 0


# -- exec ------------------------------------------------------------------------------------------------------------


def _execute(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become `program`. Returns only where it cannot be started, with docker's exit code for that."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program, list(argv), dict(environment))
    except (FileNotFoundError, NotADirectoryError):
        _print_error(f"{BLOCKED}{program!r}: no such program on this host")
        return EXIT_NOT_FOUND
    except OSError as error:
        _print_error(f"{BLOCKED}{program!r} cannot be executed: {error.strerror}")
        return EXIT_NOT_EXECUTABLE


def _print_error(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
