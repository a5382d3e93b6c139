"""Looking at the processes of a run: its agent does, wherever it is, and what it saw is brought here."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from ci_tasks import known_secrets
from ci_tasks.agent.codec import masked_record
from ci_tasks.agent.hang.facts import HangFacts
from ci_tasks.agent.hang.look import NoLook, wait_for_look
from ci_tasks.agent.mask import mask_text
from ci_tasks.agent.records import RemoteLocation
from ci_tasks.agent.run_directory import RunDir, read_plan, read_record, read_remote, write_record
from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.messages import LookAtProcesses
from ci_tasks.errors import Blocked
from ci_tasks.results.load import find_one
from ci_tasks.run.attach import host_of_run

_IN_MEMORY = 1 << 22
_MAX_BYTES = 1 << 26


def look_at(run: RunDir) -> HangFacts:
    """What the run's agent sees of its processes now. Raises Blocked where it cannot be asked."""
    remote = read_remote(run)
    if remote is not None:
        return _look_there(run, remote)
    try:
        return wait_for_look(run.path, secrets.token_hex(8))
    except NoLook as reason:
        raise Blocked(f"no look at {run.path}: {reason}", hint="`ci-tasks runs` lists the running ones") from None


def _look_there(run: RunDir, remote: RemoteLocation) -> HangFacts:
    """The facts that the host sends, masked and stored in the run directory here."""
    from ci_tasks.hosts.connection import RequestRefused
    from ci_tasks.hosts.run_manager import open_remote_host

    known_secrets.add_variables(read_plan(run).secrets)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool, tempfile.TemporaryDirectory() as directory:

        def keep(chunk: bytes) -> None:
            if spool.tell() + len(chunk) > _MAX_BYTES:
                raise Blocked(f"{remote.host} sent more than {_MAX_BYTES >> 20} MiB")
            spool.write(chunk)

        with closing(open_remote_host(host_of_run(remote))) as manager:
            try:
                manager.connection.request(LookAtProcesses(remote.directory, secrets.token_hex(8)), keep)
            except RequestRefused as refusal:
                hint = "`ci-tasks fetch` brings what was seen of a run that has ended"
                raise Blocked(refusal.message, hint=hint) from None
        there, values = RunDir(directory), known_secrets.values()
        try:
            spool.seek(0)
            bundle.unpack(spool, directory)
            facts = read_record(HangFacts, there.hang)
        except (bundle.BundleError, OSError) as problem:
            raise Blocked(f"{remote.host} sent what no host of ci-tasks sends: {problem}") from None
        if facts is None:
            raise Blocked(f"{remote.host} sent nothing of the run's processes")
        facts = masked_record(facts, values)
        os.makedirs(os.path.dirname(run.hang), exist_ok=True)
        write_record(run.hang, facts, compact=True)
        if os.path.exists(there.hang_stacks):
            text = Path(there.hang_stacks).read_text(encoding="utf-8", errors="replace")
            Path(run.hang_stacks).write_text(mask_text(values, text), encoding="utf-8", errors="replace")
        return facts


def shell(name: str) -> int:
    """Open bash in the run's container, or beside its workspace; its exit code."""
    _, run = find_one(name)
    remote = read_remote(run)
    if remote is None:
        return subprocess.call([sys.executable, "-I", run.agent, "shell", run.path])
    from ci_tasks.hosts.ssh import SSHConnection

    runner, directory = (shlex.quote(path) for path in (f"{remote.directory}/bin/agent.pyz", remote.directory))
    message = shlex.quote("ci-tasks: nothing is left of the run on its host; --keep keeps a failed one")
    script = f"[ -e {runner} ] || {{ echo {message} >&2; exit 2; }}; exec python3 -I {runner} shell {directory}"
    with closing(SSHConnection(remote.address or remote.host)) as connection:
        return connection.interactive(f"exec sh -c {shlex.quote(script)}")
