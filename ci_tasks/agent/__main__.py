"""`python agent.pyz shell RUN_DIR`, `… batch …` as a batch job, `… docker RUN_DIR -- WORDS` of `bin/docker`, and what
run.sh asks for around install steps: `… venv RUN_DIR DIR`, `… store-packages RUN_DIR DIR`, `… row-venv DIR BELOW`. And
how a run directory is made, and its agent started."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
from contextlib import suppress
from typing import List, Mapping, Optional

# What a command alone needs is imported there: the container adapter runs once for each docker of the job.
from . import processes, run_directory
from .files import replace_file
from .records import Plan
from .run_directory import RunDir, log_traceback

_START_SECONDS = 30.0  # until the run has a status; a file system that hangs must not hang the caller
_ADAPTER = """#!/bin/sh
# The container adapter: gets the words that CI gives to docker, and does on this host what they mean.
here=$(dirname -- "$0")
exec {python} -I -S "$here/agent.pyz" docker "$(dirname -- "$here")" -- "$@"
"""


def main(argv: List[str]) -> int:
    command, run_dir = (*argv, "", "")[:2]
    if command == "batch" and run_dir:
        from .supervisor import batch

        return batch(run_dir)
    if command == "shell" and run_dir:
        from . import containers

        return containers.shell(run_dir)
    if command == "docker" and run_dir:
        from . import docker_adapter

        return docker_adapter.main(argv[3:], run_dir)
    if command == "hang" and run_dir:
        from . import hang

        processes.own_session = False  # it is a program of the agent's: another session would be its job's
        try:
            hang.collect(*argv[1:])
        except Exception as error:  # whatever it is, its agent goes on
            log_traceback(run_dir, "hang", error)
        return 0
    if command in ("venv", "store-packages", "row-venv") and len(argv) == 3:
        from . import environments

        return environments.main(*argv)
    print("ci-tasks agent: unknown command: %r" % argv, file=sys.stderr)
    return 2


def create(run: RunDir, plan: Plan, agent: bytes) -> None:
    """Write plan.json, run.sh, the agent and the container adapter: all that a run needs, in one place that can also be
    copied elsewhere. The agent comes last: with it the directory is whole."""
    from . import evidence

    os.makedirs(run.artifacts, exist_ok=True)
    os.makedirs(run.bin, exist_ok=True)
    adapter = _ADAPTER.format(python=shlex.quote(sys.executable)).encode()
    files = {run.script: plan.script.encode("utf-8", "surrogateescape"), run.adapter: adapter}
    for path, content in files.items() if plan.client_seconds is None else {**files, run.client: b""}.items():
        with open(path, "wb") as out:
            out.write(content)
    os.chmod(run.script, 0o755)
    os.chmod(run.adapter, 0o755)
    if plan.probe is not None:
        evidence.write_files(run, plan.probe, plan.workspace)
    run_directory.write_record(run.plan, plan)
    replace_file(run.agent, agent)


def begin(run_dir: str, secrets: Mapping[str, str]) -> str:
    """Start the run in a process of its own, with `secrets` on top of our environment. Returns, as soon as it has a
    status, why it did not start, or ""."""
    paths = RunDir(run_dir)
    signal.pthread_sigmask(signal.SIG_BLOCK, processes.BLOCKED_AT_START)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ.update(secrets)
        _become_agent(paths.path, write)
    os.close(write)
    with os.fdopen(read, "rb", 0) as report:
        if not select.select([report], [], [], _START_SECONDS)[0]:
            return "not started within %g s; is a file system hanging?" % _START_SECONDS
        message = os.fsdecode(report.read(4096))
    return message if message or os.path.exists(paths.status) else "the agent died"


def _become_agent(run_dir: str, write: int) -> None:
    """Never returns; the caller reads from `write` why the agent could not start, or nothing."""
    report = os.fdopen(write, "wb", 0)
    try:
        os.chdir(run_dir)
        detach(keep=write)
        from . import supervisor

        supervisor.supervise(run_dir, report.close)
    except BaseException as error:
        log_traceback(run_dir, "the agent", error)
        if not report.closed:
            report.write(os.fsencode(str(error) or repr(error)))
    finally:
        os._exit(0)


def detach(stdin: Optional[int] = None, stdout: Optional[int] = None, keep: int = 2) -> None:
    """Leave the session of the process that forked this one, and close its files, pipes and locks, apart from these."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number, file in enumerate((stdin, stdout, None)):
        os.dup2(null if file is None else file, number)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor > 2 and descriptor != keep:
            with suppress(OSError):  # the listing itself
                os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
