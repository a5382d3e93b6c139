"""What leaves the host of a run: what is collected, and that secrets are masked in it."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ci_tasks.agent import containers, finish
from ci_tasks.agent.codec import masked_record
from ci_tasks.agent.containers import RunContainer
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.finish import ARCHIVE, mask_run
from ci_tasks.agent.records import Plan, Status
from ci_tasks.agent.run_directory import RunDir

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
        started = [container] if runtime in ("docker", "podman") else []
        assert finish.collect(run.paths, rules, started, time.time()) == []
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
    assert set(left_out(files).values()) == {"its path points outside the workspace"}


def test_links_and_devices_are_named_and_not_made(take: Take) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
    odd = [entry(f"logs/odd{at}", kind=kind) for at, kind in enumerate(kinds)]
    files = take(stream(*odd, entry("logs/odd0/passwd"), entry("logs/z")))
    assert set(files) == {f"{AT}/odd0/passwd", f"{AT}/z", "left-out.json"}
    assert left_out(files) == {f"{LOGS}/odd{at}": "neither a regular file nor a directory" for at in range(5)}
    assert {file["bytes"] for file in json.loads(files["left-out.json"])["files"]} == {None}, "unknown, not 0"


def test_whole_files_are_taken_up_to_limit_and_the_others_named(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "LIMIT", 10)
    sizes = [("a", 6), ("b", 5), ("c", 4), ("n" * 300, 0)]
    files = take(stream(*(entry(f"logs/{name}", b"x" * size) for name, size in sizes)))
    assert {name[len(AT) + 1 :] for name in files if name.startswith(AT)} == {"a", "c"}
    assert [path[len(LOGS) + 1 :][:1] for path in left_out(files)] == ["b", "n"]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_stream_that_breaks_off_leaves_no_half_file(take: Take, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr(finish, "MAX_SECONDS", 1.0 if hangs else 60.0)
    files = take(stream(entry("logs/a"), entry("logs/b", b"x" * 50_000))[:20_000], hangs=hangs)
    assert f"{AT}/b" not in files
    assert left_out(files)[LOGS] == f"the copy failed, or took longer than {1 if hangs else 60} s"


def test_a_path_inside_another_is_taken_once(take: Take, tmp_path: Path) -> None:
    (tmp_path / "out/deep").mkdir(parents=True)
    (tmp_path / "out/deep/file").touch()
    paths = [f"{tmp_path}/{name}" for name in ("out/deep", "out/deep/file", "out", "out/")]
    assert [*take(runtime="none", artifacts=(*paths, "relative"))] == [f"host{tmp_path}/out/deep/file"]


def test_a_link_to_a_path_in_another_takes_no_room(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray/session_1/logs").mkdir(parents=True)
    (tmp_path / "ray/session_latest").symlink_to("session_1")
    (tmp_path / "ray/session_1/logs/out").write_bytes(b"x" * 700)
    (tmp_path / "results").write_bytes(b"y" * 500)
    monkeypatch.setattr(finish, "LIMIT", 1500)
    monkeypatch.setattr(finish, "RESERVED_BYTES", 0)
    monkeypatch.setattr(finish, "RAY", f"{tmp_path}/ray")
    monkeypatch.setattr(finish, "RAY_LOGS", f"{tmp_path}/ray/session_latest/logs")
    paths = [f"{tmp_path}/{name}" for name in ("ray", "results")]
    assert any(name.endswith("results") for name in take(runtime="none", artifacts=tuple(paths)))


def test_a_host_with_too_many_files_is_named_once(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "MAX_SECONDS", 0.0)
    for name in "abc":
        (tmp_path / name).touch()
    files = take(runtime="none", artifacts=(str(tmp_path),))
    assert left_out(files) == {str(tmp_path): "copying did not finish within 0 s"}


def test_only_what_changed_since_the_run_began_is_taken_from_the_host(
    run: Run, take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Ray's latest session only if it is not another's."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/theirs").touch()
    monkeypatch.setattr(finish, "RAY_LOGS", str(tmp_path / "ray"))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    for name in ("new", "sub/new\n2", "old"):
        (out / name).write_text(name)
    os.utime(out / "old", (1, time.time() - 3600))
    (out / "link").symlink_to("/etc/passwd")
    (out / "up").symlink_to("/etc")
    os.mkfifo(out / "pipe")
    (tmp_path / "latest").symlink_to(run.path)  # the run's own directory is not collected into itself
    files = take(runtime="none", artifacts=(str(out), str(tmp_path / "latest"), str(tmp_path / "ray")))
    assert {name for name in files if "latest" not in name} == {f"host{out}/new", f"host{out}/sub/new\n2"}
    assert not [name for name in files if "artifacts" in name]


@pytest.mark.parametrize(("runtime", "ray"), [("pyxis", "ray"), ("apptainer", "tmp/ray")])
def test_rays_logs_come_out_of_a_container_without_a_daemon(
    run: Run, take: Take, tmp_path: Path, runtime: str, ray: str
) -> None:
    """Its /tmp lies in the run directory, and the link to the newest session leads to a path inside of it. A link to
    the host is not followed."""
    (tmp_path / "host/session_3/logs").mkdir(parents=True)
    (tmp_path / "host/session_3/logs/worker.out").touch()
    Path(run.paths.path, "tmp/container-2").mkdir(parents=True)
    Path(run.paths.path, "tmp/container-2/ray").symlink_to(tmp_path / "host")
    sessions = Path(run.paths.path, "tmp/container-1", ray)
    for session in ("session_1", "session_2"):
        (sessions / session / "logs").mkdir(parents=True)
        (sessions / session / "logs" / "worker.out").write_text(session)
    (sessions / "session_latest").symlink_to("/tmp/ray/session_2")
    expected = {f"container-1/tmp/ray/session_{at}/logs/worker.out": b"session_%d" % at for at in (1, 2)}
    assert take(runtime=runtime) == expected


SECRET = "correct-horse"


@pytest.fixture
def paths(tmp_path: Path) -> RunDir:
    run = RunDir(str(tmp_path / "run"))
    os.makedirs(run.artifacts)
    return run


def put(run: RunDir, name: str, content: bytes) -> None:
    path = Path(run.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def files(run: RunDir) -> dict[str, bytes]:
    top = Path(run.artifacts)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def masked(run: RunDir) -> dict[str, bytes]:
    mask_run(run, [SECRET])
    assert not [name for name in os.listdir(run.path) if name.startswith(".")], "the old ones are gone"
    return files(run)


def test_content_is_masked_and_in_a_binary_file_nothing_moves(paths: RunDir) -> None:
    put(paths, "artifacts/model.bin", b"\0\1" + SECRET.encode() + b"\2end")
    put(paths, "artifacts/junit.xml", b'<failure message="assert &#x27;correct-horse&#x27;"/>')
    put(paths, "artifacts/clean.txt", b"nothing")
    put(paths, "artifacts/deep/er/b64", base64.b64encode(b"x" + SECRET.encode()))
    got = masked(paths)
    assert got["junit.xml"] == b'<failure message="assert &#x27;***&#x27;"/>'
    assert (got["clean.txt"], got["model.bin"]) == (b"nothing", b"\0\1" + b"*" * len(SECRET) + b"\2end")
    assert b"***" in got["deep/er/b64"]


def test_names_are_masked_and_stay_apart(paths: RunDir) -> None:
    for name in ("correct-horse.txt", "a correct-horse/b", "a ***/b", "***.txt"):
        put(paths, f"artifacts/{name}", name[:3].encode())
    got = masked(paths)
    assert sorted(got) == ["***.txt", "***.txt.2", "a ***/b", "a ***/b.2"]
    assert not [path for path in Path(paths.path).rglob("*") if SECRET in str(path)]


@pytest.mark.parametrize(
    "head",
    [
        *(gzip.compress(b"", mtime=0), bz2.compress(b""), lzma.compress(b""), b"PK\3\4", b"PK\5\6", b"(\xb5/\xfd"),
        *(b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x9d", b"LZIP", b"." * 257 + b"ustar"),
    ],
)
def test_an_archive_of_a_run_with_secrets_stays_behind_and_is_named(paths: RunDir, head: bytes) -> None:
    put(paths, "artifacts/log", head)
    put(paths, "artifacts/plain", b"BZh, PK, ustar")
    got = masked(paths)
    assert sorted(got) == ["left-out.json", "plain"]
    (left,) = json.loads(got["left-out.json"])["files"]
    assert (left["path"], left["why"]) == ("log", ARCHIVE)


def test_a_file_that_would_be_searched_for_hours_stays_behind_and_is_named(paths: RunDir) -> None:
    for name in ("artifacts/hole", "agent.log"):
        put(paths, name, b"")
        os.truncate(Path(paths.path, name), 1 << 40)
    put(paths, "artifacts/other", b"x")
    got = masked(paths)
    assert sorted(got) == ["left-out.json", "other"]
    (left,) = json.loads(got["left-out.json"])["files"]
    assert (left["path"], left["why"]) == ("hole", "too large to be searched for secrets")
    assert not os.path.exists(paths.agent_log)


def test_links_and_devices_do_not_pass(paths: RunDir, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(SECRET)
    put(paths, "artifacts/deep/file", b"x")
    os.symlink(tmp_path / "outside", Path(paths.artifacts, "link"))
    os.symlink(tmp_path, Path(paths.artifacts, "directory"))
    os.mkfifo(Path(paths.artifacts, "pipe"))
    os.symlink(tmp_path / "outside", paths.events)
    assert list(masked(paths)) == ["deep/file"]
    assert not os.path.lexists(paths.events)
    assert (tmp_path / "outside").read_text() == SECRET


@pytest.mark.parametrize("name", ["docker.json", "environment.json", "events.jsonl", "agent.log"])
def test_small_files_are_masked_in_place(paths: RunDir, name: str) -> None:
    put(paths, name, b'{"event": "step", "name": "correct-horse"}\n')
    masked(paths)
    assert Path(paths.path, name).read_bytes() == b'{"event": "step", "name": "***"}\n'


def test_a_records_texts_are_masked_and_its_numbers_stay() -> None:
    status = Status("running", pid=7, waiting=('python train.py --key "correct-horse"',))
    assert masked_record(status, [SECRET]) == Status("running", pid=7, waiting=('python train.py --key "***"',))


def test_however_deep_a_job_has_nested_its_files_the_others_are_masked(paths: RunDir) -> None:
    put(paths, "artifacts/plain", SECRET.encode())
    deepest = os.open(paths.artifacts, os.O_RDONLY)
    for _ in range(1200):  # deeper than Python recurses
        os.mkdir("d", dir_fd=deepest)
        inner = os.open("d", os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = inner
    os.close(deepest)
    plain = Path(paths.artifacts, "plain")
    plain.chmod(0)
    containers.make_readable(paths.artifacts, None, "none", {})
    assert plain.stat().st_mode & 0o777 == 0o400
    assert masked(paths) == {"plain": b"***"}
    assert containers.remove_tree(paths.path, None, "none", {}) == []
