"""verl's levels as a person runs them, on the sample pair; every other way to fail is in bench/verl_altered.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import git
from tests.published import check_events

EXAMPLES = support.ROOT / "examples"


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Somebody with both checkouts, verl's with an edit that is not committed."""
    someone: Any = support.Person(tmp_path / "home", tmp_path)
    for name in ("tiny-bridge", "tiny-verl"):
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        git.repository(tmp_path / name)
    (tmp_path / "tiny-verl/note.txt").write_text("not committed")
    box = {"kind": "local", "runtime": "none", "gpus": 8, "simulate": True}
    someone.hosts = lambda **env: someone.write_hosts(json.dumps({"hosts": {"box": {**box, "env": env}}}))
    someone.hosts()
    someone.env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # uv's
    someone.verl = lambda *argv: someone.ci_tasks("verl", *_with_defaults(argv), "--no-reward-model")
    return someone


def _with_defaults(argv: Sequence[str]) -> list[str]:
    """Words for the sample pair on host `box`, unless they name others: a flag is given once."""
    usual = {"--bridge": "tiny-bridge", "--verl": "tiny-verl", "--host": "box"}
    return [*argv, *(word for flag, value in usual.items() if flag not in argv for word in (flag, value))]


def test_a_level_ends_with_a_summary_that_repeats_it(pair: Any) -> None:
    result = pair.verl("--level", "1", "--exact")
    assert result.code == 0 and result.out.startswith("reading "), result.out + result.err
    deliverables = result.out[result.out.index("Deliverables:") :].splitlines()[1:6]
    no_pytest = "Bridge-side checks: Skipped - no pytest here"  # nor in the Python below the row's venv
    assert all(": Pass - " in line or no_pytest in line for line in deliverables), deliverables
    assert re.search(r"- verl repo: [0-9a-f]{12} plus note\.txt", result.out)
    (command,) = re.findall(r"^- Command: (.*)", result.out, re.MULTILINE)
    (ran,) = pair.home.glob("runs/*/01/run.sh")
    assert pair.ci_tasks(*shlex.split(command)[1:], "--plan").code == 0
    planned = max(pair.home.glob("runs/*/01/run.sh"))
    assert _step(planned) == _step(ran), "the command of the summary starts the same plan"
    directory = ran.parent
    assert all("Pass" in (directory / f"summary.{kind}").read_text() for kind in ("txt", "json"))
    for name in ("tiny-bridge", "tiny-verl"):
        assert git.git(pair.checkout / name, "status", "--short") in ("", "?? note.txt")
    told = pair.ci_tasks("report", directory.parent.name)
    assert "level 1: resume: Pass" in told.out and "resume from the checkpoint: shown, resumed at" in told.out, told.out
    judged = pair.ci_tasks("verl", "--level", "1", "--log", str(directory / "log"), "--checks-from", "3 passed")
    assert (judged.code, "Result: Not proven" in judged.out) == (4, True), "without the probe less is seen"
    assert not [*pair.home.glob("sync/*/objects")], "what was copied for a level ends with it"


def test_a_detached_level_ends_with_its_summary_when_somebody_comes_back(pair: Any) -> None:
    """The exit code of attach is that of the level and not of the script."""
    pair.hosts(TINY_VERL_FAILURE="no-trainable")
    started = pair.verl("--level", "0", "--detach", "--json")
    assert (started.code, started.json["status"]) == (0, "running"), started.err
    attached = pair.ci_tasks("attach", started.json["id"], "--json")
    assert (attached.code, attached.json["exit_code"], attached.json["runs"][0]["status"]) == (1, 1, "passed")
    assert "Result: Fail" in attached.err
    (summary,) = pair.home.glob("runs/*/01/summary.json")
    assert json.loads(summary.read_text())["result"] == "Fail"


