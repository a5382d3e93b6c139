"""`--repeat` and `--until-fail` as a person uses them: a test fails in its second run, whatever is edited meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import until

ROW = "tiny_ckpt[async-save]"
SIM = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n"


@pytest.fixture
def counting(person: Any) -> Path:
    """Makes the test count its runs in a file outside of the checkout, into which it also writes each time, as its
    person might. The second run fails, the third sleeps."""
    counter = person.home.with_name("counter")
    test = person.checkout / "tests/test_tiny_ckpt.py"
    test.write_text(
        "import pathlib, time\n"
        f"counter = pathlib.Path({str(counter)!r})\n"
        "number = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(number))\n"
        f"pathlib.Path({str(test)!r}).write_text('raise SystemExit(\"edited meanwhile\")')\n"
        "print('run number', number, flush=True)\n"
        "if number == 3: time.sleep(600)\n"
        "if number == 2: raise RuntimeError('the cause')\n" + test.read_text()
    )
    return Path(counter)


def every_record(person: Any) -> list[dict[str, Any]]:
    """The records of all batches, in time."""
    records = [json.loads(path.read_text()) for path in person.home.glob("runs/*/*/record.json")]
    return sorted(records, key=lambda record: str(record["started_at"]))


def test_a_row_that_fails_once_is_flaky_on_one_tree_and_ctrl_c_ends_the_third_run(person: Any, counting: Path) -> None:
    client = person.start("remote", "--host", "sim", "ckpt", "--only", "async", "--repeat", "9")
    until(lambda: counting.exists() and counting.read_text() == "3", "the third repetition has begun")
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=60)
    assert (client.returncode, err) == (130, ""), out + err
    records = every_record(person)
    assert [record["status"] for record in records] == ["passed", "failed", "cancelled"]
    assert len({json.dumps(record["checkout"]) for record in records}) == 1
    assert records[0]["checkout"]["path"] == str(person.checkout)
    assert records[0]["checkout"]["dirty"] == ["tests/test_tiny_ckpt.py"]
    assert f"flaky   {ROW}  1 of 2 (0–100 %)" in out and "      RuntimeError: the cause\n" in out
    assert "run number" not in out, "the log is on disk, not between the lines that count"
    assert f"not counted of {ROW}: 1 cancelled" in out
    assert out.splitlines()[-1].endswith(": flaky (1 row); interrupted, --resume continues")
    assert not person.processes()


def test_until_fail_on_a_box_runs_the_install_steps_each_time_and_names_the_log(person: Any, sshd: Any) -> None:
    ssh_host, seen, installed = sshd.start("box"), person.home.with_name("seen"), person.home.with_name("installed")
    person.write_hosts(SIM)
    person.env.update(sshd.env)
    steps = f"echo x >> '{installed}'; echo of the steps > made\n"
    person.edit(".github/workflows/pr-test.yml", "pip install pytest\n", steps)
    person.edit(".github/workflows/pr-test.yml", "pip install -e . --no-deps\n", "true\n")
    row = f"with open({str(seen)!r}, 'a+') as out, open('made', 'a+') as made:\n    made.seek(0)\n"
    row += "    out.write(made.read())\n    made.write('of a row\\n')\n    out.seek(0)\n"
    row += "    if len(list(out)) == 2: raise RuntimeError('the cause')\n"
    person.write("tests/test_agent/test_transcript.py", row)
    result = person.ci_tasks("remote", "--host", "box", "agent-test", "--only", "transcript", "--until-fail")
    assert result.code == 1, result.out + result.err
    assert seen.read_text() == "of the steps\n" * 2, result.out
    assert installed.read_text() == "x\n" * 2
    (named,) = [line.split("log: ")[1] for line in result.out.splitlines() if line.startswith("      log: ")]
    assert "RuntimeError: the cause" in Path(named).read_text()
    assert not list((ssh_host.home / ".ci-tasks/runs").iterdir())
