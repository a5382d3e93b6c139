"""The container adapter: the `docker` of a run directory. The only place where CI's scripts are adapted to this host.

It gets the exact argv that CI would have given to docker, records it and what runs instead in docker.json, and then
becomes (exec) the real docker or podman, or the command that stands for it where there is no daemon. What is not
possible here is blocked (exit 125), not failed: nothing of the test has run. Messages go to stderr.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..argv_masking import masked
from ..codec import RecordError
from ..exit_gate import masked_record
from ..file_lock import LockTimeout, file_lock
from ..gpus.run_resources import visible_gpus
from ..job_environment import secret_values
from ..programs import run_program
from ..records import Deviation, DockerInvocation, DockerInvocations, Event
from ..run_directory import BLOCKED, EXIT_BLOCKED, RunDir, read_plan, read_record, write_record
from . import kept, ray_nodes
from .docker_argv import DockerArgvError, DockerRun, is_run, mount_of, option, parse_run, render
from .rewrite import client_environment, rewrite, rewrite_other
from .rules import ENGINES, NONE, PODMAN, ContainerRules
from .runtimes import command, container_environment, for_podman, init_options, qualified_image

Adapted = Tuple[DockerRun, List[Deviation]]

# As docker's own exit codes, so that a script sees no difference.
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
_LOCK_SECONDS, _INSPECT_SECONDS = 60.0, 30.0
PROBE = "/ci-tasks-probe"  # where the probe is in a container
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The names by which slime finds the nodes of its job; set where a row has several.
_NODES = ("SLURM_JOB_HOSTNAMES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "MASTER_ADDR")
# Without a daemon these commands do nothing, so that a script that begins with them continues.
_SKIPPED = (["pull"], ["image", "pull"], ["login"], ["logout"])


def main(argv: Sequence[str], run_dir: str) -> int:
    """Run `docker ARGV` on this host. Returns only where nothing could be, or had to be, executed."""
    try:
        return _Adapter(RunDir(run_dir)).run(list(argv))
    except (DockerArgvError, RecordError, LockTimeout) as reason:
        return _print_error(BLOCKED + str(reason), EXIT_BLOCKED)
    except OSError as error:
        return _print_error(f"{BLOCKED}docker.json of {run_dir} cannot be written: {error.strerror}", EXIT_BLOCKED)


class _Adapter:
    def __init__(self, paths: RunDir) -> None:
        self.paths, self.plan = paths, read_plan(paths)
        self.secrets = tuple(secret_values(self.plan))
        rules = self.plan.container
        if rules is None:
            raise DockerArgvError(f"{paths.plan} has no `container` rules, so docker cannot be adapted to this host")
        self.runtime, self.nodes = rules.runtime, ray_nodes.other_nodes(os.environ)
        env = {**rules.env, **slurm_variables(os.environ, self.runtime in ENGINES), **visible_gpus()}
        self.rules = dataclasses.replace(rules, env=env, secrets=self.secrets)

    def run(self, argv: List[str]) -> int:
        if not is_run(argv):
            return self._other_command(argv)
        if self.runtime in ENGINES:
            return self._in_container(argv, parse_run(argv))
        return self._without_daemon(argv, parse_run(argv))

    # -- docker and podman

    def _in_container(self, argv: List[str], run: DockerRun) -> int:
        if self.nodes:
            raise DockerArgvError(f"{self.runtime} cannot start the job's other nodes; pyxis, apptainer or none can")
        program, retry, rules = self._real_program(self.runtime), self.plan.retry, self.rules
        image = kept.image_to_go_on(_showable(argv), retry.directories, program) if retry else None
        if image is not None:
            rules = dataclasses.replace(rules, image={run.image: image}, pull="never")
        # Before docker.json is locked: a pull takes as long as it takes.
        if self.plan.probe is not None and self._pull(self._adapted(run, rules, program, 1)[0], program):
            rules = dataclasses.replace(rules, pull="never")
        with self._calls() as calls:
            here, deviations = self._adapted(run, rules, program, 1 + sum(is_run(call.ci) for call in calls))
            _check_sources(here)
            here, probe = self._with_probe(here, program)
            calls.append(_call(argv, render(here), deviations + probe, self.runtime, here.last("name")))
        if here.last("pull") == "always":
            self._note("pull", image=here.image)
        self._note("container", name=here.last("name"))
        environ = {**os.environ, **client_environment(run, self.rules)}
        return _execute(program, [self.runtime, *render(here)], environ)

    def _adapted(self, run: DockerRun, rules: ContainerRules, program: str, number: int) -> Adapted:
        here, deviations = rewrite(run, rules, number)
        if self.runtime != PODMAN:
            return here, deviations
        if here.last("pull") == "always" or _image_variables(here.image, program) is None:
            here = dataclasses.replace(here, image=qualified_image(here.image))
        return for_podman(here, deviations, init_options())

    def _pull(self, run: DockerRun, program: str) -> bool:
        """Whether the run's image was pulled, where the run would, which prints the same: the probe must know it."""
        policy = run.last("pull") or "missing"
        if policy == "never" or (policy == "missing" and _image_variables(run.image, program) is not None):
            return False
        self._note("pull", image=run.image)
        platform = [f"--platform={run.last('platform')}"] if run.has("platform") else []
        return subprocess.call([program, "pull", *platform, run.image], stdin=subprocess.DEVNULL, stdout=2) == 0

    def _with_probe(self, run: DockerRun, program: str) -> Adapted:
        """The run with mounts of the probe and of the directory for its evidence, and a PYTHONPATH with it first."""
        if self.plan.probe is None:
            return run, []
        image, why = _image_variables(run.image, program), "evidence from inside the job; --no-probe leaves it out"
        if image is None or not os.path.isdir(self.paths.probe):
            return run, [Deviation("probe", "none", "none in the container: the image could not be inspected", why)]
        variables = {**image, **container_environment(run, self.rules, os.environ)}
        path = "PYTHONPATH=" + _probe_path(PROBE, variables.get("PYTHONPATH"))
        mounts = sorted({overlay.mount for overlay in self.plan.probe.overlays})
        volumes = [f"{path}:{path}" for path in (self.paths.evidence, *mounts)] + [f"{self.paths.probe}:{PROBE}:ro"]
        options = [*run.options, option("env", path), *(option("volume", volume) for volume in volumes)]
        return dataclasses.replace(run, options=tuple(options)), [Deviation("probe", "none", path, why)]

    def _other_command(self, argv: List[str]) -> int:
        skipped = next((words for words in _SKIPPED if argv[: len(words)] == words), None)
        if self.runtime not in ENGINES:
            return self._skip(argv, skipped)
        program = self._real_program(self.runtime)
        is_pull = skipped is not None and skipped[-1] == "pull"
        here = [*argv[:-1], qualified_image(argv[-1])] if is_pull and self.runtime == PODMAN else argv
        with self._calls() as calls:
            here, deviations = rewrite_other(here, calls)
            calls.append(_call(argv, here, deviations, self.runtime))
        if is_pull:
            self._note("pull", image=argv[-1])
        return _execute(program, [self.runtime, *here], os.environ)

    # -- without a daemon

    def _without_daemon(self, argv: List[str], run: DockerRun) -> int:
        variables, directory = container_environment(run, self.rules, os.environ), run.last("workdir")
        if self.nodes:
            variables = ray_nodes.with_token(variables)
        if self.runtime == NONE and self.plan.probe is not None:
            variables["PYTHONPATH"] = _probe_path(self.paths.probe, variables.get("PYTHONPATH"))
        with self._calls() as calls:
            scratch = os.path.join(self.paths.path, "tmp", f"container-{1 + sum(is_run(call.ci) for call in calls)}")
            here, environment, deviations = command(run, self.rules, variables, os.environ, scratch)
            if self.runtime != NONE:
                _check_sources(rewrite(run, self.rules)[0])
                for name in ("ray", "tmp"):  # the container's /tmp, so that it can be collected
                    os.makedirs(os.path.join(scratch, name), exist_ok=True)
                    os.chmod(os.path.join(scratch, name), 0o1777)
            elif directory and not (os.path.isabs(directory) and os.path.isdir(directory)):
                raise DockerArgvError(
                    f"working directory {directory} does not exist on this host, whose runtime is none"
                )
            program = here[0] if self.runtime == NONE else self._real_program(here[0])
            calls.append(_call(argv, here, deviations, self.runtime))
        self._note("container")
        if self.nodes:
            variables.pop(_VISIBLE, None)  # each node has its own
            # No scratch: on a shared disk, Ray's sockets of several nodes would meet in one directory.
            there, their_environment, _ = command(ray_nodes.joining_run(run), self.rules, variables, os.environ, None)
            job = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
            ray_nodes.start(there, {**job, **their_environment}, self.nodes)
            _print_error(f"ci-tasks: {', '.join(self.nodes)} join Ray here; their lines begin with their names")
        if self.runtime == NONE and directory:
            os.chdir(directory)
        if not run.is_on("interactive"):  # as docker does; else the command would read the rest of bash's script
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        return _execute(program, here, environment)

    def _skip(self, argv: List[str], skipped: Optional[Sequence[str]]) -> int:
        what = "docker " + " ".join(skipped or argv[:1])
        if skipped is None:
            raise DockerArgvError(f"{what} needs docker, and this host's runtime is {self.runtime}")
        if "--password-stdin" in argv:
            sys.stdin.buffer.read()  # else the writer of the pipe might get SIGPIPE
        deviation = Deviation(what, " ".join(masked(argv)), "nothing done", f"hosts.yaml runtime: {self.runtime}")
        with self._calls() as calls:
            calls.append(_call(argv, [], [deviation], self.runtime))
        return _print_error(f"ci-tasks: {what}: nothing to do, this host's runtime is {self.runtime}", 0)

    # -- the record

    @contextmanager
    def _calls(self) -> Iterator[List[DockerInvocation]]:
        """Those in docker.json, locked for this process; what was appended is written when the block succeeds: a
        container that is not recorded is not started."""
        path = self.paths.docker
        with file_lock(path + ".lock", True, _LOCK_SECONDS):
            calls = list((read_record(DockerInvocations, path) or DockerInvocations(())).calls)
            yield calls
            # The name stays, by which the container is found.
            shown = [dataclasses.replace(masked_record(call, self.secrets), name=call.name) for call in calls]
            write_record(path, DockerInvocations(tuple(shown)))

    def _note(self, what: str, name: Optional[str] = None, image: Optional[str] = None) -> None:
        """A line beside the agent's own. It is only shown to people, so that a full disk is no reason to stop."""
        event = masked_record(Event(round(time.time(), 3), what, name=name, image=image), self.secrets)
        with suppress(OSError), open(self.paths.events, "a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(event.line())

    def _real_program(self, name: str) -> str:
        """The first `name` on PATH that is not the run directory's. Raises DockerArgvError."""
        own, path = os.path.realpath(self.paths.bin), os.environ.get("PATH", os.defpath).split(os.pathsep)
        program = shutil.which(name, path=os.pathsep.join(each for each in path if os.path.realpath(each) != own))
        if program is None:
            raise DockerArgvError(
                f"no {name} on PATH; install it, or give the host another runtime in hosts.yaml (runtime: none)"
            )
        return program


def _check_sources(run: DockerRun) -> None:
    """Docker would create a missing source as an empty directory that root owns, and the test would miss its data."""
    for mount in filter(None, map(mount_of, run.options)):
        if mount.kind == "bind" and not os.path.exists(mount.source):
            raise DockerArgvError(
                f"mount source {mount.source!r} does not exist on this host; docker would create it empty and owned by "
                "root. Create it, or give its directory in hosts.yaml, as in `mounts: {CI's: this host's}`"
            )


def slurm_variables(environ: Mapping[str, str], by_daemon: bool) -> Dict[str, str]:
    """The variables of a Slurm job that a container of it gets; none outside of a job.

    A daemon's container (`by_daemon`) is not in the job's cgroup: it sees every GPU of the node, so that the node's own
    numbers count there. Where the job's processes see only their GPUs, Slurm numbers those from 0.
    """
    if "SLURM_JOB_ID" not in environ:
        return {}
    nodes = {name: environ[name] for name in _NODES if name in environ} if _NODES[0] in environ else {}
    gpus = environ.get("SLURM_JOB_GPUS" if by_daemon else _VISIBLE, environ.get(_VISIBLE))
    return {**nodes, **({} if gpus is None else {_VISIBLE: gpus})}


def _call(
    ci: Sequence[str], here: Sequence[str], deviations: Sequence[Deviation], runtime: str, name: Optional[str] = None
) -> DockerInvocation:
    """An invocation fit to be shown."""
    shown = (Deviation(*_showable([item.what, item.ci, item.here, item.why])) for item in deviations)
    return DockerInvocation(_showable(ci), _showable(here), tuple(shown), name, runtime)


def _showable(texts: Sequence[str]) -> Tuple[str, ...]:
    """Secrets masked, and bytes that are no UTF-8 as `\\xNN`, since JSON cannot hold them."""
    return tuple(word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in masked(texts))


def _probe_path(directory: str, path: Optional[str]) -> str:
    """PYTHONPATH with the probe of `directory` first."""
    return directory + "/start" + (os.pathsep + path if path else "")


def _image_variables(image: str, program: str) -> Optional[Dict[str, str]]:
    """None where there is no such image, or no answer."""
    form = "{{range .Config.Env}}{{println .}}{{end}}"
    answer = run_program([program, "image", "inspect", "--format", form, image], _INSPECT_SECONDS)
    return dict(line.partition("=")[::2] for line in answer.out.splitlines()) if answer.code == 0 else None


def _execute(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become `program`. Returns only where it cannot be started, with docker's exit code for that."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program, list(argv), dict(environment))
    except (FileNotFoundError, NotADirectoryError):
        return _print_error(f"{BLOCKED}{program!r}: no such program on this host", EXIT_NOT_FOUND)
    except OSError as error:
        return _print_error(f"{BLOCKED}{program!r} cannot be executed: {error.strerror}", EXIT_NOT_EXECUTABLE)


def _print_error(message: str, code: int = 0) -> int:
    print(message, file=sys.stderr, flush=True)
    return code
