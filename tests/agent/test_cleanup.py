"""What is removed at a run's end, and from outside."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import containers, finish, slurm
from ci_tasks.agent.records import Kept, Plan, QueryAnswer, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.agent.slurm import SlurmJobState, end_and_clean, remove_run

if TYPE_CHECKING:
    from tests.agent.conftest import Run
    from tests.agent.fake_docker import Fake


def test_a_run_whose_secrets_are_masked_says_so(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.plan).write_text("{}")
    (ended := finish.RunCleanup(run, Plan())).finish(succeeded=True)
    assert (ended.masked, ended.left) == (True, [])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no file of a run")])
def test_what_cannot_be_masked_is_said_and_the_rest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is masked when it is fetched: the status says that it is not yet."""

    def fail(*_: object, **__: object) -> None:
        raise error

    run = RunDir(str(tmp_path / "run"))
    os.makedirs(run.workspace)
    Path(run.plan).write_text(json.dumps({}))
    monkeypatch.setattr(finish, "mask_run", fail)
    ended = finish.RunCleanup(run, Plan())
    ended.finish(succeeded=True)
    assert (ended.masked, ended.left) == (False, [f"secrets are not masked yet: {error}"])
    assert not os.path.exists(run.workspace)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "a: tree's\nname"
    path.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    yield path
    subprocess.run(["rm", "-rf", "--", path], check=False)  # pytest itself cannot remove what is too deep
    assert (tmp_path / "outside" / "kept").read_text() == "x"


def _remove(path: Path) -> list[str]:
    return containers.remove_tree(str(path), None, "none", {})


def test_a_tree_goes_whatever_its_modes_and_names_and_no_link_is_followed(tree: Path, tmp_path: Path) -> None:
    (tree / "locked" / "in\nner").mkdir(parents=True)
    (tree / "locked" / "in\nner" / "-rf").touch(mode=0)
    (tree / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tree / "pipe")
    for path in (tree / "locked" / "in\nner", tree / "locked", tree):
        path.chmod(0)
    assert _remove(tree) == [] and not tree.exists()
    tree.symlink_to(tmp_path / "outside")
    assert _remove(tree) == [] and not os.path.lexists(tree)


