"""Runs on another host, through the real `serve`: sent, watched, brought home, cleared away."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import Blocked
from ci_tasks.hosts import box as box_module
from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.box import Box, Errand, Pack
from ci_tasks.hosts.channel import Channel
from ci_tasks.hosts.line import Line
from ci_tasks.hosts.link import LinkDied, PipeLink
from ci_tasks.model import BLOCKED, CANCELLED, LOST, HostSpec
from ci_tasks.runner.layout import RunDir, read_json

PATIENCE = 40.0


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.01)


@dataclass
class NextRoom:
    """`links` are the connections made so far; `prepare` may put its own words before each command."""

    tmp: Path
    links: list[PipeLink] = field(default_factory=list)
    before: str = ""
    boxes: list[Box] = field(default_factory=list)
    spec: HostSpec = field(default_factory=lambda: HostSpec(name="box", kind="ssh", address="box"))

    @property
    def home(self) -> Path:
        return self.tmp / "box"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "PYTHON"))}
        return {**kept, "HOME": str(self.home)}

    def connect(self) -> PipeLink:
        link = _Preceded(self.before, self.environment())
        self.links.append(link)
        return link

    def open(self) -> Box:
        memory = self.tmp / "memory.json"
        box = Box(lambda news, log: Line(self.spec, self.connect, memory, news, log))
        self.boxes.append(box)
        return box

    def errand(self, script: str, name: str = "01", **more: Any) -> Errand:
        run = RunDir(str(self.tmp / "here" / name))
        os.makedirs(run.path, exist_ok=True)
        plan = {
            "id": f"batch.{name}",
            "row": "row",
            "timeout_minutes": 5,
            "stall_minutes": 5,
            "patience_seconds": 0.5,
            "secrets": [],
            "container": {"runtime": "none"},
            **more.pop("plan", {}),
        }
        directory = str(self.home / ".ci-tasks/runs/batch" / name)
        return Errand(run=run, directory=directory, plan=plan, script=f"#!/bin/bash\n{script}", **more)

    def left(self) -> list[str]:
        """What is still on the host of any run."""
        return [str(path) for path in (self.home / ".ci-tasks/runs").rglob("*")]


class _Preceded(PipeLink):
    def __init__(self, before: str, environ: dict[str, str]) -> None:
        super().__init__(environ)
        self._before = before

    def open(self, command: str) -> Any:
        return super().open(self._before + command)


LINES = "for n in $(seq 2000); do echo line $n; done; "


@pytest.fixture
def room(tmp_path: Path) -> Iterator[NextRoom]:
    (tmp_path / "box").mkdir()
    made = NextRoom(tmp_path)
    yield made
    for one in made.boxes:
        one.close()


def home_at_last(errand: Errand) -> None:
    until(lambda: errand.is_home or errand.never, f"the run comes home; it is {errand.step}")


def done(errand: Errand) -> None:
    until(lambda: errand.step == box_module.DONE or errand.never, f"the run is done; it is {errand.step}")


def another(room: NextRoom, deaths: int) -> bool:
    return len(room.links) > deaths


def status(errand: Errand) -> dict[str, object]:
    return read_json(errand.run.status)


def gate(tmp_path: Path) -> tuple[str, Path]:
    """A line of script that waits for a file, and the file."""
    return f"while [ ! -e {tmp_path / 'go'} ]; do sleep 0.02; done; ", tmp_path / "go"


def test_a_run_comes_home_whole_and_leaves_nothing_there(room: NextRoom) -> None:
    errand = room.errand(LINES + 'echo "<testsuites/>" > "$CI_TASKS_RUN_DIR/artifacts/junit.xml"; exit 3')
    room.open().begin(errand)
    done(errand)
    assert errand.never is None
    log = Path(errand.run.log).read_bytes()
    assert log == b"".join(b"line %d\n" % n for n in range(1, 2001))
    assert status(errand)["exit_code"] == 3
    assert status(errand)["log_sha256"] == hashlib.sha256(log).hexdigest()
    assert Path(errand.run.junit).read_text() == "<testsuites/>\n"
    assert [json.loads(line)["event"] for line in Path(errand.run.events).read_text().splitlines()][-1] == "ended"
    assert read_json(errand.run.remote)["complete"] is True
    assert room.left() == []


def test_output_is_here_while_the_run_goes_on(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand("echo first; " + wait + "echo last")
    room.open().begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"first\n", "the first line")
    go.touch()
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"first\nlast\n"


def test_a_link_that_dies_again_and_again_costs_not_a_byte(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand(LINES + wait + LINES)
    box = room.open()
    box.begin(errand)
    for deaths in range(1, 4):
        until(lambda: box.line.is_up and errand.mirror and errand.mirror.offset, "output")
        room.links[-1].cut()
        until(partial(another, room, deaths), "another connection")
    go.touch()
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"".join(b"line %d\n" % n for n in range(1, 2001)) * 2
    said = [box.line.said.get() for _ in range(box.line.said.qsize())]
    assert any("is down" in line and "goes on" in line for line in said)
    assert any("is back" in line for line in said)


def test_a_link_that_dies_before_the_host_has_answered_is_made_again(room: NextRoom) -> None:
    errand = room.errand("echo hello")
    box = room.open()
    until(lambda: room.links, "a connection")
    room.links[0].cut()
    box.begin(errand)
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"hello\n"


def test_a_greeting_of_the_login_shell_does_no_harm(room: NextRoom) -> None:
    room.before = "echo 'Welcome! You have mail.'; "
    errand = room.errand("echo hello")
    room.open().begin(errand)
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"hello\n"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        # no python3 there
        ("PATH=/nonexistent; ", "no python3"),
        # an account that may not run commands
        ("echo 'This account is currently not available.'; exit 1; ", "This account is currently not available."),
        # a shell that talks for ever
        ("yes hello | head -c 300000; exit 1; ", "does not answer as ci-tasks does"),
    ],
)
def test_a_host_that_cannot_be_used_says_why(
    room: NextRoom, monkeypatch: pytest.MonkeyPatch, before: str, said: str
) -> None:
    monkeypatch.setattr("ci_tasks.hosts.link._STATUS_WAIT", 0.5)  # one that talks for ever has no exit status
    room.before = before
    errand = room.errand("true")
    box = room.open()
    box.begin(errand)
    done(errand)
    assert errand.never is not None
    assert errand.never[0] == BLOCKED
    assert said in errand.never[1]
    with pytest.raises(Blocked):
        box.line.request("runs")


def test_a_runner_that_the_host_has_lost_is_sent_again(room: NextRoom) -> None:
    first = room.errand("echo one")
    box = room.open()
    box.begin(first)
    done(first)
    box.close()
    for runner in (room.home / ".ci-tasks/runners").iterdir():
        runner.unlink()
    second = room.errand("echo two", "02")
    room.open().begin(second)
    done(second)
    assert Path(second.run.log).read_bytes() == b"two\n"


def test_the_runner_travels_once(room: NextRoom) -> None:
    for name in ("01", "02"):
        errand = room.errand("true", name)
        box = room.open()
        box.begin(errand)
        done(errand)
        box.close()
    (runner,) = (room.home / ".ci-tasks/runners").iterdir()
    assert read_json(str(room.tmp / "memory.json"))["runner"] == runner.stem


def test_the_runner_is_unpacked_once_where_python_keeps_it_compiled(room: NextRoom) -> None:
    for name in ("01", "02"):
        errand = room.errand("true", name)
        room.open().begin(errand)
        done(errand)
    (code,) = (room.home / ".ci-tasks/code").iterdir()
    assert list(code.glob("runner/link/__pycache__/serve.*.pyc"))


def test_where_the_runner_cannot_be_unpacked_it_runs_as_it_came(room: NextRoom) -> None:
    (room.home / ".ci-tasks").mkdir()
    (room.home / ".ci-tasks/code").write_text("in the way")
    errand = room.errand("echo all the same")
    room.open().begin(errand)
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"all the same\n"


def test_runners_that_nobody_uses_any_more_go_and_the_one_in_use_stays(room: NextRoom) -> None:
    errand = room.errand("true")
    box = room.open()
    box.begin(errand)
    done(errand)
    kept = [*(room.home / ".ci-tasks/runners").iterdir(), *(room.home / ".ci-tasks/code").iterdir()]
    old = [room.home / ".ci-tasks/runners/old.pyz", room.home / ".ci-tasks/code/old/runner"]
    old[1].mkdir(parents=True)
    old[0].write_text("")
    for path in (*kept, old[0], old[1].parent):
        os.utime(path, (1, 1))
    box.line.request("prune", days=14)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in old)


def test_cancel_ends_the_run_and_brings_it_home(room: NextRoom) -> None:
    errand = room.errand("echo begun; sleep 100")
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    box.end(errand, "cancel")
    done(errand)
    assert status(errand)["end"] == "cancelled"
    assert room.left() == []


def test_kill_ends_a_run_that_does_not_listen(room: NextRoom) -> None:
    errand = room.errand("trap '' TERM; echo begun; while :; do sleep 0.1; done", plan={"patience_seconds": 60})
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    box.end(errand, "kill")
    done(errand)
    assert status(errand)["end"] == "cancelled"


def test_a_cancel_while_the_link_is_down_reaches_the_host_when_it_is_back(
    room: NextRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    errand = room.errand("echo begun; sleep 100")
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    connect = room.connect

    def refused() -> PipeLink:
        raise Blocked("refused")

    box.line._connect = refused
    room.links[-1].cut()
    until(lambda: not box.line.is_up, "the link is down")
    box.end(errand, "cancel")
    assert not errand.is_home
    box.line._connect = connect
    done(errand)
    assert status(errand)["end"] == "cancelled"


def test_a_kill_while_the_link_is_down_leaves_at_once_and_says_so(room: NextRoom) -> None:
    errand = room.errand("echo begun; sleep 100")
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")

    def refused() -> PipeLink:
        raise Blocked("refused")

    box.line._connect = refused
    room.links[-1].cut()
    until(lambda: not box.line.is_up, "the link is down")
    box.end(errand, "kill")
    assert errand.never is not None
    assert errand.never[0] == LOST
    box.close()
    again = Errand(run=errand.run, directory=errand.directory)
    other = room.open()
    other.attach(again)
    other.end(again, "cancel")
    done(again)


def test_a_cancel_before_anything_was_sent_begins_nothing(room: NextRoom) -> None:
    room.before = "sleep 1; "
    errand = room.errand("echo never")
    errand.end_wanted = "cancel"
    room.open().begin(errand)
    done(errand)
    assert errand.never == (CANCELLED, "cancelled")
    assert room.left() == []


def test_a_runner_that_was_killed_is_found_out_and_what_it_left_is_ended(room: NextRoom) -> None:
    errand = room.errand("echo $$; sleep 100")
    room.open().begin(errand)
    until(lambda: Path(errand.run.log).read_bytes().endswith(b"\n"), "the job has begun")
    job = int(Path(errand.run.log).read_bytes())
    os.kill(int(read_json(f"{errand.directory}/status.json")["pid"]), signal.SIGKILL)
    done(errand)
    assert status(errand)["gone"] is True
    assert errand.never is None
    until(lambda: not Path(f"/proc/{job}").exists(), "the job is gone")
    assert room.left() == []


def test_a_run_goes_on_without_us_and_is_found_again(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand("echo one; " + wait + "echo two")
    first = room.open()
    first.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"one\n", "the job has begun")
    first.leave()
    first.close()
    go.touch()
    again = Errand(run=errand.run, directory=errand.directory)
    room.open().attach(again)
    done(again)
    assert Path(errand.run.log).read_bytes() == b"one\ntwo\n"


def test_two_may_watch_one_run(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand("echo one; " + wait + "echo two")
    room.open().begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"one\n", "the job has begun")
    other = room.errand("", "other")
    other.directory, other.stays = errand.directory, True
    room.open().attach(other)
    until(lambda: Path(other.run.log).read_bytes() == b"one\n", "the other sees it too")
    go.touch()
    done(other)
    done(errand)
    assert Path(other.run.log).read_bytes() == Path(errand.run.log).read_bytes() == b"one\ntwo\n"


def test_a_log_that_was_changed_here_is_fetched_again(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand("echo one; " + wait + "echo two")
    first = room.open()
    first.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"one\n", "the job has begun")
    first.leave()
    first.close()
    Path(errand.run.log).write_bytes(b"eno\n")
    go.touch()
    again = Errand(run=errand.run, directory=errand.directory)
    room.open().attach(again)
    done(again)
    assert Path(errand.run.log).read_bytes() == b"one\ntwo\n"


def test_a_secret_reaches_the_job_and_nothing_else(room: NextRoom) -> None:
    value = "s3cr3t-value-of-a-token"
    errand = room.errand(
        'echo "it is $TOKEN"; tr "\\0" "\\n" < /proc/$PPID/cmdline',
        plan={"secrets": ["TOKEN"]},
        secrets={"TOKEN": value},
        stays=True,
    )
    room.open().begin(errand)
    done(errand)
    assert b"it is ***" in Path(errand.run.log).read_bytes()
    kept = [path for top in (room.home, room.tmp / "here") for path in top.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if value.encode() in path.read_bytes()]


def test_a_run_directory_outside_of_the_home_is_refused(room: NextRoom, tmp_path: Path) -> None:
    errand = room.errand("touch owned")
    errand.directory = str(tmp_path / "elsewhere")
    room.open().begin(errand)
    done(errand)
    assert errand.never is not None
    assert errand.never[0] == BLOCKED
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_here_leaves_the_run_on_its_host(room: NextRoom, tmp_path: Path) -> None:
    errand = room.errand(LINES)
    box: Box = room.open()
    box.begin(errand)
    assert errand.mirror is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, errand.mirror._log or 0)
    os.close(full)
    done(errand)
    assert errand.never is not None
    assert errand.never[0] == BLOCKED
    assert "No space left on device" in errand.never[1]
    assert room.left() != []


def test_programs_of_the_host_are_asked_side_by_side(room: NextRoom) -> None:
    box = room.open()
    said = box.line.ask({"echo": ["echo", "hello"], "no": ["no-such-program"], "slow": ["sleep", "30"]}, 1.0)
    assert said["echo"] == Answer(0, "hello\n")
    assert said["no"].absent
    assert said["slow"].timed_out


# -- what can go wrong -----------------------------------------------------------------------------------------------


def test_a_run_that_is_cancelled_while_its_code_is_on_its_way_is_never_asked_for(room: NextRoom) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_: object) -> Iterator[bytes]:
        begun.set()
        go_on.wait(PATIENCE)
        yield b""

    errand = room.errand("echo never", parts=[{"path": "", "commit": "0" * 40, "tree": "0" * 40}])
    box = room.open()
    box.load([Pack(tree="0" * 40, make=slowly)])
    box.begin(errand)
    begun.wait(PATIENCE)
    box.end(errand, "cancel")
    assert errand.never == (CANCELLED, "cancelled")
    go_on.set()
    box.close()
    assert read_json(errand.run.remote)["complete"] is True, "nobody has to come back for it"
    assert room.left() == []


def test_code_that_cannot_be_sent_ends_its_run_and_no_other(room: NextRoom) -> None:
    """Half a pack must not be followed by requests, which the host would take for the other half."""

    def broken(_: object) -> Iterator[bytes]:
        yield b"PACK"
        raise Blocked("git is broken")

    errand = room.errand("echo never", parts=[{"path": "", "commit": "0" * 40, "tree": "0" * 40}])
    other = room.errand("echo hello", "02")
    box = room.open()
    box.load([Pack(tree="0" * 40, make=broken)])
    box.begin(errand)
    done(errand)
    box.begin(other)
    done(other)
    assert errand.never == (BLOCKED, "git is broken")
    assert Path(other.run.log).read_bytes() == b"hello\n"


def test_a_run_that_the_host_cannot_begin_leaves_nothing_there(room: NextRoom) -> None:
    errand = room.errand("echo never", plan={"timeout_minutes": "many"})
    room.open().begin(errand)
    done(errand)
    assert errand.never is not None
    assert errand.never[0] == BLOCKED
    assert "the runner did not start" in errand.never[1]
    assert room.left() == []


def test_a_run_that_was_made_but_never_begun_is_lost_and_cleared_away(room: NextRoom) -> None:
    """Its client was killed in between."""
    errand = room.errand("echo never")
    box = room.open()
    box.line.request("create", dir=errand.directory, plan=errand.plan, script=errand.script, parts=[])
    assert room.left() != []
    box.attach(errand)
    done(errand)
    assert errand.never is not None
    assert errand.never[0] == LOST
    assert "never began" in errand.never[1]
    assert room.left() == []


def test_two_links_that_ask_for_one_run_begin_it_once(room: NextRoom, tmp_path: Path) -> None:
    """As when the link dies while the run is being sent, and all of it is sent again."""
    errand = room.errand(f"echo begun >> {tmp_path}/begun; sleep 0.3")
    fields: dict[str, Any] = {"dir": errand.directory, "plan": errand.plan, "script": errand.script, "parts": []}
    channels = [room.open().line.channel() for _ in range(4)]
    for channel in channels:
        channel.post("ask", questions={}, timeout=1.0).wait()
    asked = [channel.post("create", **fields) for channel in channels]
    asked += [channel.post("start", dir=errand.directory, secrets={}) for channel in channels]
    for pending in asked:
        pending.wait()
    until(lambda: read_json(f"{errand.directory}/status.json").get("state") == "ended", "the run ends")
    assert (tmp_path / "begun").read_text() == "begun\n"


def test_a_log_that_is_cut_here_while_it_grows_is_fetched_again(room: NextRoom, tmp_path: Path) -> None:
    wait, go = gate(tmp_path)
    errand = room.errand("echo one; " + wait + "echo two")
    room.open().begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"one\n", "the job has begun")
    os.truncate(errand.run.log, 0)
    go.touch()
    done(errand)
    assert Path(errand.run.log).read_bytes() == b"one\ntwo\n"


def test_news_that_cannot_be_taken_end_one_run_and_not_the_link(room: NextRoom) -> None:
    errand, other = room.errand("sleep 100"), room.errand("echo hello; sleep 0.5", "02")
    box = room.open()
    box.begin(errand)
    box.begin(other)
    until(lambda: status(errand), "it runs")
    box._news({"key": errand.key, "status": ["no status"]})
    done(errand)
    done(other)
    assert errand.never is not None
    assert errand.never[0] == BLOCKED
    assert other.never is None
    assert len(room.links) == 1
    box.line.request("kill", dir=errand.directory)


def test_a_kill_reaches_the_host_although_we_leave_at_once(room: NextRoom) -> None:
    """As where nobody reads what we print any more."""
    errand = room.errand("trap '' TERM; echo begun; while :; do sleep 0.1; done", plan={"patience_seconds": 60})
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    box.end(errand, "kill")
    box.close()
    assert status(errand)["end"] == "cancelled"
    assert room.left() == []


def test_a_second_kill_waits_for_the_host_no_more(room: NextRoom) -> None:
    errand = room.errand("echo begun; sleep 100")
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    for pid in [int(read_json(f"{errand.directory}/status.json")["pid"])]:
        os.kill(pid, signal.SIGSTOP)
    box.end(errand, "kill")
    box.end(errand, "kill")
    assert errand.never is not None
    assert errand.never[0] == LOST
    os.kill(pid, signal.SIGCONT)


def test_a_run_that_is_home_stays_so_whatever_becomes_of_the_link(
    room: NextRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    errand = room.errand("echo hello")
    box = room.open()
    original = box._go_on

    def then_never_again(one: Errand, channel: Any) -> None:
        if one.step == box_module.CLEARING:
            raise Blocked("no link for 60 minutes")
        channel_post = channel.post

        def post(do: str, *words: Any, **fields: Any) -> Any:
            if do == "clear":
                raise Blocked("no link for 60 minutes")
            return channel_post(do, *words, **fields)

        channel.post = post
        original(one, channel)

    monkeypatch.setattr(box, "_go_on", then_never_again)
    box.begin(errand)
    done(errand)
    assert errand.never is None
    assert "no link" in errand.remark
    assert errand.is_home


def test_what_a_client_asked_to_be_removed_is_removed_although_it_goes(room: NextRoom) -> None:
    """A run that is half removed is found by nobody."""
    errand = room.errand("trap '' TERM; echo begun; while :; do sleep 0.1; done", plan={"patience_seconds": 2})
    box = room.open()
    box.begin(errand)
    until(lambda: Path(errand.run.log).read_bytes() == b"begun\n", "the job has begun")
    box.leave()
    box.close()
    other = room.open()
    other.line.channel().post("clear", dir=errand.directory)
    time.sleep(0.3)
    for stream in room.links[-1]._streams:
        stream._in.close()  # a client that dies; its process on the host is not killed
    until(lambda: not Path(errand.directory).exists(), "it is removed")


def test_a_host_that_is_silent_from_the_start_is_a_dead_link() -> None:
    class Silent:
        def settimeout(self, seconds: float) -> None:
            pass

        def recv(self, n: int) -> bytes:
            raise TimeoutError("nothing")

    with pytest.raises(LinkDied):
        Channel(Silent(), lambda said: None, lambda *words: None).hello()  # type: ignore[arg-type]


def test_what_was_said_of_a_run_before_it_was_home_is_not_its_end(room: NextRoom) -> None:
    """As `blocked`, while the disk was full here: whoever looks next judges anew."""
    errand = room.errand("echo hello")
    Path(errand.run.record).write_text('{"status": "blocked"}')
    room.open().begin(errand)
    done(errand)
    assert not Path(errand.run.record).exists()


@pytest.mark.parametrize("more", [True, False], ids=["more rows may come", "no more rows"])
def test_what_rows_share_goes_with_the_last_row_unless_more_may_come(room: NextRoom, more: bool) -> None:
    """One row may be cleared away before the next one is there: it would find the venv of its batch gone."""
    venv = room.home / ".ci-tasks/runs/batch/environments/venv"
    venv.mkdir(parents=True)
    errand = room.errand("echo hello", shares=more)
    box = room.open()
    box.begin(errand)
    done(errand)
    assert not Path(errand.directory).exists()
    assert venv.exists() == more
    box.line.request("clear", dir=str(venv))
    assert room.left() == []
