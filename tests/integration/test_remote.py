"""`remote` on a box over real SSH: this very tree, its output as it is written, its result here, nothing left there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts.processes import with_variable

until = support.until

SIM = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n"


@pytest.fixture
def box(sshd: Any) -> Any:
    return sshd.start("box")


@pytest.fixture
def far_person(person: Any, sshd: Any, box: Any, tmp_path: Path) -> Any:
    """In the sample's checkout, with `box` in a hosts.yaml of their own."""
    person.env.update(sshd.env)
    use(person, SIM)
    return person


def use(person: Any, hosts: str) -> None:
    file = person.home.with_name("hosts.yaml")
    file.write_text(hosts)
    person.env["CI_TASKS_HOSTS"] = str(file)


def left(box: Any) -> list[Path | int]:
    """What is still on the box of any run: directories, and processes of a job."""
    runs = box.home / ".ci-tasks/runs"
    return [*(runs.rglob("*") if runs.exists() else []), *with_variable(f"CI_TASKS_RUN_DIR={runs}/")]


def say(person: Any, words: str) -> None:
    """Edit the test: it says something now."""
    test = person.checkout / "tests/test_tiny_ckpt.py"
    test.write_text(f"print({words!r}, flush=True)\n{test.read_text()}")


def running_log(person: Any) -> bytes:
    logs = sorted(person.home.glob("runs/*/01/log"))
    return logs[-1].read_bytes() if logs else b""


@pytest.mark.smoke
def test_a_label_runs_on_the_box_on_exactly_this_tree(far_person: Any, box: Any) -> None:
    say(far_person, "edited here")
    far_person.write("notes.txt", "untracked\n")
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async,gpu-load-optimizer-gpu")
    assert said.code == 0, said.out + said.err
    records = far_person.records()
    assert [record["status"] for record in records] == ["passed"] * 2
    assert {record["host"] for record in records} == {"box"}
    assert set(records[0]["checkout"]["dirty"]) == {"notes.txt", "tests/test_tiny_ckpt.py"}
    for log in far_person.logs().values():
        assert "edited here" in log
        assert str(box.home / ".ci-tasks/runs") in log or "Acquired GPUs" in log
    assert left(box) == []
    assert far_person.git("status", "--porcelain").split() == ["M", "tests/test_tiny_ckpt.py", "??", "notes.txt"]


def test_a_second_run_sends_what_changed_and_to_a_host_that_forgot_everything_all_of_it(
    far_person: Any, box: Any
) -> None:
    far_person.write("large.bin", os.urandom(3 << 20).hex())
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async")
    assert said.code == 0, said.out + said.err
    log = running_log(far_person)
    assert far_person.records()[0]["log"] == {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}
    assert log.decode() in said.out, "a single row's log is shown as it comes"
    before = {path: path.stat().st_size for path in (box.home / ".ci-tasks/store.git").rglob("*.pack")}
    say(far_person, "once more")
    assert far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async").code == 0
    assert len(list((box.home / ".ci-tasks/workspaces").iterdir())) == 1, "the second run used that of the first"
    after = {path: path.stat().st_size for path in (box.home / ".ci-tasks/store.git").rglob("*.pack")}
    assert 0 < sum(after.values()) - sum(before.values()) < 200_000
    assert "once more" in running_log(far_person).decode()

    shutil.rmtree(box.home / ".ci-tasks")
    say(far_person, "from nothing")
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async")
    assert said.code == 0, said.out + said.err
    assert "from nothing" in running_log(far_person).decode()


def test_a_colleague_follows_and_cancels_a_run_by_its_name_on_the_host(
    far_person: Any, box: Any, tmp_path: Path
) -> None:
    far_person.write("tests/test_tiny_ckpt.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    assert far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--detach").code == 0
    (listed,) = far_person.ci_tasks("runs", "--json").json
    colleague = support.Person(tmp_path / "colleague", far_person.checkout, dict(far_person.env))
    said = colleague.ci_tasks("cancel", listed["id"], "--host", "box")
    assert said.code == 0, said.out + said.err
    (here,) = colleague.home.glob("runs/*/01")
    assert here.parent.name.startswith(listed["id"].removesuffix(".01"))
    assert f"{here.parent.name}.01" in said.out, "as it is called on the host, and here"
    assert [record["status"] for record in colleague.records()] == ["cancelled"]
    # The run is still whole for the one who began it.
    said = far_person.ci_tasks("fetch", "last")
    assert "cancelled" in said.out, said.out + said.err
    assert left(box) == []


def test_a_killed_client_loses_nothing(far_person: Any, box: Any) -> None:
    far_person.env["TINY_STEP_SECONDS"] = "0.2"
    client = far_person.start("remote", "--host", "box", "ckpt", "--only", "async")
    until(lambda: b"rollout 0" in running_log(far_person), "the job has begun")
    client.kill()
    client.communicate()
    said = far_person.ci_tasks("logs", "last", "--follow")
    assert said.code == 0, said.err
    log = running_log(far_person)
    assert said.out == log.decode()
    record = far_person.ci_tasks("runs", "--json").json[0]
    assert (record["status"], record["log"]["bytes"]) == ("passed", len(log))
    assert left(box) == []


