"""apptainer and pyxis as they answer, or do not."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import containers

ABSENT = QueryAnswer(None, "", "apptainer: No such file or directory")
NO_NAMESPACE = QueryAnswer(1, "", "unshare: unshare failed: Operation not permitted")


@pytest.mark.parametrize(
    ("kind", "version", "namespace", "status", "text"),
    [
        ("ssh", QueryAnswer(0, "apptainer version 1.3.4-1.el9\n"), QueryAnswer(0), "ok", "apptainer 1.3.4-1.el9"),
        (
            "ssh",
            QueryAnswer(0, "apptainer version 1.3.4\n"),
            NO_NAMESPACE,
            "warning",
            "apptainer 1.3.4, and no user namespaces",
        ),
        ("ssh", QueryAnswer(0, "apptainer version 1.0.3\n"), QueryAnswer(0), "fault", "apptainer 1.0.3 is too old"),
        ("ssh", ABSENT, QueryAnswer(0), "fault", "apptainer: not on PATH"),
        ("ssh", QueryAnswer(255, "", "FATAL: no config\n"), QueryAnswer(0), "fault", "apptainer: FATAL: no config"),
        # A login node says little of the others.
        ("slurm", ABSENT, NO_NAMESPACE, "unknown", "apptainer: not on the login node"),
        ("slurm", QueryAnswer(0, "apptainer version 1.3.4\n"), NO_NAMESPACE, "ok", "apptainer 1.3.4"),
    ],
)
def test_apptainer(read: Any, kind: str, version: QueryAnswer, namespace: QueryAnswer, status: str, text: str) -> None:
    host = HostSpec("h", kind=kind, address="a", runtime="apptainer")
    [result] = read(containers.facts(host, ()), {"apptainer": version, "user namespace": namespace})
    assert (result.topic, result.status, result.text.startswith(text)) == ("runtime", status, True)
    assert bool(result.next_step) is (status in ("fault", "warning"))


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (QueryAnswer(0, "--container-image=X\n--container-env=NAME\n"), "ok", "pyxis: srun has its options"),
        (QueryAnswer(0, "--container-image=X\n"), "fault", "pyxis: older than 0.15"),
        (QueryAnswer(0, "Usage: srun\n"), "fault", "pyxis: srun has no --container-image"),
        (ABSENT, "fault", "pyxis: no srun on PATH"),
        (QueryAnswer(None, "", "no answer from srun within 20 s"), "unknown", "pyxis: no answer"),
    ],
)
def test_pyxis(read: Any, answer: QueryAnswer, status: str, text: str) -> None:
    host = HostSpec("h", kind="slurm", address="a", runtime="pyxis")
    [result] = read(containers.facts(host, ()), {"srun": answer})
    assert (result.topic, result.status, result.text.startswith(text)) == ("runtime", status, True)
