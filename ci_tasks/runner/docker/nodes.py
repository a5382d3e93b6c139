"""The other nodes of a Slurm job, for a row over several: each joins the Ray of the row's script, which has the first.

They run in a container with the words of CI's own `docker run`, since a worker of Ray needs the image, mounts and
variables of the head. Ray's head may be started late, and anew: whoever lost it tries again until the row's end.
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


def others(environ: Mapping[str, str]) -> int:
    """How many nodes the job has beside the first; 0 where nobody planned the row for several."""
    return max(len(environ.get(HOSTNAMES, "").split()) - 1, 0)


def joining(run: DockerRun) -> DockerRun:
    """CI's run with joining Ray as its command."""
    options = tuple(item for item in run.options if item.name not in ("entrypoint", "interactive", "tty"))
    return dataclasses.replace(run, options=(*options, option("entrypoint", "bash")), command=("-c", _JOIN))


def step(words: Sequence[str], count: int) -> list[str]:
    """`words`, a step on this node or a program, as one step on each of the job's nodes but the first."""
    there = {"--nodes=1": f"--nodes={count}", "--ntasks=1": f"--ntasks={count}"}
    if words[0] != "srun":
        words = ["srun", "--overlap", *there, "--export=ALL", "--cpu-bind=none", "--mpi=none", *words]
    behind = [there.get(word, word) for word in words[1:] if not word.startswith("--nodelist=")]
    return ["srun", "--relative=1", *behind]


def start(program: str, words: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run `words` beside us until we end, whatever we become by exec; what they say is appended to the file `log`: it
    is not what the row says. Raises OSError."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    ours = os.getpid()
    if os.fork():
        os.close(said)
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == ours:  # else we have ended before the line above
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.execve(program, list(words), dict(environment))
    finally:
        os._exit(127)