def test_a_candidate_that_fails_is_compared_with_its_base_under_one_seed(pair: Any) -> None:
    bridge = pair.checkout / "tiny-bridge/src/megatron/bridge/peft/lora.py"
    bridge.write_text(bridge.read_text() + "raise ValueError('a change')\n")
    result = pair.verl("--level", "0", "--base", "HEAD", "--repeat", "1", "--json")
    assert result.code == 4, result.out + result.err
    assert result.json["candidate"] == f"{result.json['base']} + 1 changed file"
    runs = [Path(run["log"]).parent for run in result.json["runs"]]
    assert all("++data.seed=42" in (run / "run.sh").read_text() for run in runs), "those of a pair have one seed"
    assert len({json.loads((run / "plan.json").read_text())["checkout"]["tree"] for run in runs}) == 2


def test_without_uv_a_level_runs_in_the_python_on_path(pair: Any, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    pair.env["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    result = pair.verl("--level", "0", "--env", "VERL_USE_UV=0")
    assert (result.code, "Pass" in result.out) == (0, True), result.out + result.err


def test_the_longest_time_is_the_persons_then_the_hosts_then_the_levels(pair: Any) -> None:
    hosts = {name: {"kind": "local", "runtime": "none", "gpus": 8} for name in ("box", "slow")}
    hosts["slow"]["timeout_minutes"] = 600
    (pair.checkout / "hosts.yaml").write_text(json.dumps({"hosts": hosts}))
    for argv, minutes in (((), 90), (("--host", "slow"), 600), (("--host", "slow", "--timeout", "7.5"), 7.5)):
        planned = pair.verl("--level", "0", "--plan", "--json", *argv)
        assert planned.code == 0, planned.err
        assert [plan["timeout_minutes"] for plan in planned.json] == [minutes], argv


def _step(script: Path) -> str:
    text = script.read_text()
    return text[text.index("ci-tasks-verl") :].replace(str(script.parents[2]), "").replace(script.parents[1].name, "")


def test_a_bridge_from_elsewhere_in_the_worker_stops_the_run(pair: Any) -> None:
    pair.hosts(TINY_VERL_FAILURE="worker-import")
    result = pair.verl("--level", "0", "--json", "--events", "events.jsonl")
    assert result.code == 125, result.out + result.err
    found = {each["name"]: each["status"] for each in result.json["deliverables"]}
    assert (found["Local Bridge import in verl"], found["verl Megatron backend run"]) == ("Fail", "Skipped")
    assert result.json["result"] == "Blocked"
    assert "Result: Blocked" in result.err
    *_, row_ended, _, last = check_events((pair.checkout / "events.jsonl").read_text())
    assert (row_ended["event"], row_ended["status"]) == ("row_ended", "failed")
    assert (last["event"], last["exit_code"]) == ("command_ended", 125)


REFUSED = [
    (["--env", "COMON_TP=2"], "does not read COMON_TP; did you mean COMMON_TP?"),
    (["--bridge", "tiny-verl"], "is not Megatron-Bridge"),
    (["--wrapper", "gone.sh"], "has no gone.sh"),
    (["--verl", "tiny-bridge"], "has no tests/special_e2e/run_ppo_trainer_megatron.sh"),
    (["--host", "nowhere"], "unknown host 'nowhere'"),
    (["--host", "box,local"], "do not run the same level"),
    (["--host", "box,sim", "--detach"], "--detach takes one host, but box,sim has several"),
    (["--base", "HEAD", "--plan"], "cannot be combined"),
    (["--baseline", str(support.ROOT / "README.md")], "has no critic/rewards/mean of any step"),
]


def test_bad_input_is_a_clear_error_and_nothing_runs(pair: Any) -> None:
    for argv, message in REFUSED:
        result = pair.verl(*argv)
        assert (result.code, message in result.err) == (2, True), (argv, result.err)
    assert not (pair.home / "runs").exists()
    pair.write("hosts.yaml", json.dumps({"hosts": {"box": {"kind": "local"}}}))
    trees = [
        (["--bridge", "/nope"], "/nope is not Megatron-Bridge"),
        (["--verl", "/nope"], "/nope has no tests/special_"),
    ]
    for argv, message in (([], "--image verlai/verl:TAG"), (["--test", "nosuch.py"], "has no nosuch.py"), *trees):
        result = pair.verl("--level", "0", *argv)
        assert (result.code, message in result.err) == (2, True), "trees come before the image that a container needs"
