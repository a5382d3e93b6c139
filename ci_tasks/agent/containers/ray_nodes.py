"""The other nodes of a Slurm job, for a row over several: each joins the Ray of the row's script, which has the first.

They run in a container with the options of CI's own `docker run`, since a Ray worker needs the image, mounts and
variables of the head. Ray's head may start late, or restart: a worker without one tries again until the row's end. What
they print is in the row's log, each line behind its node's name: one that cannot join says so at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence

from .docker_argv import DockerRun, option

HOSTNAMES = "SLURM_JOB_HOSTNAMES"
_PORT = 6379  # Ray's own, which slime leaves as it is
# A port that refuses is that of a head which has not started yet; anything else will not pass by itself.
_JOIN = f"""\
head=$MASTER_ADDR:{_PORT} told=
cannot() {{ echo "ci-tasks: this node cannot join Ray at $head: $1"; }}
command -v ray > /dev/null || {{ cannot 'no program ray on PATH'; exit 127; }}
while :; do
  why=$(timeout 10 bash -c ': <> "/dev/tcp/$MASTER_ADDR/{_PORT}"' 2>&1); code=$?
  if [ $code = 0 ]; then
    ray start --address="$MASTER_ADDR:{_PORT}" --disable-usage-stats --block
    echo "ci-tasks: this node has left Ray at $head, or did not get in (exit code $?)"
  elif [ -z "$told" ] && [[ $why != *refused* ]]; then
    told=1; cannot "${{why:-no answer within 10 s}}"
  fi
  sleep 3
done"""
_LABELLED = re.compile(rb"^ *(\d+): ")
_PR_SET_PDEATHSIG = 1


def other_node_count(environ: Mapping[str, str]) -> int:
    """The number of nodes of the job without the first; 0 where the row was not planned for several."""
    return max(len(environ.get(HOSTNAMES, "").split()) - 1, 0)


def with_token(environment: dict[str, str]) -> None:
    """Add a token of this job's to the environment of all of its nodes, unless it has one: the head of Ray 2.60 asks
    whoever joins for it. Older ones ask for none."""
    environment.setdefault("RAY_AUTH_MODE", "token")
    if environment["RAY_AUTH_MODE"] == "token":
        environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def joining_run(run: DockerRun) -> DockerRun:
    options = tuple(item for item in run.options if item.name not in ("entrypoint", "interactive", "tty"))
    return dataclasses.replace(run, options=(*options, option("entrypoint", "bash")), command=("-c", _JOIN))


def srun_on_other_nodes(argv: Sequence[str], count: int) -> list[str]:
    """`argv`, an srun step on this node or a program, as one step on each of the job's nodes but the first."""
    there = {"--nodes=1": f"--nodes={count}", "--ntasks=1": f"--ntasks={count}"}
    if argv[0] != "srun":
        argv = ["srun", "--overlap", *there, "--export=ALL", "--cpu-bind=none", "--mpi=none", *argv]
    behind = [there.get(word, word) for word in argv[1:] if not word.startswith("--nodelist=")]
    return ["srun", "--relative=1", "--label", *behind]


def start(program: str, argv: Sequence[str], environment: Mapping[str, str], nodes: Sequence[str]) -> None:
    """Run `argv` beside us until we end, whatever we become by exec; their output is our standard error's, each line
    with its node's name. `nodes` are all of the job's, the first is ours. Raises OSError."""
    ours = os.getpid()
    if os.fork():
        return
    try:
        _end_with(ours)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        _relay(program, argv, environment, nodes)
    finally:
        os._exit(127)


def _relay(program: str, argv: Sequence[str], environment: Mapping[str, str], nodes: Sequence[str]) -> None:
    others = ", ".join(nodes[1:])
    _write("ci-tasks: the row runs on %s; %s join its Ray, and their lines begin with their names" % (nodes[0], others))
    relay = os.getpid()
    step = subprocess.Popen(
        list(argv),
        executable=program,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: _end_with(relay),
    )
    assert step.stdout is not None
    for line in step.stdout:
        os.write(2, with_node(line, nodes[1:]))
    _write("ci-tasks: %s left the row with exit code %d of srun" % (others, step.wait()))


def with_node(line: bytes, others: Sequence[str]) -> bytes:
    """A line of `srun --label`, which begins with the number of a task, with that task's node instead."""
    found = _LABELLED.match(line)
    number = int(found[1]) if found else len(others)
    if not found or number >= len(others):
        return line
    return os.fsencode(others[number]) + b": " + line[found.end() :]


def _write(line: str) -> None:
    os.write(2, os.fsencode(line) + b"\n")


def _end_with(parent: int) -> None:
    """This process gets SIGTERM when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it had ended before the line above
        os._exit(127)
