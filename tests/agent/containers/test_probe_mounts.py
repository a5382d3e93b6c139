"""The probe in containers: where it is mounted, and that nothing of the host is written or of the run changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.containers import probe_mounts
from ci_tasks.agent.containers.docker_argv import parse_run, render
from ci_tasks.agent.containers.probe_mounts import parse_sites, pull, pulls, with_probe, without_pull
from ci_tasks.agent.probe.install import write_files
from ci_tasks.agent.run_directory import RunDir

SITE = "/usr/lib/python3/dist-packages"
# Notes its words; has one image, whose Pythons have `sites`.
DOCKER = """\
#!/bin/sh
echo "$*" | tr '\\n' ' ' >> "$HERE/calls"; echo >> "$HERE/calls"
case "$1 $2" in
  "image inspect") [ -e "$HERE/image" ] && cat "$HERE/image" ;;
  "run --rm") cat "$HERE/sites" ;;
  pull*) echo "Pulling from x"; echo sha256:1 > "$HERE/image" ;;
  *) exit 99 ;;
esac
"""


class Host:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "docker"
        self.program.write_text(DOCKER)
        self.program.chmod(0o755)
        self.environ = {"HERE": str(directory), "PATH": "/usr/bin:/bin"}
        (directory / "image").write_text("sha256:1\n")
        (directory / "sites").write_text(f"hello\nci-tasks-site:{SITE}\n\nci-tasks-site:{SITE}\nci-tasks-site:\n")
        self.run_dir = RunDir(str(directory / "home" / "runs" / "b" / "01"))
        write_files(self.run_dir)

    def run(self, *words: str) -> tuple[list[str], str]:
        """What is added to the run, and what the deviation says."""
        before = parse_run(["run", *words, "image", "true"])
        after, deviation = with_probe(before, self.run_dir, str(self.program), self.environ)
        assert render(after)[: len(words) + 1] == ["run", *words]
        assert after.command == before.command
        return [option.value or "" for option in after.options[len(before.options) :]], deviation.here

    def calls(self, word: str) -> int:
        return sum(line.startswith(word) for line in (self.directory / "calls").read_text().splitlines())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_both_files_and_the_evidence_are_mounted_and_an_image_is_asked_once(host: Host) -> None:
    for _ in range(2):
        added, here = host.run("--rm")
        assert added == [
            f"{host.run_dir.evidence}:{host.run_dir.evidence}",
            f"{host.run_dir.probe}/ci_tasks_probe.pth:{SITE}/ci_tasks_probe.pth:ro",
            f"{host.run_dir.probe}/ci_tasks_probe.py:{SITE}/ci_tasks_probe.py:ro",
        ]
        assert here == f"2 files in {SITE}"
    assert host.calls("run") == 1
    (host.directory / "image").write_text("sha256:2\n")
    host.run("--rm")
    assert host.calls("run") == 2


@pytest.mark.parametrize(
    "words",
    [
        ("-v", "/opt/packages:/usr/lib/python3"),
        ("-v", f"packages:{SITE}/"),
        ("-v", "/usr/lib:/usr/lib:ro"),
        ("-v", SITE),
        ("--mount", f"type=bind,src=/x,dst={SITE}"),
        ("--mount", "type=volume,source=x,target=/usr/lib"),
        ("--mount", "type=tmpfs,destination=/usr"),
        ("--tmpfs", f"{SITE}:rw"),
        ("--volumes-from", "other"),
    ],
)
def test_what_the_run_mounts_there_is_left_alone(host: Host, words: tuple[str, ...]) -> None:
    """It may be the host's own Python, and a file in it would stay there."""
    assert host.run(*words) == ([], "none in the container: the run mounts its own files there")


def test_mounts_elsewhere_are_no_obstacle(host: Host) -> None:
    assert len(host.run("-v", "/usr/lib/python3x:/usr/lib/python3x", "-v", "/a:/usr/li", "--tmpfs", "/tmp")[0]) == 3


def test_why_there_is_none_is_said(host: Host) -> None:
    (host.directory / "sites").write_text("")
    assert host.run() == ([], "none in the container: the image has no Python from 3.8 on")
    (host.directory / "image").unlink()
    assert host.run() == ([], "none in the container: the image could not be inspected")
    (host.directory / "image").write_text("sha256:3\n")
    (host.directory / "sites").unlink()
    assert host.run() == ([], "none in the container: the image could not be asked for its Pythons")


def test_what_an_image_prints_cannot_mount_anything_else() -> None:
    paths = ["relative", "/a:/etc:rw", "/a,b", "/usr/../etc", "", "/x y"]
    assert parse_sites("".join(f"ci-tasks-site:{path}\n" for path in paths)) == ("/etc", "/x y")
    assert len(parse_sites("".join(f"ci-tasks-site:/{n}\n" for n in range(100)))) == probe_mounts.MAX_DIRECTORIES


def test_an_image_is_pulled_where_the_run_would(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    program = str(host.program)
    always, never = (parse_run(["run", f"--pull={policy}", "image"]) for policy in ("always", "never"))
    missing = parse_run(["run", "--platform", "linux/amd64", "image"])
    assert [pulls(run, program, host.environ) for run in (always, never, missing)] == [True, False, False]
    (host.directory / "image").unlink()
    assert [pulls(run, program, host.environ) for run in (always, never, missing)] == [True, False, True]
    assert pull(missing, program, host.environ)
    assert capfd.readouterr() == ("", "Pulling from x\n"), "docker run prints it there too"
    assert host.calls("pull --platform linux/amd64 image") == 1
    assert render(without_pull(always)) == ["run", "--pull", "never", "image"]
