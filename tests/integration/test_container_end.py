"""The end of a run on a real docker and on a real podman: what comes back, what goes, and what stays where somebody
asked for it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ci_tasks.agent import containers, processes, slurm
from ci_tasks.agent.records import Kept
from ci_tasks.results.judge_run import judge_run
from tests import fixtures as support
from tests.integration.container_box import Box
from tests.parts import dockerd
from tests.parts.dockerd import Daemon
from tests.parts.engine import Engine

SOMEBODY = 12345
RAY = """\
mkdir -p /tmp/ray/session_2026/logs/old && ln -s /tmp/ray/session_2026 /tmp/ray/session_latest
echo "raylet here" > /tmp/ray/session_2026/logs/raylet.out
echo older > "/tmp/ray/session_2026/logs/old/a b"
""".strip()
LOGS = "artifacts/container-1/tmp/ray/session_latest/logs"


@pytest.fixture
def box(tmp_path: Path, engine: Engine) -> Iterator[Box]:
    with closing(Box(tmp_path / "home", engine)) as made:
        yield made


ENDS = [("exit 3", "exit", 3), ("exit 0", "exit", 0), ("sleep 600", "cancelled", None)]


@pytest.mark.parametrize(("last", "end", "code"), ENDS, ids=[last for last, _, _ in ENDS])
def test_rays_logs_come_out_of_the_container_before_it_goes(box: Box, last: str, end: str, code: int | None) -> None:
    box.write(f"{RAY}; echo ready; {last}")
    box.start()
    if end == "cancelled":
        support.until(lambda: b"ready" in Path(box.run.log).read_bytes(), "the job is under way")
        box.call("cancel")
    status = box.ended()
    assert status.end == end
    assert code is None or status.exit_code == code
    assert (box.path / LOGS / "raylet.out").read_text() == "raylet here\n"
    assert (box.path / LOGS / "old" / "a b").read_text() == "older\n"
    assert (status.left, status.kept) == ((), None)
    box.is_gone()


def test_the_containers_of_killed_clients_and_detached_ones_are_ended_too(box: Box) -> None:
    after = """\
