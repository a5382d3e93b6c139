"""What is taken from a container's tar stream or from the host, and what is not. `docker cp` is a stand-in that gives
any stream."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ci_tasks.agent import artifacts
from ci_tasks.agent.containers.rules import ContainerRules
from ci_tasks.agent.containers.run_containers import RunContainer
from ci_tasks.agent.records import Plan

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Files = dict[str, bytes]
Take = Callable[..., Files]
LOGS = "/tmp/ray/session_latest/logs"
AT = f"container-1{LOGS}"


def entry(name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, "/etc", len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def stream(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def take(run: Run, tmp_path: Path) -> Take:
    """Collects what a container gives, and returns the files of `artifacts`."""

    def collected(content: bytes = b"", runtime: str = "docker", hangs: bool = False, **plan: Any) -> Files:
        (tmp_path / "stream").write_bytes(content)

        def copy(*words: str) -> subprocess.Popen[bytes]:
            assert words[:-2] == (("cp", "-L") if runtime == "docker" else ("cp",))
            script = f'cat "$0"; {"exec sleep 300" if hangs else "exit 1"}'
            return subprocess.Popen(["sh", "-c", script, str(tmp_path / "stream")], stdout=subprocess.PIPE)

        client = SimpleNamespace(runtime=runtime, stream=copy)
        container = RunContainer(cast(Any, client), "id", "ci-7", 1, "img", "sha256:1", False, "")
        Path(run.paths.artifacts).mkdir(exist_ok=True)
        rules = Plan(container=ContainerRules(cast(Any, runtime)), **plan)
        containers = [container] if runtime in ("docker", "podman") else []
        assert artifacts.collect(run.paths, rules, containers, time.time()) == []
        top = Path(run.paths.artifacts)
        assert not [path for path in top.rglob("*") if path.is_symlink()]
        assert not [name for name in os.listdir(run.path) if name.startswith(".")]
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    return collected


def left_out(files: Files) -> dict[str, str]:
    return {file["path"]: file["why"] for file in json.loads(files.get("left-out.json", b'{"files": []}'))["files"]}


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_plain_files_are_taken_to_where_they_lay(take: Take, runtime: str) -> None:
    names = ["logs/a", "logs/sub/b c", "logs/sub/two\nlines", "logs/übung", "logs/-rf"]
    content = stream(entry("logs", kind=tarfile.DIRTYPE), *(entry(name, name.encode()) for name in names))
    assert take(content, runtime) == {f"{AT}{name[4:]}": name.encode() for name in names}
    assert f"container-1.2{LOGS}/a" in take(content, runtime), "what is there already keeps its name"


def test_a_name_that_leads_elsewhere_is_not_followed(run: Run, take: Take) -> None:
    before = sorted(os.listdir(run.path.parent))
    names = ["logs/../../x", "logs/a/../../../x", "../../x", "logs/.."]
    files = take(stream(entry("logs/ok"), *map(entry, names)))
    assert set(files) - {"left-out.json"} <= {f"{AT}/ok", f"{AT}/x"}
    assert sorted({*os.listdir(run.path.parent)} - {"stream"}) == before
    assert set(left_out(files).values()) == {"its path leads elsewhere"}


def test_links_and_devices_are_named_and_not_made(take: Take) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
    odd = [entry(f"logs/odd{at}", kind=kind) for at, kind in enumerate(kinds)]
    files = take(stream(*odd, entry("logs/odd0/passwd"), entry("logs/z")))
    assert set(files) == {f"{AT}/odd0/passwd", f"{AT}/z", "left-out.json"}
    assert left_out(files) == {f"{LOGS}/odd{at}": "neither a plain file nor a directory" for at in range(5)}


def test_whole_files_are_taken_up_to_the_limits_and_the_others_named(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "LIMIT", 10)
    monkeypatch.setattr(artifacts, "MAX_FILES", 2)
    sizes = [("a", 6), ("b", 5), ("c", 4), ("d", 0), ("n" * 300, 0)]
    files = take(stream(*(entry(f"logs/{name}", b"x" * size) for name, size in sizes)))
    assert {name[len(AT) + 1 :] for name in files if name.startswith(AT)} == {"a", "c"}
    assert [path[len(LOGS) + 1 :][:1] for path in left_out(files)] == ["b", "d", "n"]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_stream_that_breaks_off_leaves_no_half_of_a_file(
    take: Take, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(artifacts, "MAX_SECONDS", 1.0 if hangs else 60.0)
    files = take(stream(entry("logs/a"), entry("logs/b", b"x" * 50_000))[:20_000], hangs=hangs)
    assert f"{AT}/b" not in files
    assert left_out(files) == {LOGS: "not copied within 1 s" if hangs else "the copy broke off"}


def test_a_path_inside_another_is_taken_once() -> None:
    plan = Plan(artifacts=("/out/deep", "/out", "/outer", "/tmp/ray/session_latest/logs/x", "relative", "/out/"))
    assert artifacts.artifact_paths(plan) == ["/out", "/outer", LOGS]


def test_only_what_changed_since_the_run_began_is_taken_from_the_host(run: Run, take: Take, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    for name in ("new", "sub/new\n2", "old"):
        (out / name).write_text(name)
    os.utime(out / "old", (1, time.time() - 3600))
    (out / "link").symlink_to("/etc/passwd")
    (out / "up").symlink_to("/etc")
    os.mkfifo(out / "pipe")
    (tmp_path / "latest").symlink_to(run.path)  # the run's own directory is not collected into itself
    files = take(runtime="none", artifacts=(str(out), str(tmp_path / "latest")))
    assert {name for name in files if "latest" not in name} == {f"host{out}/new", f"host{out}/sub/new\n2"}
    assert not [name for name in files if "artifacts" in name]


@pytest.mark.parametrize(("runtime", "ray"), [("pyxis", "ray"), ("apptainer", "tmp/ray")])
def test_rays_newest_logs_come_out_of_a_container_without_a_daemon(
    run: Run, take: Take, runtime: str, ray: str
) -> None:
    """Its /tmp lies in the run directory, and the link to the newest session leads to a path inside of it."""
    for age, session in enumerate(("session_new", "session_old")):
        logs = Path(run.paths.path, "tmp/container-1", ray, session, "logs")
        logs.mkdir(parents=True)
        (logs / "worker.out").write_text(session)
        os.utime(logs.parent, (time.time() - age * 60,) * 2)
    Path(run.paths.path, "tmp/container-1", ray, "session_latest").symlink_to("/tmp/ray/session_new")
    assert take(runtime=runtime) == {f"{AT}/worker.out": b"session_new"}


def test_a_core_file_is_named_and_not_copied(run: Run, take: Take, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "deep").mkdir(parents=True)
    for name in ("core", "core.123", "core.python3.77", "core.py", "score", "core.so"):
        (workspace / "deep" / name).write_bytes(b"\x7fELF")
    files = take(workspace=str(workspace))
    named = {os.path.basename(core["path"]): core["bytes"] for core in json.loads(files["cores.json"])["cores"]}
    assert (set(files), named) == ({"cores.json"}, {"core": 4, "core.123": 4, "core.python3.77": 4})
