"""What is taken from a container's tar stream or from the host, and what is not. `docker cp` is a stand-in that gives
any stream."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import artifacts as collect
from ci_tasks.agent import run_directory
from ci_tasks.agent.codec import from_json
from ci_tasks.agent.containers.rules import ContainerRules
from ci_tasks.agent.containers.run_containers import DockerClient, RunContainer
from ci_tasks.agent.records import CoreFile, CoreFiles, LeftOut, Plan

if TYPE_CHECKING:
    from tests.agent.conftest import Run

FAKE = """\
#!/bin/sh
case "${0##*/} $1 $2" in "docker cp -L") ;; "podman cp id:"*) ;; *) exit 1 ;; esac
cat "$STREAM"
[ ! -e "$STREAM.hangs" ] || exec sleep 300
exit 1
"""


def entry(
    name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def stream(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Daemon:
    def __init__(self, root: Path, runtime: str) -> None:
        program = root / "bin" / runtime
        program.parent.mkdir()
        program.write_text(FAKE)
        program.chmod(0o755)
        self.stream = root / "stream"
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        client = DockerClient(runtime, {**os.environ, "PATH": path, "STREAM": str(self.stream)})
        self.container = RunContainer(client, "id", "ci-7", 1, "img", "sha256:1", False, "", "/")

    def gives(self, content: bytes, hangs: bool = False) -> None:
        self.stream.write_bytes(content)
        if hangs:
            Path(f"{self.stream}.hangs").touch()


@pytest.fixture
def runtime() -> str:
    return "docker"


@pytest.fixture
def daemon(tmp_path: Path, runtime: str) -> Daemon:
    return Daemon(tmp_path, runtime)


@pytest.fixture
def taken(run: Run, daemon: Daemon) -> Callable[..., dict[str, bytes]]:
    """The files of artifacts after collecting."""

    def take(*containers: RunContainer, **plan: Any) -> dict[str, bytes]:
        Path(run.paths.artifacts).mkdir(exist_ok=True)
        full_plan = Plan(container=ContainerRules(), **plan)
        assert collect.collect(run.paths, full_plan, list(containers) or [daemon.container], time.time() - 60) == []
        top = Path(run.paths.artifacts)
        assert not [path for path in top.rglob("*") if path.is_symlink()]
        assert not [name for name in os.listdir(run.path) if name.startswith(".")]
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    return take


def left_out(files: dict[str, bytes]) -> LeftOut:
    text = files.get("left-out.json")
    return from_json(LeftOut, text, where="left-out.json") if text else LeftOut()


def _left(files: dict[str, bytes]) -> dict[str, str]:
    return {file.path: file.why for file in left_out(files).files}


LOGS = "/tmp/ray/session_latest/logs"
AT = f"container-1{LOGS}"


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_plain_files_are_taken_to_where_they_lay(daemon: Daemon, taken: Callable[..., dict[str, bytes]]) -> None:
    names = ["logs/a", "logs/sub/b c", "logs/sub/two\nlines", "logs/übung", "logs/-rf"]
    daemon.gives(stream(entry("logs", kind=tarfile.DIRTYPE), *(entry(name, name.encode()) for name in names)))
    assert taken() == {f"{AT}{name[4:]}": name.encode() for name in names}


@pytest.mark.parametrize("name", ["logs/../../x", "logs/a/../../../x", "../../x", "logs/.."])
def test_a_name_that_leads_elsewhere_is_not_followed(
    run: Run, daemon: Daemon, taken: Callable[..., dict[str, bytes]], name: str
) -> None:
    daemon.gives(stream(entry("logs/ok"), entry(name)))
    before = sorted(os.listdir(run.path.parent))
    files = taken()
    assert set(files) - {"left-out.json"} <= {f"{AT}/ok", f"{AT}/x"}
    assert sorted(os.listdir(run.path.parent)) == before
    assert all(why == "its path leads elsewhere" for why in _left(files).values())


KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]


@pytest.mark.parametrize("kind", KINDS)
def test_links_and_devices_are_named_and_not_made(
    daemon: Daemon, taken: Callable[..., dict[str, bytes]], kind: bytes
) -> None:
    daemon.gives(stream(entry("logs/odd", kind=kind, link="/etc"), entry("logs/odd/passwd"), entry("logs/z")))
    files = taken()
    assert set(files) == {f"{AT}/odd/passwd", f"{AT}/z", "left-out.json"}
    assert _left(files) == {f"{LOGS}/odd": "neither a plain file nor a directory"}


def test_whole_files_are_taken_up_to_the_limit_and_the_others_named(
    daemon: Daemon, taken: Callable[..., dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "LIMIT", 10)
    sizes = [("a", 6), ("b", 5), ("c", 4), ("d", 1)]
    daemon.gives(stream(*(entry(f"logs/{name}", b"x" * size) for name, size in sizes)))
    files = taken()
    assert {name[len(AT) + 1 :] for name in files if name.startswith(AT)} == {"a", "c"}
    assert [(file.path[-1], file.bytes) for file in left_out(files).files] == [("b", 5), ("d", 1)]


def test_a_stream_that_breaks_off_leaves_no_half_of_a_file(
    daemon: Daemon, taken: Callable[..., dict[str, bytes]]
) -> None:
    daemon.gives(stream(entry("logs/a"), entry("logs/b", b"x" * 50_000))[:20_000])
    files = taken()
    assert set(files) == {f"{AT}/a", "left-out.json"}
    assert _left(files) == {LOGS: "the copy broke off"}


def test_a_daemon_that_hangs_in_the_middle_is_not_waited_for(
    daemon: Daemon, taken: Callable[..., dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_SECONDS", 1.0)
    daemon.gives(stream(entry("logs/a"), entry("logs/b", b"x" * 50_000))[:20_000], hangs=True)
    files = taken(artifacts=["/other"])
    assert "left-out.json" in files and f"{AT}/b" not in files
    assert set(_left(files)) == {LOGS, "/other"}


def test_a_path_inside_another_is_taken_once() -> None:
    plan = Plan(artifacts=("/out/deep", "/out", "/outer", "/tmp/ray/session_latest/logs/x", "relative", "/out/"))
    assert collect.artifact_paths(plan) == ["/out", "/outer", LOGS]


def test_a_link_in_the_place_of_artifacts_is_not_followed(run: Run, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", run.paths.artifacts)
    daemon.gives(stream(entry("logs/a")))
    assert collect.collect(run.paths, Plan(), [daemon.container], 0) == []
    assert os.listdir(tmp_path / "outside") == []


# -- without containers ----------------------------------------------------------------------------------------------


@pytest.fixture
def bare(run: Run, tmp_path: Path) -> Callable[[Path], set[str]]:
    def take(path: Path) -> set[str]:
        Path(run.paths.artifacts).mkdir(exist_ok=True)
        plan = Plan(container=ContainerRules("none"), artifacts=(str(path),))
        assert collect.collect(run.paths, plan, [], time.time()) == []
        top = Path(run.paths.artifacts, "host")
        return {str(file.relative_to(top))[len(str(path)) :] for file in top.rglob("*") if file.is_file()}

    return take


def test_only_what_changed_since_the_run_began_is_taken_from_the_host(
    bare: Callable[[Path], set[str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    for name in ("new", "sub/new\n2", "old"):
        (out / name).write_text(name)
    os.utime(out / "old", (1, time.time() - 3600))
    (out / "link").symlink_to("/etc/passwd")
    (out / "up").symlink_to("/etc")
    os.mkfifo(out / "pipe")
    assert bare(out) == {"new", "sub/new\n2"}


@pytest.mark.parametrize(("kind", "ray"), [("pyxis", "ray"), ("apptainer", "tmp/ray")])
def test_rays_newest_logs_come_out_of_a_container_without_a_daemon(run: Run, kind: str, ray: str) -> None:
    """Its /tmp lies in the run directory, and the link to the newest session leads to a path inside of it."""
    for age, session in enumerate(("session_new", "session_old")):
        logs = Path(run.paths.path, "tmp/container-1", ray, session, "logs")
        logs.mkdir(parents=True)
        (logs / "worker.out").write_text(session)
        os.utime(logs.parent, (time.time() - age * 60,) * 2)
    Path(run.paths.path, "tmp/container-1", ray, "session_latest").symlink_to("/tmp/ray/session_new")
    top = Path(run.paths.artifacts)
    top.mkdir(exist_ok=True)
    assert collect.collect(run.paths, Plan(container=ContainerRules(kind)), [], time.time()) == []
    texts = {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.suffix == ".out"}
    assert texts == {"container-1/tmp/ray/session_latest/logs/worker.out": "session_new"}


def test_the_runs_own_directory_is_not_collected_into_itself(bare: Callable[[Path], set[str]], run: Run) -> None:
    (run.path / "artifacts").mkdir()
    (run.path / "artifacts" / "junit.xml").write_text("x")
    (run.path.parent / "beside").write_text("x")
    assert bare(run.path.parent) == {"beside"}


# -- core files ------------------------------------------------------------------------------------------------------

NAMES = {"core": True, "core.123": True, "core.python3.77": True, "core.py": False, "score": False, "core.so": False}


@pytest.mark.parametrize(("name", "is_core"), NAMES.items())
def test_a_core_file_is_named_and_not_copied(run: Run, tmp_path: Path, name: str, is_core: bool) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "deep").mkdir(parents=True)
    (workspace / "deep" / name).write_bytes(b"\x7fELF")
    (workspace / "core.9").symlink_to(workspace / "deep" / name)
    Path(run.paths.artifacts).mkdir()
    collect.collect(run.paths, Plan(workspace=str(workspace)), [], time.time())
    core_files = run_directory.read_record(CoreFiles, os.path.join(run.paths.artifacts, "cores.json"))
    assert core_files == (CoreFiles((CoreFile(str(workspace / "deep" / name), 4),)) if is_core else None)
    assert len(os.listdir(run.paths.artifacts)) == int(is_core)


def test_what_already_lies_in_artifacts_keeps_its_name(
    daemon: Daemon, run: Run, taken: Callable[..., dict[str, bytes]]
) -> None:
    Path(run.paths.artifacts, "container-1").mkdir(parents=True)
    daemon.gives(stream(entry("logs/a")))
    assert taken() == {f"container-1.2{LOGS}/a": b"x"}
