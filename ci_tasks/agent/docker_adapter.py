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
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from . import docker_rewrite as rewrite
from . import run_directory
from .codec import RecordError, masked_record
from .docker_argv import ENGINES, DockerArgvError, DockerRun, is_run, option, parse_run, render
from .files import file_lock
from .mask import masked
from .processes import run_program
from .records import Deviation, DockerInvocation, DockerInvocations, Event, ProbeOverlay
from .run_directory import (
    BLOCKED,
    ENV_GPU_IDS,
    EXIT_BLOCKED,
    VISIBLE_GPUS,
    RunDir,
    read_plan,
    read_record,
    write_record,
)

_LOCK_SECONDS, _INSPECT_SECONDS = 60.0, 30.0
PROBE = "/ci-tasks-probe"  # where the probe is in a container


def main(argv: Sequence[str], run_dir: str) -> int:
    """Run `docker ARGV` on this host. Returns only where nothing could be, or had to be, executed."""
    try:
        return _Adapter(RunDir(run_dir)).run(list(argv))
    except (DockerArgvError, RecordError) as reason:
        return _print_error(BLOCKED + str(reason), EXIT_BLOCKED)
    except OSError as error:
        return _print_error(f"{BLOCKED}{run_dir}: {error.strerror} ({error.filename})", EXIT_BLOCKED)


