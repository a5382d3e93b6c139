"""A job log in CI's format → the same job again on a box: reproduced, passed here, different failure, blocked."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.logs import github_format as github
from tests.parts import dockerd, git, registry
from tests.parts.commands import run_command

WORKFLOW = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-far:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: test_job.py, num_gpus: 2}, {test_file: test_other.py, num_gpus: 2}]}}
    env:
      GITHUB_COMMIT_NAME: ${{ github.sha }}_${{ github.event.pull_request.number || 'non-pr' }}
    steps:
      - uses: actions/checkout@v4
      - name: Execute
        run: |
          docker run --pull=always --rm --privileged --network host --gpus all --ipc=host \\
            -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" \\
            IMAGE bash -c 'source tests/${{ matrix.info.test_file }}'
"""
SCRIPT = """\
docker run --pull=always --rm --privileged --network host --gpus all --ipc=host \\
  -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" \\
  IMAGE bash -c 'source tests/test_job.py'"""
FAILS = """\
echo "step 0: {'loss': 0.$RANDOM}"
echo 'Traceback (most recent call last):'
echo "  File \\"$PWD/trainer.py\\", line 12, in step"
echo '    raise ValueError(loss)'
echo "ValueError: loss is 3.$RANDOM in process $$"
exit 1
"""
WORKS = "echo \"step 0: {'loss': 0.5}\"\n"


@pytest.fixture
def red_job(tmp_path: Path, sshd: Any, docker_host: str) -> Any:
    """Somebody with a checkout whose job failed in CI, its log, and a box on which it can run."""
    ssh_host = sshd.start("box")
    with registry.serving(dockerd.image_tar()) as (name, digest):
        someone: Any = support.Person(tmp_path / "home", tmp_path / "checkout", dict(sshd.env))
        someone.write(".github/workflows/pr-test.yml", WORKFLOW.replace("IMAGE", f"{name}:latest"))
        someone.write("tests/test_job.py", FAILS)
        someone.write("tests/test_other.py", WORKS)
        git.repository(someone.checkout)
        box = {"kind": "ssh", "address": "box", "gpus": 8}
        someone.hosts = lambda **keys: someone.write_hosts(json.dumps({"hosts": {"box": {**box, **keys}}}))
        someone.hosts(env={"DOCKER_HOST": docker_host})
        someone.ssh_host, someone.image, someone.digest = ssh_host, name, digest
        someone.log = tmp_path / "failed.log"
        someone.log.write_bytes(github.render(ci_job(someone)))
        yield someone


def ci_job(someone: Any) -> Any:
    sha = someone.git("rev-parse", "HEAD").strip()
    env = {"PWD": "/home/ci/_work/t/t"}
    ran = subprocess.run(["bash", "-c", FAILS], capture_output=True, text=True, check=False, cwd="/", env=env)
    image, variables = f"{someone.image}:latest", {"GITHUB_COMMIT_NAME": f"{sha}_7"}
    output = (*github.pulled(image, someone.digest), *ran.stdout.splitlines())
    step = github.Step("Execute", SCRIPT.replace("IMAGE", image), env=variables, output=output, exit_code=1)
    return github.Job("e2e-test-far (test_job.py, 2)", (step,), commit=sha, pull_request=7)


def test_a_red_job_is_reproduced_fixed_broken_otherwise_and_blocked(red_job: Any, tmp_path: Path) -> None:
    reproduce = ("reproduce", "--log", str(red_job.log), "--host", "box")

    result = red_job.ci_tasks(*reproduce)
    assert result.code == 0, result.out + result.err
    assert result.out.splitlines()[-1].startswith("reproduced: the same failure: ValueError: loss is 3.")
    assert "equal on both sides: statement raise ValueError(loss)" in result.out
    (record,) = red_job.records()
    assert record["row"] == "job"
    (call,) = json.loads(next(red_job.home.glob("runs/*/01/docker.json")).read_text())["calls"]
    assert f"{red_job.image}@{red_job.digest}" in call["here"], "the image that CI's log pins is the one that ran"
    assert any(reference.endswith(red_job.digest) for reference in record["environment"]["containers"][0]["digests"])
    lines = [line.split() for line in result.out.splitlines()]
    assert ["runner:"] in [line[:1] for line in lines] and ["image", "digest:"] not in [line[:2] for line in lines]
    assert "not recovered: the GPU model and driver" in result.out
    assert not any(line[:1] == ["code:"] for line in lines), "CI's own commit ran"

    mine = red_job.ci_tasks(*reproduce, "--on-my-tree", "--image", f"{red_job.image}:latest")
    assert (mine.code, mine.out.splitlines()[-1][:11]) == (1, "reproduced:"), "not fixed yet"
    assert red_job.digest not in max(red_job.home.glob("runs/*/01/docker.json")).read_text(), "not CI's image"

    red_job.write("tests/test_job.py", WORKS)
    assert red_job.ci_tasks(*reproduce).code == 0, "an edited tree is not what CI ran"
    fixed = red_job.ci_tasks(*reproduce, "--on-my-tree")
    assert (fixed.code, fixed.out.splitlines()[-1][:35]) == (0, "fixed here: it passed here in 1 run"), fixed.err

    red_job.write("tests/test_job.py", FAILS.replace("ValueError: loss", "KeyError: loss"))
    other = red_job.ci_tasks(*reproduce, "--on-my-tree", "--json")
    assert (other.code, other.err.splitlines()[-1][:17]) == (3, "different failure"), other.out + other.err
    assert (other.json["verdict"], other.json["exit_code"]) == ("different failure", 3)

    red_job.hosts(env={"DOCKER_HOST": f"unix://{tmp_path}/stopped.sock"})
    blocked = red_job.ci_tasks(*reproduce)
    assert (blocked.code, blocked.out.splitlines()[-1][:8]) == (125, "blocked:"), blocked.out + blocked.err


