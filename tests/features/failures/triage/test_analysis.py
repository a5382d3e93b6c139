"""The reason of a failure whose end is known."""

from __future__ import annotations

from ci_tasks.features.failures.triage.analysis import analyse
from ci_tasks.features.failures.triage.log_triage import triage
from ci_tasks.results.verdict import JobEnd

TIMEOUT = JobEnd("timeout", 143, timeout_minutes=90)
FULL = [b"OSError: [Errno 28] No space left on device\n"]


def test_what_ran_into_its_timeout_hangs() -> None:
    silent = analyse([b"step 1\n"], TIMEOUT)
    assert (silent.cause, silent.verdict, silent.line) == ("timeout_hang", "failed", "step 1")
    assert silent.reason == "it did not end within 90 min"
    assert silent.signature == analyse([b"step 2\n"], TIMEOUT).signature


def test_a_log_that_knows_better_than_the_timeout_is_believed() -> None:
    assert analyse(FULL, TIMEOUT) == triage(FULL, 143)
    assert analyse(FULL, TIMEOUT).cause == "disk_full"


def test_another_end_is_read_from_the_log_alone() -> None:
    assert analyse([b"step 1\n"], JobEnd("exit", 1)) == triage([b"step 1\n"], 1)


def test_what_the_timeout_itself_makes_a_job_print_is_no_reason() -> None:
    died = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
    log = [f'Traceback (most recent call last):\n  File "/x/run.py", line 3, in main\n    call()\n{died}\n'.encode()]
    assert triage(log, 143).rule == "killed-child"
    assert analyse(log, TIMEOUT).cause == "timeout_hang"
