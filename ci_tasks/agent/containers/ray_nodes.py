"""The other nodes of a Slurm job, for a row over several: each joins the Ray of the row's script, which has the first.

They run in a container with the options of CI's own `docker run`, since a Ray worker needs the image, mounts and
variables of the head. Ray's head may start late, or restart: a worker without one tries again until the row's end. What
they print is in the row's log, each line behind its node's name: one that cannot join says so at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import secrets
import signal
import subprocess
from typing import Dict, List, Mapping, Sequence

from .docker_argv import DockerRun, option

# A port that refuses is that of a head which has not started yet; anything else will not pass by itself.
_JOIN = """\
head=$MASTER_ADDR:6379 told=
cannot() { echo "ci-tasks: this node cannot join Ray at $head: $1"; }
command -v ray > /dev/null || { cannot 'no program ray on PATH'; exit 127; }
while :; do
  why=$(timeout 10 bash -c ': <> "/dev/tcp/$MASTER_ADDR/6379"' 2>&1); code=$?
  if [ $code = 0 ]; then
    ray start --address="$head" --disable-usage-stats --block
    echo "ci-tasks: this node has left Ray at $head, or did not get in (exit code $?)"
  elif [ -z "$told" ] && [[ $why != *refused* ]]; then
    told=1; cannot "${why:-no answer within 10 s}"
  fi
  sleep 3
done"""
_PR_SET_PDEATHSIG = 1
# Become srun. sed puts the node's name in the place of the task's number, which --label writes.
_RELAY = 'names=$1; shift; exec "$@" > >(exec sed -u "$names" >&2) 2>&1'


def other_nodes(environ: Mapping[str, str]) -> List[str]:
    """The nodes of the job without the first; none where the row was not planned for several."""
    return environ.get("SLURM_JOB_HOSTNAMES", "").split()[1:]


def with_token(environment: Mapping[str, str]) -> Dict[str, str]:
    """The environment of all of a job's nodes with a token of their own, unless it has one: the head of Ray 2.60 asks
    for it when a node joins. Older ones ask for none."""
    environment = {"RAY_AUTH_MODE": "token", **environment}
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if environment["RAY_AUTH_MODE"] == "token" else {}
    return {**token, **environment}


def joining_run(run: DockerRun) -> DockerRun:
    options = tuple(item for item in run.options if item.name not in ("entrypoint", "interactive", "tty"))
    return dataclasses.replace(run, options=(*options, option("entrypoint", "bash")), command=("-c", _JOIN))


def start(argv: Sequence[str], environment: Mapping[str, str], nodes: Sequence[str]) -> None:
    """Run `argv`, an srun step on this node or a program, on each of `nodes` until we end, whatever we become by exec.
    Its output is our standard error. Raises OSError."""
    count = {"--nodes=1": f"--nodes={len(nodes)}", "--ntasks=1": f"--ntasks={len(nodes)}"}
    if argv[0] != "srun":
        argv = ["srun", "--overlap", *count, "--export=ALL", "--cpu-bind=none", "--mpi=none", *argv]
    words = [count.get(word, word) for word in argv[1:] if not word.startswith("--nodelist=")]
    names = ";".join(f"s/^ *{number}: /{node}: /" for number, node in enumerate(nodes))
    step = ["bash", "-c", _RELAY, "bash", names, "srun", "--relative=1", "--label", *words]
    ours = os.getpid()

    def end_with_us() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # at which srun ends its step
        if os.getppid() != ours:  # we had ended before the line above
            os._exit(127)

    subprocess.Popen(step, stdin=subprocess.DEVNULL, env=dict(environment), preexec_fn=end_with_us)
