"""The other nodes of a Slurm job, for a row over several: each joins the Ray of the row's script, which has the first.

They run in a container with the options of CI's own `docker run`, since a Ray worker needs the image, mounts and
variables of the head. Ray's head may start late, or restart: a worker without one tries again until the row's end.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
from collections.abc import Mapping, Sequence

from .docker_argv import DockerRun, option

HOSTNAMES = "SLURM_JOB_HOSTNAMES"
_PORT = 6379  # Ray's own, which slime leaves as it is
_JOIN = f'while :; do ray start --address="$MASTER_ADDR:{_PORT}" --disable-usage-stats --block; sleep 3; done'
_PR_SET_PDEATHSIG = 1


def other_node_count(environ: Mapping[str, str]) -> int:
    """The number of nodes of the job without the first; 0 where the row was not planned for several."""
    return max(len(environ.get(HOSTNAMES, "").split()) - 1, 0)


def joining_run(run: DockerRun) -> DockerRun:
    """CI's run, with a command that joins Ray."""
    options = tuple(item for item in run.options if item.name not in ("entrypoint", "interactive", "tty"))
    return dataclasses.replace(run, options=(*options, option("entrypoint", "bash")), command=("-c", _JOIN))


def srun_on_other_nodes(argv: Sequence[str], count: int) -> list[str]:
    """`argv`, an srun step on this node or a program, as one step on each of the job's nodes but the first."""
    there = {"--nodes=1": f"--nodes={count}", "--ntasks=1": f"--ntasks={count}"}
    if argv[0] != "srun":
        argv = ["srun", "--overlap", *there, "--export=ALL", "--cpu-bind=none", "--mpi=none", *argv]
    behind = [there.get(word, word) for word in argv[1:] if not word.startswith("--nodelist=")]
    return ["srun", "--relative=1", *behind]


def start(program: str, argv: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run `argv` beside us until we end, whatever we become by exec; their output is appended to the file `log`,
    since it is not the row's. Raises OSError."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    ours = os.getpid()
    if os.fork():
        os.close(output)
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == ours:  # else we have ended before the line above
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(program, list(argv), dict(environment))
    finally:
        os._exit(127)