def test_a_commit_that_the_checkout_lacks_is_fetched_beside_it(red_job: Any, tmp_path: Path) -> None:
    """gh's failed steps have no checkout, so `--rev` names it."""
    upstream = tmp_path / "upstream"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(red_job.checkout), str(upstream)], check=True)
    red_job.git("config", "remote.origin.url", str(upstream))
    tree = red_job.git("rev-parse", "HEAD^{tree}").strip()
    git.git(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    merge = git.git(upstream, "commit-tree", tree, "-m", "Merge")
    before = red_job.git("count-objects", "-v")
    log = github.from_gh(replace(ci_job(red_job), commit=merge), failed=True)
    red_job.log.write_bytes(log.replace(red_job.git("rev-parse", "HEAD").strip().encode(), merge.encode()))
    result = red_job.ci_tasks("reproduce", "--log", str(red_job.log), "--host", "box", "--rev", merge)
    assert result.code == 0, result.out + result.err
    assert red_job.records()[0]["checkout"]["commit"] == merge
    assert red_job.git("count-objects", "-v") == before, "the checkout itself stays as it was"


def test_a_login_in_the_checkouts_remote_is_not_shown(red_job: Any) -> None:
    red_job.git("config", "remote.origin.url", "http://me:t0ken@127.0.0.1:1/o/r")
    red_job.log.write_bytes(github.from_gh(replace(ci_job(red_job), commit="1" * 40), failed=True))
    result = red_job.ci_tasks("reproduce", "--log", str(red_job.log), "--host", "box", "--rev", "1" * 40)
    assert "127.0.0.1:1/o/r" in result.out + result.err and "t0ken" not in result.out + result.err


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "reproduce needs --log FILE, --log - or --url URL"),
    ({"log": "gone.log"}, "gone.log"),
    ({"url": "https://example.org/x"}, "https://example.org/x"),
    ({"log": "gone.log", "url": "https://example.org/x"}, "cannot be combined"),
    ({"log": "gone.log", "host": "local,sim"}, "unknown host 'local,sim'"),
    ({"log": "LOG", "repeat": "0"}, "--repeat takes a whole number of repetitions"),
    ({"log": "LOG", "on_my_tree": True, "rev": "HEAD"}, "cannot be combined"),
    ({"log": "PLAIN"}, "does not show which commit CI ran"),
    ({"log": "PLAIN", "rev": "HEAD"}, "--label LABEL --only ROW"),
    ({"log": "GREEN"}, "shows no failure"),
    ({"log": "LOG"}, "did not give it"),
    ({"log": "LOG", "repo": str(Path(__file__).parents[2])}, "the log is of acme/trainer: --repo DIR"),
    ({"log": "FAILED"}, "the log has failed steps only: save the whole log with `gh run view RUN --log`"),
]


def test_what_cannot_be_reproduced_is_a_clear_error_with_the_next_step(
    person: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in person.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(person.checkout)
    logs = {name: tmp_path / f"{name}.log" for name in ("LOG", "PLAIN", "GREEN", "FAILED")}
    step = github.Step("Execute", "true", output=("Traceback (most recent call last):", "ValueError: x"), exit_code=1)
    logs["LOG"].write_bytes(github.render(github.Job("unit", (step,), commit="1" * 40)))
    of_commit = replace(step, env={"GITHUB_COMMIT_NAME": "1" * 40 + "_7"})
    logs["FAILED"].write_bytes(github.from_gh(github.Job("unit", (of_commit,)), failed=True))
    logs["PLAIN"].write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: x\n')
    logs["GREEN"].write_text("3 passed in 0.1s\n")
    for options, message in REFUSED:
        named = {"log": str(logs[options["log"]])} if options.get("log") in logs else {}
        code = run_command("reproduce", **{"host": "local", **options, **named})
        assert (code, message) == (2, message), options
        assert message in capsys.readouterr().err, options
    assert not (person.home / "runs").exists(), "nothing was run"