def test_what_cannot_be_removed_is_named_with_the_reason(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = QueryAnswer(1, err="rm: cannot remove 'x': Permission denied\n")
    monkeypatch.setattr(containers, "run_program", lambda *_: refusal)
    assert _remove(tree) == [f"{tree}: rm: cannot remove 'x': Permission denied"]


def test_what_another_user_owns_is_removed_by_a_container_that_sees_nothing_else(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container gets words and no shell text. The stand-in for docker removes what is mounted."""
    monkeypatch.setattr(containers, "remove_own", lambda _: "not ours")
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = run ] || exit 0\nprintf "%s|" "$@" > "$0.words"; rm -rf "$VICTIM"\n')
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}", "VICTIM": str(tree)}
    monkeypatch.setenv("PATH", env["PATH"])
    assert containers.remove_tree(str(tree), "img", "docker", env) == []
    words = Path(f"{program}.words").read_text()
    assert f"--mount|type=bind,source={tmp_path},destination=/x|img|-rf|--|/x/{tree.name}|" in words
    assert words.startswith("run|--rm|--pull=never|--network|none|")


def test_a_mount_inside_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (r"/w/tree\040a/in", r"/w/two\012lines", "/w/tree2", "/w")
    (tmp_path / "mountinfo").write_text("".join(f"24 1 0:22 / {path} rw - tmpfs x rw\n" for path in paths))
    monkeypatch.setattr(containers, "_MOUNTS", str(tmp_path / "mountinfo"))
    assert containers.mounted_below("/w/tree a") == ["/w/tree a/in"]
    assert containers.mounted_below("/w/two\nlines") == ["/w/two\nlines"]
    assert containers.mounted_below("/w/tree") == []


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["exit 3", "exit 0"])
def test_the_workspace_of_a_failed_run_stays_where_it_is_kept(run: Run, script: str) -> None:
    workspace = run.path / "workspace"
    workspace.mkdir()
    run.plan.update(workspace=str(workspace), keep=True, container={"runtime": "none"})
    run.start(script)
    kept = Kept(workspace=str(workspace)) if script == "exit 3" else None
    assert run.ended().kept == kept
    assert workspace.exists() == bool(kept) and os.uname().release in Path(run.paths.environment).read_text()


@pytest.mark.parametrize("clean", [remove_run, end_and_clean], ids=["with the run", "without its log"])
def test_a_rewritten_plan_removes_nothing_elsewhere(
    run: Run, tmp_path: Path, clean: Callable[[str], list[str]]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (run.path / "workspace").mkdir()
    run.start("exit 0")
    run.ended()
    run.write("", owned=[str(victim)], workspace=str(victim), setup=str(victim))
    (run.path / "workspace").symlink_to(victim)
    assert clean(str(run.path)) == []
    assert not os.path.lexists(run.path / "workspace")
    assert victim.exists()


def test_a_job_that_puts_a_link_in_the_place_of_its_run_directory_has_nothing_written_or_removed_there(
    run: Run, tmp_path: Path, until: Callable[..., Any]
) -> None:
    (tmp_path / "victim" / "workspace").mkdir(parents=True)
    moved = RunDir(str(tmp_path / "moved"))
    run.start('cd "$CI_TASKS_RUN_DIR/.."; mv "$CI_TASKS_RUN_DIR" moved; ln -s "$PWD/victim" "$CI_TASKS_RUN_DIR"')
    until(lambda: read_status(moved).has_ended)
    assert f"{run.path} is a different directory now: nothing in it is removed" in read_status(moved).left
    assert os.listdir(tmp_path / "victim") == ["workspace"]
    run.path.unlink()


def test_removing_a_run_that_goes_on_ends_it_and_takes_all_that_is_its_own(run: Run, until: Callable[..., Any]) -> None:
    (run.path / "workspace").mkdir()
    run.start('touch "$CI_TASKS_RUN_DIR/ready"; exec sleep 300')
    until(lambda: run.has("ready"))
    assert remove_run(str(run.path)) == []
    assert not run.path.exists()
    assert run.alive() == []


def test_a_run_that_never_began_or_is_gone_is_removed_too(run: Run, fake: Fake) -> None:
    run.write("exit 0", container={"runtime": "docker"})
    fake.has("a", **{"ci-tasks_dir": str(run.path)})
    for _ in range(2):
        assert remove_run(str(run.path)) == [] and not run.path.exists() and fake.left() == []


def test_while_a_daemon_is_away_the_directory_that_leads_to_its_containers_stays(run: Run, fake: Fake) -> None:
    run.write("exit 0", container={"runtime": "docker"})
    Path(run.paths.docker).touch()
    for is_dead in (True, False):
        fake.be("dead", is_dead)
        assert bool(remove_run(str(run.path))) == run.path.exists() == is_dead


@pytest.mark.parametrize("concluded", [False, True])
def test_slurm_run_is_removed_after_its_job_is_over(run: Run, monkeypatch: pytest.MonkeyPatch, concluded: bool) -> None:
    run.write("exit 0")
    write_record(run.paths.slurm_job, SlurmJob(name="n", id="7"))
    write_record(run.paths.status, Status("running", concluded=concluded))
    asked: list[Any] = []

    def may_run(ids: list[str]) -> dict[str, bool]:
        asked.append(ids)
        return {"7": len(asked) < 3}

    monkeypatch.setattr(slurm, "_scancel", lambda *words: asked.append(words))
    monkeypatch.setattr(slurm, "query", lambda _: ({"7": SlurmJobState("RUNNING")}, ""))
    monkeypatch.setattr(slurm, "may_run", may_run)
    assert remove_run(str(run.path)) == []
    assert asked == ([("7",)] if concluded else [("7",), ["7"], ["7"]])