class _Adapter:
    def __init__(self, paths: RunDir) -> None:
        self.paths, self.plan = paths, read_plan(paths)
        rules = self.plan.container
        if rules is None:
            raise DockerArgvError(f"{paths.plan} has no `container` rules, so docker cannot be adapted to this host")
        self.runtime = rules.runtime
        env = {**rules.env, **gpu_variables(os.environ, self.runtime in ENGINES)}
        self.rules = dataclasses.replace(rules, env=env, secrets=tuple(run_directory.secret_values(self.plan)))

    def run(self, argv: List[str]) -> int:
        if is_run(argv):
            start = self._in_container if self.runtime in ENGINES else self._without_daemon
            return start(argv, parse_run(argv))
        verb = " ".join(argv[1:2] if argv[:1] == ["image"] else argv[:1])
        return self._other_command(argv, verb) if self.runtime in ENGINES else self._skip(argv, verb)

    def _in_container(self, argv: List[str], run: DockerRun) -> int:
        program, rules = self._real_program(self.runtime), self.rules
        probe, (here, _) = self.plan.probe, rewrite.rewrite(run, rules)
        _check_sources(here)
        # Here and not by `docker run`: it takes as long as it takes, and the probe must know the image's variables.
        image, policy = here.image, here.last("pull") or "missing"
        variables = None if policy == "always" else _image_variables(image, program)
        if variables is None and policy != "never":
            image, rules = self._pull(here, program), dataclasses.replace(rules, pull="never")
            variables = _image_variables(image, program)
        with self._calls() as calls:
            number = 1 + sum(is_run(call.ci) for call in calls)
            here, deviations = rewrite.rewrite(run, rules, number, os.path.exists(rewrite.CATATONIT))
            here = dataclasses.replace(here, image=image)
            if probe is not None and variables is not None:
                here = self._with_probe(here, variables, probe.overlays)
                path = here.values("env")[-1]
                deviations.append(Deviation("probe", "none", path, "evidence from the job; --no-probe leaves it out"))
            calls.append(self._call(argv, render(here), deviations, here.last("name") or ""))
        self._note("container", name=here.last("name"))
        environ = {**os.environ, **rewrite.client_environment(run, self.rules)}
        return _execute(program, [self.runtime, *render(here)], environ)

    def _pull(self, run: DockerRun, program: str) -> str:
        """Pull the run's image. Returns its full name."""
        image = rewrite.qualified_image(run.image) if self.runtime == "podman" else run.image
        self._note("pull", image=image)
        platform = [f"--platform={run.last('platform')}"] if run.has("platform") else []
        argv, said = [program, "pull", *platform, image], b""
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE) as pull:
            for line in pull.stderr or ():
                os.write(2, line)
                said = line.strip() or said
        if pull.returncode != 0:
            raise DockerArgvError(f"{self.runtime} could not pull {image}: {said.decode(errors='replace')}")
        return image

    def _with_probe(self, run: DockerRun, image: Mapping[str, str], overlays: Sequence[ProbeOverlay]) -> DockerRun:
        """The run with mounts of the probe and of the directory for its evidence, and a PYTHONPATH with it first."""
        variables = {**image, **rewrite.container_environment(run, self.rules, os.environ)}
        mounts = sorted({overlay.mount for overlay in overlays})
        volumes = [f"{path}:{path}" for path in (self.paths.evidence, *mounts)] + [f"{self.paths.probe}:{PROBE}:ro"]
        path = option("env", "PYTHONPATH=" + _probe_path(PROBE, variables.get("PYTHONPATH")))
        return dataclasses.replace(run, options=(*run.options, path, *(option("volume", each) for each in volumes)))

    def _other_command(self, argv: List[str], verb: str) -> int:
        program = self._real_program(self.runtime)
        here = [*argv[:-1], rewrite.qualified_image(argv[-1])] if (verb, self.runtime) == ("pull", "podman") else argv
        with self._calls() as calls:
            started = ((parse_run(call.ci).last("name"), call.name) for call in calls if call.name)
            here, deviations = rewrite.rewrite_other(here, {ci: name for ci, name in started if ci and name})
            calls.append(self._call(argv, here, deviations))
        if verb == "pull":
            self._note("pull", image=argv[-1])
        return _execute(program, [self.runtime, *here], os.environ)

    def _skip(self, argv: List[str], verb: str) -> int:
        """Without a daemon, so that a script that begins with such a command continues."""
        what, where = f"docker {verb}", f"this host's runtime is {self.runtime}"
        if verb not in ("pull", "login", "logout"):
            raise DockerArgvError(f"{what} needs docker, and {where}")
        if "--password-stdin" in argv:
            sys.stdin.buffer.read()  # else the writer of the pipe might get SIGPIPE
        with self._calls() as calls:
            calls.append(self._call(argv, [], [Deviation(what, " ".join(masked(argv)), "nothing done", where)]))
        return _print_error(f"ci-tasks: {what}: nothing to do, {where}")

    def _without_daemon(self, argv: List[str], run: DockerRun) -> int:
        variables, directory = rewrite.container_environment(run, self.rules, os.environ), run.last("workdir")
        if self.runtime == "none" and self.plan.probe is not None:
            variables["PYTHONPATH"] = _probe_path(self.paths.probe, variables.get("PYTHONPATH"))
        with self._calls() as calls:
            scratch = os.path.join(self.paths.path, "tmp", f"container-{1 + sum(is_run(call.ci) for call in calls)}")
            here, environment, deviations = rewrite.command(run, self.rules, variables, os.environ, scratch)
            if self.runtime != "none":
                _check_sources(rewrite.rewrite(run, self.rules)[0])
                for name in ("ray", "tmp"):  # the container's /tmp, so that it can be collected
                    os.makedirs(os.path.join(scratch, name), exist_ok=True)
                    os.chmod(os.path.join(scratch, name), 0o1777)
            elif directory:
                if not os.path.isdir(directory):
                    message = "working directory %s does not exist on this host, whose runtime is none"
                    raise DockerArgvError(message % directory)
                os.chdir(directory)
            program = here[0] if self.runtime == "none" else self._real_program(here[0])
            calls.append(self._call(argv, here, deviations))
        self._note("container")
        if not run.is_on("interactive"):  # as docker does; else the command would read the rest of bash's script
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        return _execute(program, here, environment)

    @contextmanager
    def _calls(self) -> Iterator[List[DockerInvocation]]:
        """Those in docker.json, locked for this process; what was appended is written when the block succeeds: a
        container that is not recorded is not started."""
        path = self.paths.docker
        with file_lock(path + ".lock", True, _LOCK_SECONDS):
            calls = list((read_record(DockerInvocations, path) or DockerInvocations(())).calls)
            yield calls
            write_record(path, DockerInvocations(tuple(calls)))

    def _call(self, ci: List[str], here: List[str], deviations: List[Deviation], name: str = "") -> DockerInvocation:
        """A call fit to be shown; the name stays, by which the container is found."""
        call = DockerInvocation(tuple(masked(ci)), tuple(masked(here)), tuple(deviations), runtime=self.runtime)
        return dataclasses.replace(masked_record(call, self.rules.secrets), name=name or None)

    def _note(self, what: str, name: Optional[str] = None, image: Optional[str] = None) -> None:
        """A line beside the agent's own. It is only shown to people, so that a full disk is no reason to stop."""
        event = masked_record(Event(round(time.time(), 3), what, name=name, image=image), self.rules.secrets)
        with suppress(OSError), open(self.paths.events, "a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(event.line())

    def _real_program(self, name: str) -> str:
        """The first `name` on PATH that is not the run directory's. Raises DockerArgvError."""
        own, path = os.path.realpath(self.paths.bin), os.environ.get("PATH", os.defpath).split(os.pathsep)
        program = shutil.which(name, path=os.pathsep.join(each for each in path if os.path.realpath(each) != own))
        if program is None:
            message = "no %s on PATH; install it, or give the host another runtime in hosts.yaml (runtime: none)"
            raise DockerArgvError(message % name)
        return program


def _check_sources(run: DockerRun) -> None:
    """Docker would create a missing source as an empty directory that root owns, and the test would miss its data."""
    for mount in run.mounts:
        if mount.kind == "bind" and not os.path.exists(mount.source):
            message = (
                "mount source %r does not exist on this host; docker would create it, empty and owned by root. Create "
                "it, or give its directory in hosts.yaml, as in `mounts: {CI's: this host's}`"
            )
            raise DockerArgvError(message % mount.source)


def gpu_variables(environ: Mapping[str, str], by_daemon: bool) -> Dict[str, str]:
    """The GPUs that the agent or Slurm chose for the job, as its container gets them; none of another job.

    A daemon's container (`by_daemon`) is not in the job's cgroup: it sees every GPU of the node, so that the node's own
    numbers count there. Where the job's processes see only their GPUs, Slurm numbers those from 0.
    """
    gpus = environ.get(ENV_GPU_IDS)
    if gpus is None and "SLURM_JOB_ID" in environ:
        gpus = environ.get("SLURM_JOB_GPUS" if by_daemon else VISIBLE_GPUS, environ.get(VISIBLE_GPUS))
    return {} if gpus is None else {VISIBLE_GPUS: gpus}


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
    try:
        os.execvpe(program, list(argv), dict(environment))
    except OSError as error:
        code = 127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126
        return _print_error(f"{BLOCKED}{program!r} cannot be executed: {error.strerror}", code)


def _print_error(message: str, code: int = 0) -> int:
    print(message, file=sys.stderr, flush=True)
    return code