docker run --detach --rm --network host IMAGE bash -c 'echo second > /tmp/out; sleep 600'
docker run --rm --network host IMAGE bash -c 'echo third > /tmp/out; touch /tmp/up; sleep 600' & client=$!
until docker exec ci-tasks-07-3 ls /tmp/up; do sleep 0.1; done
kill -KILL $client
exit 4
""".replace("IMAGE", dockerd.IMAGE)
    box.write("true", after=after, artifacts=["/tmp/out"])
    box.start()
    assert box.ended().exit_code == 4
    assert (box.path / "artifacts/container-2/tmp/out").read_text() == "second\n"
    assert (box.path / "artifacts/container-3/tmp/out").read_text() == "third\n"
    box.is_gone()


HOSTILE = """\
cd /out && echo fine > ok && ln -s /etc/passwd link && mkfifo pipe && touch "two
lines" && mkdir -p deep/er && echo s > deep/er/x && ln -s / deep/root && touch -- -rf && echo correct-horse > told
""".strip()


def test_hostile_files_lead_nowhere_and_secrets_are_masked(box: Box, tmp_path: Path) -> None:
    """The container may write into artifacts itself, so links may wait there as well."""
    outside = tmp_path / "outside"
    outside.mkdir()
    artifacts = shlex.quote(box.run.artifacts)
    traps = f"ln -s {shlex.quote(str(outside))} {artifacts}/container-1; ln -s /etc/passwd {artifacts}/left-out.json"
    box.write(f"mkdir /out; {HOSTILE}; {traps}", artifacts=["/out", "/no/such", "/out/deep"], secrets=["S3_KEY"])
    box.start()
    assert box.ended().exit_code == 0
    assert list(outside.iterdir()) == []
    top = box.path / "artifacts" / "container-1.2" / "out"
    found = sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())
    assert found == ["-rf", "deep/er/x", "ok", "told", "two\nlines"]
    assert (top / "told").read_text() == "***\n"
    assert not [path for path in top.rglob("*") if path.is_symlink()]
    left = {entry["path"]: entry["why"] for entry in box.json("artifacts/left-out.json")["files"]}
    assert sorted(left) == ["/out/deep/root", "/out/link", "/out/pipe"]
    box.is_gone()


def test_a_secret_that_docker_was_given_is_in_no_argv_and_in_nothing_that_is_fetched(box: Box) -> None:
    """Whatever the variable is called, and whatever the container makes of it."""
    leak = 'mkdir -p "/out/$URL" && echo "$URL" > "/out/$URL/$URL.txt" && echo "$URL" && env'
    inside = f"{leak}; touch /out/ready; {box.until_go}"
    box.write(inside, "-e", '"URL=to-$S3_KEY-x"', artifacts=["/out"], secrets=["S3_KEY"])
    box.start()
    support.until(lambda: b"URL=to" in Path(box.run.log).read_bytes(), "the container says its variables")
    argvs = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"correct-horse" in _bytes_of(path)]
    box.go.touch()
    assert box.ended().exit_code == 0
    assert argvs == []
    assert "container-1/out/to-***-x/to-***-x.txt" in box.files()
    fetched = [path for path in box.path.rglob("*") if "bin" not in path.parts]
    assert not [path for path in fetched if "correct-horse" in path.name]
    assert not [path for path in fetched if path.is_file() and b"correct-horse" in path.read_bytes()]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# -- keep and remove -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["exit 3", "sleep 600"])
def test_a_failed_container_and_its_workspace_stay_on_request_until_the_run_is_removed(box: Box, last: str) -> None:
    box.write(f"echo ready; {last}", keep=True)
    box.start()
    if last == "sleep 600":
        support.until(lambda: b"ready" in Path(box.run.log).read_bytes(), "the job is under way")
        box.call("cancel")
    assert box.ended().kept == Kept(("ci-tasks-07",), str(box.workspace))
    assert (box.containers(), box.containers("--all")) == ([], ["ci-tasks-07"])
    assert box.workspace.exists()
    assert slurm.remove_run(str(box.path)) == []
    assert not box.path.exists()
    gone_but_for_the_home(box)


def gone_but_for_the_home(box: Box) -> None:
    assert box.containers("--all") == []
    assert processes.of_run(str(box.path), None) == []


def test_removing_a_run_ends_it_where_its_runner_was_killed_and_its_journal_is_gone(box: Box) -> None:
    box.write("echo ready; sleep 600")
    box.start()
    support.until(lambda: box.containers() and b"ready" in Path(box.run.log).read_bytes(), "the container runs")
    os.kill(box.status().pid or 0, signal.SIGKILL)
    Path(box.run.docker).unlink()
    assert slurm.remove_run(str(box.path)) == []
    assert not box.path.exists()
    gone_but_for_the_home(box)


# -- a daemon that accepts and does not answer ------------------------------------------------------------------------

# The agent's own timeouts, so that a test need not wait as long as a person would. None is so short that a daemon which
# answers slowly would change what a test sees.
QUICK = (
    ("HEARTBEAT_SECONDS = 2.0  # between two writes", "HEARTBEAT_SECONDS = 0.1  # between two writes"),
    ("TIMEOUT = 15.0  # seconds for an answer of the daemon", "TIMEOUT = 0.5  # seconds"),
)


@pytest.mark.parametrize("engine", ["docker_daemon"], indirect=True)
def test_a_container_that_a_silent_daemon_keeps_is_on_record_and_goes_when_it_answers(
    box: Box, docker_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "TIMEOUT", 0.5)
    box.write("echo ready; sleep 600", after="exit 0")
    box.change_agent(*QUICK)
    box.start()
    support.until(lambda: "ready" in box.log(), "the job is under way")
    with docker_daemon.hanging():
        box.call("cancel")
        status = box.ended()
        assert status.end == "cancelled"
        assert [line for line in status.left if line.startswith("containers may be left: no answer from docker")]
        assert "the artifacts in containers are not collected" in status.left
        assert judge_run(box.run).left == status.left
        assert slurm.remove_run(str(box.path))[-1].endswith("kept until its containers are gone")
    assert slurm.remove_run(str(box.path)) == []
    assert box.containers("--all") == []


# -- other users' files ----------------------------------------------------------------------------------------------


@pytest.fixture
def somebody(docker_daemon: Daemon) -> Iterator[Box]:
    """A user that is not root and may use docker."""
    if shutil.which("setpriv") is None:
        support.cannot("not installed: setpriv (Debian: apt-get install util-linux)")
    home = Path("/tmp") / f"ci-tasks-somebody-{os.getpid()}"
    home.mkdir()
    socket = docker_daemon.host.removeprefix("unix://")
    os.chmod(os.path.dirname(socket), 0o711)
    with closing(Box(home, docker_daemon)) as made:
        made.as_user = [
            *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", f"--groups={os.stat(socket).st_gid}"),
            *("--inh-caps=-all", "--bounding-set=-all"),
        ]
        yield made
    shutil.rmtree(home, ignore_errors=True)


def give_away(box: Box) -> None:
    for path in (box.home, *box.home.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)


ROOTS_FILES = """\
cd /w && mkdir -p locked/in "odd
: name" && echo x > locked/in/file && echo y > "odd
: name/z" && chmod 000 locked && ln -s "/outside" out
echo "<x/>" > ARTIFACTS/junit.xml && chmod 600 ARTIFACTS/junit.xml
"""


def test_what_root_left_in_a_container_is_readable_and_removed_for_another_user(somebody: Box, tmp_path: Path) -> None:
    box = somebody
    (tmp_path / "kept").write_text("x")
    text = ROOTS_FILES.replace("ARTIFACTS", shlex.quote(box.run.artifacts)).replace("/outside", str(tmp_path))
    box.write(f"{text}exit 3", "-v", shlex.quote(f"{box.workspace}:/w"))
    give_away(box)
    box.start()
    status = box.ended()
    assert (status.exit_code, status.left) == (3, ()), Path(box.run.log).read_text()
    read = subprocess.run([*box.as_user, "cat", f"{box.run.artifacts}/junit.xml"], capture_output=True)
    assert read.stdout == b"<x/>\n"
    assert (tmp_path / "kept").exists()
    box.is_gone()
