"""`--repeat` and `--until-fail` as a person uses them: a test fails in its second run, whatever is edited meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support

until = support.until
ROW = "tiny_ckpt[async-save]"
SIM = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n"


@pytest.fixture
def counting(person: Any) -> Path:
    """Makes the test count its runs in a file outside of the checkout, into which it also writes each time, as its
    person might. The second run fails, or sleeps where there is a file `sleeps`."""
    counter = person.home.with_name("counter")
    test = person.checkout / "tests/test_tiny_ckpt.py"
    test.write_text(
        "import pathlib, time\n"
        f"counter = pathlib.Path({str(counter)!r})\n"
        "number = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(number))\n"
        f"pathlib.Path({str(test)!r}).write_text('raise SystemExit(\"edited meanwhile\")')\n"
        "print('run number', number, flush=True)\n"
        "if number == 2 and counter.with_name('sleeps').exists(): time.sleep(600)\n"
        "if number == 2: raise RuntimeError('the cause')\n" + test.read_text()
    )
    return Path(counter)


def every_record(person: Any) -> list[dict[str, Any]]:
    """The records of all batches, in time."""
    records = [json.loads(path.read_text()) for path in person.home.glob("runs/*/*/record.json")]
    return sorted(records, key=lambda record: str(record["started_at"]))


def test_a_row_that_fails_once_is_flaky_on_exactly_one_tree(person: Any, counting: Path) -> None:
    result = person.ci_tasks("remote", "--host", "sim", "ckpt", "--only", "async", "--repeat", "3")
    assert (result.code, result.err) == (1, ""), result.out + result.err
    records = every_record(person)
    assert [record["status"] for record in records] == ["passed", "failed", "passed"]
    assert len({json.dumps(record["checkout"]) for record in records}) == 1
    assert records[0]["checkout"]["path"] == str(person.checkout)
    assert records[0]["checkout"]["dirty"] == ["tests/test_tiny_ckpt.py"]
    assert "passed; so far 2 passed, 1 failed" in result.out
    assert f"flaky   {ROW}  2       1       33 % (6–79 %)" in result.out
    assert "      RuntimeError: the cause\n" in result.out
    assert "run number" not in result.out, "the log is on disk, not between the lines that count"
    assert result.out.splitlines()[-1].endswith(": 1 flaky")
    assert not person.processes()


def test_until_fail_stops_at_the_first_failure_on_a_box_and_names_its_log(
    person: Any, counting: Path, sshd: Any
) -> None:
    ssh_host = sshd.start("box")
    hosts = person.home.with_name("hosts.yaml")
    hosts.write_text(SIM)
    person.env.update({**sshd.env, "CI_TASKS_HOSTS": str(hosts)})
    result = person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--until-fail")
    assert result.code == 1, result.out + result.err
    first, failed = every_record(person)
    assert (first["status"], failed["status"]) == ("passed", "failed")
    assert first["checkout"] == failed["checkout"]
    (named,) = [line.split("log: ")[1] for line in result.out.splitlines() if line.startswith("      log: ")]
    assert "RuntimeError: the cause" in Path(named).read_text()
    assert not list((ssh_host.home / ".ci-tasks/runs").iterdir())


def test_install_steps_of_a_label_run_once_on_a_box_and_each_repetition_finds_what_they_left(
    person: Any, sshd: Any
) -> None:
    ssh_host, seen, installed = sshd.start("box"), person.home.with_name("seen"), person.home.with_name("installed")
    hosts = person.home.with_name("hosts.yaml")
    hosts.write_text(SIM)
    person.env.update({**sshd.env, "CI_TASKS_HOSTS": str(hosts)})
    steps = f"echo x >> '{installed}'; echo of the steps > made\n"
    person.edit(".github/workflows/pr-test.yml", "pip install pytest\n", steps)
    person.edit(".github/workflows/pr-test.yml", "pip install -e . --no-deps\n", "true\n")
    row = f"with open({str(seen)!r}, 'a') as out, open('made', 'a+') as made:\n    made.seek(0)\n"
    row += "    out.write(made.read())\n    made.write('of a row\\n')\nraise SystemExit(1)\n"
    person.write("tests/test_agent/test_transcript.py", row)
    result = person.ci_tasks("remote", "--host", "box", "agent-test", "--only", "transcript", "--repeat", "2")
    assert result.code == 1, result.out + result.err
    assert seen.read_text() == "of the steps\n" * 2, result.out
    assert installed.read_text() == "x\n"
    assert "install steps: what they made is restored, in " in result.out
    assert not list((ssh_host.home / ".ci-tasks/runs").iterdir())


def test_ctrl_c_ends_what_runs_and_tells_what_was_seen(person: Any, counting: Path) -> None:
    counting.with_name("sleeps").touch()
    client = person.start("remote", "--host", "sim", "ckpt", "--only", "async", "--repeat", "9")
    until(lambda: counting.exists() and counting.read_text() == "2", "the second repetition has begun")
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=60)
    assert client.returncode == 130, out + err
    assert out.splitlines()[-1].endswith(": 1 passes; interrupted")
    assert "not counted of tiny_ckpt[async-save]:  1 cancelled" in out
    assert not person.processes()