@pytest.mark.parametrize("fault", ["connections killed", "server restarted"])
def test_a_link_that_dies_is_made_again(far_person: Any, box: Any, fault: str) -> None:
    far_person.env["TINY_STEP_SECONDS"] = "0.3"
    client = far_person.start("remote", "--host", "box", "ckpt", "--only", "async")
    until(lambda: b"rollout 0" in running_log(far_person), "the job has begun")
    if fault == "server restarted":
        box.stop()
        box.restart()
    else:
        box.kill_children()
    out, err = client.communicate(timeout=100)
    assert client.returncode == 0, out + err
    assert "is down" in out
    assert "is back" in out
    (record,) = far_person.records()
    log = running_log(far_person)
    assert record["log"] == {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}
    assert left(box) == []


def test_a_host_that_cannot_be_reached_is_blocked_and_leaves_no_run(far_person: Any, box: Any) -> None:
    box.stop()
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt")
    assert said.code == 125, said.out + said.err
    assert "refuses connections" in said.err
    assert not list(far_person.home.glob("runs/*"))


def test_an_unknown_host_key_is_blocked_with_the_line_to_add(far_person: Any, sshd: Any) -> None:
    stranger = sshd.start("stranger", known=False)
    use(far_person, SIM.replace("address: box", "address: stranger"))
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt")
    assert said.code == 125, said.out + said.err
    assert f"{stranger.known_as} {stranger.host_key}" in said.err


def test_a_failed_run_is_kept_entered_and_cleaned(far_person: Any, box: Any) -> None:
    """The workspace of one that passed before stays for later ones until `clean --all`, and is not the kept one."""
    assert far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async").code == 0
    far_person.write("tests/test_tiny_ckpt.py", "import sys\nprint('bad luck', flush=True)\nsys.exit(3)\n")
    assert far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--keep").code == 1
    (id,) = [record["id"] for record in far_person.records() if record["status"] == "failed"]
    entered = far_person.start("shell", id, stdin='echo "at $PWD"; ls tests; echo "job $GITHUB_JOB"; exit 7\n')
    out, err = entered.communicate(timeout=60)
    assert entered.returncode == 7, out + err
    assert "test_tiny_ckpt.py" in out
    said = far_person.ci_tasks("clean", "--host", "box")
    assert f"{id}: stays, it was kept" in said.out
    assert left(box)
    said = far_person.ci_tasks("clean", "--host", "box", "--all")
    assert (said.code, f"{id}: removed" in said.out) == (0, True), said.out + said.err
    assert left(box) == []
    assert list((box.home / ".ci-tasks/workspaces").iterdir()) == []
    said = far_person.ci_tasks("shell", id)
    assert said.code == 2
    assert "--keep" in said.err


def test_clean_leaves_what_runs_and_what_is_not_home(far_person: Any, box: Any) -> None:
    far_person.write("tests/test_tiny_ckpt.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    assert far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--detach").code == 0
    assert "stays, it runs" in far_person.ci_tasks("clean", "--host", "box", "--all").out
    (status,) = box.home.glob(".ci-tasks/runs/*/01/status.json")
    os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
    assert "stays, it is not home yet" in far_person.ci_tasks("clean", "--host", "box").out
    assert "removed" in far_person.ci_tasks("clean", "--host", "box", "--all").out
    assert left(box) == []


def test_two_overlays_run_on_the_box_as_they_are_here(far_person: Any, box: Any, tmp_path: Path) -> None:
    """Of the sample's own package, which its install step makes editable, and of a part of a namespace."""
    for name, module in {"first": "tiny_slime", "second": "src/spread/part"}.items():
        directory = tmp_path / name / module
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text(f"V = 'the overlay {name}'\n")
    test = far_person.checkout / "tests/test_tiny_ckpt.py"
    test.write_text("import tiny_slime, spread.part\nprint('step 0:', {'x': 1})\nprint(tiny_slime.V, spread.part.V)\n")
    overlays = ("--with", f"tiny-slime={tmp_path}/first", "--with", f"spread={tmp_path}/second")
    row = ("--host", "box", "ckpt", "--only", "async-save", "--json")
    [record] = far_person.ci_tasks("remote", *row, *overlays).json["runs"]
    why = {item["what"]: item["why"] for item in record["deviations"]}
    assert "shown: the one process" in why["overlay tiny-slime"] and "shown: the one process" in why["overlay spread"]
    first, second = record["checkout"]["overlays"]
    assert (first["modules"], second["modules"]) == (["tiny_slime"], ["spread.part"])
    run = Path(far_person.home, "runs", *record["id"].split("."))
    assert "the overlay first the overlay second" in (run / "log").read_text()
    assert left(box) == []
