"""apptainer and pyxis as they answer, or do not."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts import containers
from ci_tasks.model import HostSpec

ABSENT = Answer(None, "", "apptainer: No such file or directory")
NO_NAMESPACE = Answer(1, "", "unshare: unshare failed: Operation not permitted")


@pytest.mark.parametrize(
    ("kind", "version", "namespace", "status", "text"),
    [
        ("ssh", Answer(0, "apptainer version 1.3.4-1.el9\n"), Answer(0), "ok", "apptainer 1.3.4-1.el9"),
        (
            "ssh",
            Answer(0, "apptainer version 1.3.4\n"),
            NO_NAMESPACE,
            "warning",
            "apptainer 1.3.4, and no user namespaces",
        ),
        ("ssh", Answer(0, "apptainer version 1.0.3\n"), Answer(0), "fault", "apptainer 1.0.3 is too old"),
        ("ssh", ABSENT, Answer(0), "fault", "apptainer: not on PATH"),
        ("ssh", Answer(255, "", "FATAL: no config\n"), Answer(0), "fault", "apptainer: FATAL: no config"),
        # A login node says little of the others.
        ("slurm", ABSENT, NO_NAMESPACE, "unknown", "apptainer: not on the login node"),
        ("slurm", Answer(0, "apptainer version 1.3.4\n"), NO_NAMESPACE, "ok", "apptainer 1.3.4"),
    ],
)
def test_apptainer(read: Any, kind: str, version: Answer, namespace: Answer, status: str, text: str) -> None:
    host = HostSpec("h", kind=kind, address="a", runtime="apptainer")
    [found] = read(containers.facts(host, ()), {"apptainer": version, "user namespace": namespace})
    assert (found.topic, found.status, found.text.startswith(text)) == ("runtime", status, True)
    assert bool(found.next_step) is (status in ("fault", "warning"))


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (Answer(0, "--container-image=X\n--container-env=NAME\n"), "ok", "pyxis: srun has its options"),
        (Answer(0, "--container-image=X\n"), "fault", "pyxis: older than 0.15"),
        (Answer(0, "Usage: srun\n"), "fault", "pyxis: srun has no --container-image"),
        (ABSENT, "fault", "pyxis: no srun on PATH"),
        (Answer(None, "", "no answer from srun within 20 s"), "unknown", "pyxis: no answer"),
    ],
)
def test_pyxis(read: Any, answer: Answer, status: str, text: str) -> None:
    host = HostSpec("h", kind="slurm", address="a", runtime="pyxis")
    [found] = read(containers.facts(host, ()), {"srun": answer})
    assert (found.topic, found.status, found.text.startswith(text)) == ("runtime", status, True)
