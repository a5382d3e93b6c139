"""docker.json and events.jsonl: the docker commands of a script, what ran instead, and the deviations. Secrets are
masked."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import time
from collections.abc import Iterator, Sequence

from ..argv_masking import masked
from ..codec import RecordError
from ..exit_gate import masked_record
from ..job_environment import secret_values
from ..records import Deviation, DockerInvocation, DockerInvocations, Event
from ..run_directory import RunDir, read_plan, read_record, write_record


class ContainerBlocked(Exception):
    """The command is not possible on this host; the message says why and what to do about it."""


@contextlib.contextmanager
def journal(run_dir: RunDir) -> Iterator[list[DockerInvocation]]:
    """The invocations in docker.json, locked for this process; what was appended is written when the block succeeds.

    Nobody would find a container that is not recorded, so without a record none is started. Raises ContainerBlocked.
    """
    try:
        with open(run_dir.docker + ".lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            calls = list((read_record(DockerInvocations, run_dir.docker) or DockerInvocations(())).calls)
            yield calls
            values = secret_values(read_plan(run_dir))
            write_record(run_dir.docker, DockerInvocations(tuple(_without_values(call, values) for call in calls)))
    except RecordError as error:
        raise ContainerBlocked(str(error)) from None
    except OSError as error:
        raise ContainerBlocked(f"{run_dir.docker} cannot be written: {error.strerror}") from None


def _without_values(call: DockerInvocation, values: Sequence[str]) -> DockerInvocation:
    """The name stays, by which the container is found."""
    return dataclasses.replace(masked_record(call, values), name=call.name)


def record_pull(run_dir: RunDir, image: str) -> None:
    _note(run_dir, Event(round(time.time(), 3), "pull", image=_showable([image])[0]))


def record_container(run_dir: RunDir, name: str | None) -> None:
    _note(run_dir, Event(round(time.time(), 3), "container", name=_showable([name])[0] if name else None))


def _note(run_dir: RunDir, event: Event) -> None:
    """One line beside the agent's own. It is only shown to people, so that a full disk is no reason to stop here."""
    try:
        line = masked_record(event, secret_values(read_plan(run_dir))).line()
        with open(run_dir.events, "a", encoding="utf-8") as out:
            out.write(line)
    except (OSError, RecordError):
        pass


def masked_invocation(
    ci: Sequence[str], here: Sequence[str], deviations: Sequence[Deviation], runtime: str, name: str | None
) -> DockerInvocation:
    """An invocation fit to be shown."""
    shown = (
        Deviation(*_showable([deviation.what, deviation.ci, deviation.here, deviation.why])) for deviation in deviations
    )
    return DockerInvocation(tuple(_showable(ci)), tuple(_showable(here)), tuple(shown), name, runtime)


def _showable(texts: Sequence[str]) -> list[str]:
    """Secrets masked, and bytes that are no UTF-8 as `\\xNN`, since JSON cannot hold them."""
    return [word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in masked(texts)]
