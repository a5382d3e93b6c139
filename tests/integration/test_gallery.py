"""The sample's gallery of failures, run and read as a newcomer would: each row's cause, verdict and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.parts.nightly import drawn

HOSTS = """\
hosts:
  sim: {kind: local, runtime: none, gpus: 8, simulate: true, env: {TINY_STEP_SECONDS: "0.05", TINY_FLAKE: "1"}}
"""

# Failure → cause, verdict, what the line says.
GALLERY = {
    "oom": ("cuda_oom", "failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.60 GiB."),
    "nccl-timeout": ("nccl_error", "failed", "Watchdog caught collective operation timeout"),
    "engine": ("sglang_engine_crash", "failed", "ValueError: token_to_kv_pool memory leak detected!"),
    "kl": ("test_assertion", "failed", "AssertionError: the policy is not its reference at step 0"),
    "hang": ("timeout_hang", "failed", "Watchdog timeout (self.watchdog_timeout=0.4)"),
    "disk": ("disk_full", "blocked", "OSError: [Errno 28] No space left on device"),
    "import": ("import_error", "failed", "ModuleNotFoundError: No module named 'tiny_math_verify'"),
    "port": ("port_in_use", "blocked", "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', "),
    "hub": ("hf_download", "blocked", "Too Many Requests"),
    "flaky": ("test_assertion", "failed", "AssertionError: the engine answers with weights of version 0, not of 1"),
}


def test_failures_of_the_gallery_are_read_as_what_they_are(person: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    person.env["CI_TASKS_HOSTS"] = str(tmp_path / "hosts.yaml")
    names = drawn(sorted(GALLERY), 4)
    rows = ",".join(f"failure-{name}" for name in names)
    said = person.ci_tasks("remote", "--host", "sim", "gallery", "--only", rows)
    assert said.code == 1, said.err
    triages = {_failure(record["row"]): record["triage"] for record in person.records()}
    assert {name: (found["cause"], found["verdict"]) for name, found in triages.items()} == {
        name: GALLERY[name][:2] for name in names
    }
    logs = {_failure(row): log.split("\n") for row, log in person.logs().items()}
    wrong = {
        name: (found["line_no"], found["line"])
        for name, found in triages.items()
        if not (GALLERY[name][2] in found["line"] and GALLERY[name][2] in logs[name][found["line_no"] - 1])
    }
    assert not wrong, "neither the line that was shown nor the log at its number is the one that matters"
    signatures = {found["signature"] for found in triages.values()}
    assert len(signatures) == len(names), "no two failures are the same"
    assert not person.processes()


def _failure(row: str) -> str:
    """tiny_gallery[failure-oom] → oom"""
    return row.partition("[failure-")[2].rstrip("]")
