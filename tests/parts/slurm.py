"""A real Slurm: a controller and two nodes of eight simulated GPUs each, all on this machine.

    with Slurm(directory) as slurm, login_node(slurm, sshd, directory) as cluster:
        cluster.person(person)                  # a hosts.yaml with `cluster`, whose login node is a real sshd
        cluster.hosts("sbatch: ['--no-requeue']")   # the same with more keys
        cluster.scontrol("update", "NodeName=gpu1", "State=DOWN", "Reason=test")
        cluster.jobs()                          # {job: state}, as squeue tells
        cluster.rejects("sbatch: error: …")     # what sbatch says instead, once for each call
        cluster.forgets()                       # squeue knows no job any more

Raises Missing where Slurm is not installed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.parts import Missing
from tests.parts.sshd import Sshd, SSHServer

NODES = ("gpu1", "gpu2")
GPUS = 8
START_TIMEOUT_S = 30
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")
CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
InactiveLimit=0
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# In front of the real programs, on the login node: which cluster is meant, and what a test wants to go wrong.
WRAPPER = """\
#!/bin/bash
export SLURM_CONF={conf}
if [ {name} = squeue ] && [ -e {faults}/forgets ]; then
  echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1
fi
if [ {name} = sbatch ] && [ -s {faults}/rejects ]; then
  head -n 1 {faults}/rejects >&2; sed -i 1d {faults}/rejects; exit 1
fi
echo "$@" >> {faults}/{name}.calls
exec {program} "$@"
"""


@dataclass
class Slurm:
    """The daemons."""

    directory: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> Path:
        return self.directory / "slurm.conf"

    def __enter__(self) -> Slurm:
        missing = [name for name in ("slurmctld", "slurmd") if not os.access(_daemon(name), os.X_OK)]
        missing += [name for name in PROGRAMS if not shutil.which(name)]
        if missing:
            raise Missing(
                f"not installed: {', '.join(missing)} (Debian: apt-get install slurmctld slurmd slurm-client)"
            )
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        (self.directory / "state").mkdir(parents=True)
        lines = [CONFIG.format(host=host, port=ports[0], user=getpass.getuser(), directory=self.directory)]
        lines += [] if _has_network() else ["CommunicationParameters=EnableIPv6\n"]
        gres = []
        for node, port in zip(NODES, ports[1:], strict=True):
            where = f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"{where} CPUs=64 RealMemory=1000 Gres=gpu:h100:{GPUS} State=UNKNOWN\n")
            gres.append(f"NodeName={node} Name=gpu Type=h100 File={self.directory}/nvidia[0-{GPUS - 1}]\n")
        for number in range(GPUS):  # CUDA_VISIBLE_DEVICES is set for GPUs that are devices
            (self.directory / f"nvidia{number}").symlink_to("/dev/null")
        self.conf.write_text("".join(lines))
        (self.directory / "gres.conf").write_text("".join(gres))
        (self.directory / "cgroup.conf").touch()
        self._run("slurmctld", "-c")
        self._wait(lambda: "is UP" in self.command("scontrol", "ping"))
        for node in NODES:
            self._run("slurmd", "-N", node)
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        self._wait(lambda: self.command(*states).split() == ["idle"] * len(NODES))

    def _wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        while not is_so():
            if time.monotonic() > until:
                raise Missing(f"Slurm did not start:\n{self._log()}")
            time.sleep(0.1)

    def command(self, *args: str) -> str:
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(args, env=env, capture_output=True, text=True, check=False, timeout=60).stdout

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def rest(self) -> None:
        """As before the first test: no job, and every node up."""
        self.command("scancel", f"--user={getpass.getuser()}")
        until = time.monotonic() + START_TIMEOUT_S
        while self.command("squeue", "--noheader") and time.monotonic() < until:
            time.sleep(0.1)
        self.command("scontrol", "update", f"NodeName={','.join(NODES)}", "State=RESUME")

    def _run(self, daemon: str, *args: str) -> None:
        argv = [_daemon(daemon), "-D", "-f", str(self.conf), *args]
        with (self.directory / f"{daemon}.out").open("ab") as out:
            started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.daemons.append(started)

    def _log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in self.directory.glob("slurm*.[lo][ou]*"))


@dataclass
class Cluster:
    """One test's login node of the cluster."""

    slurm: Slurm
    directory: Path
    login: SSHServer
    sshd: Sshd
    _people: list[Any] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """Its workspace of hosts.yaml."""
        return self.login.home / ".ci-tasks"

    def person(self, person: Any) -> Any:
        self._people.append(person)
        person.env.update(self.sshd.env)
        self.hosts()
        return person

    def hosts(self, more: str = "") -> None:
        file = self.directory / "hosts.yaml"
        keys = f"kind: slurm, address: {self.login.name}, runtime: none, gres: 'gpu:h100'{', ' if more else ''}{more}"
        file.write_text(f"hosts: {{cluster: {{{keys}}}}}\n")
        for person in self._people:
            person.env["CI_TASKS_HOSTS"] = str(file)

    def scontrol(self, *args: str) -> str:
        return self.slurm.command("scontrol", *args)

    def scancel(self, *args: str) -> str:
        return self.slurm.command("scancel", *args)

    def jobs(self) -> dict[str, str]:
        """{job: state} of all that Slurm knows."""
        output = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%A|%T")
        return dict(line.split("|") for line in output.split())

    def calls(self, program: str) -> list[str]:
        """With what words the login node has called it."""
        file = self.directory / "faults" / f"{program}.calls"
        return file.read_text().splitlines() if file.exists() else []

    def rejects(self, *lines: str) -> None:
        (self.directory / "faults/rejects").write_text("".join(f"{line}\n" for line in lines))

    def forgets(self) -> None:
        (self.directory / "faults/forgets").touch()

    def left(self) -> list[Path]:
        """What is still there of any run."""
        return list((self.home / "runs").glob("*"))


@contextlib.contextmanager
def login_node(slurm: Slurm, sshd: Sshd, directory: Path) -> Iterator[Cluster]:
    """A login node, whose programs a test may make fail. Slurm is as before when the block ends."""
    faults, programs = directory / "faults", directory / "programs"
    faults.mkdir()
    programs.mkdir()
    for name in PROGRAMS:
        wrapper, quoted = programs / name, shlex.quote(str(faults))
        wrapper.write_text(WRAPPER.format(conf=slurm.conf, name=name, faults=quoted, program=shutil.which(name)))
        wrapper.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    try:
        login = sshd.start("login")
    finally:
        os.environ["PATH"] = path
    try:
        yield Cluster(slurm, directory, login, sshd)
    finally:
        slurm.rest()


def _daemon(name: str) -> str:
    return shutil.which(name) or f"/usr/sbin/{name}"


def _has_network() -> bool:
    """With only a loopback interface, Slurm's look-up of an IPv4 address fails unless IPv6 will do as well."""
    try:
        return bool(socket.getaddrinfo(None, 1, socket.AF_INET, flags=socket.AI_ADDRCONFIG | socket.AI_PASSIVE))
    except socket.gaierror:
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
