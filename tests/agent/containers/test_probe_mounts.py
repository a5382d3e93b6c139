"""The probe in a container: mounts, and a PYTHONPATH that begins with it and goes on with the job's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.containers.docker_argv import parse_run, render
from ci_tasks.agent.containers.probe_mounts import pull, pulls, with_probe, without_pull
from ci_tasks.agent.probe.install import write_files
from ci_tasks.agent.records import ProbeOverlay
from ci_tasks.agent.run_directory import RunDir

DOCKER = """#!/bin/sh
echo "$*" >> "$HERE/calls"
case $1 in
image) exec cat "$HERE/image" ;;
pull) echo "Pulling from x"; exit 0 ;;
esac
"""
START = "/ci-tasks-probe/start"


class Host:
    def __init__(self, directory: Path) -> None:
        self.directory, self.program = directory, directory / "docker"
        self.program.write_text(DOCKER)
        self.program.chmod(0o755)
        self.environ = {"HERE": str(directory), "PATH": "/usr/bin:/bin"}
        (directory / "image").write_text("PATH=/bin\n")
        self.run_dir = RunDir(str(directory / "run"))
        write_files(self.run_dir)

    def run(self, variables: dict[str, str], overlays: tuple[ProbeOverlay, ...] = ()) -> tuple[list[str], str]:
        """What is added to the run, and what the deviation says."""
        before = parse_run(["run", "--rm", "image", "true"])
        program = str(self.program)
        after, deviation = with_probe(before, self.run_dir, program, self.environ, variables, overlays)
        assert (after.options[:1], after.command) == (before.options, before.command)
        return [option.value or "" for option in after.options[1:]], deviation.here


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


PATHS = [
    ("PATH=/bin\n", {}, START),
    ("PATH=/bin\nPYTHONPATH=/root/Megatron-LM\n", {}, f"{START}:/root/Megatron-LM"),
    ("PYTHONPATH=/of/the/image\n", {"PYTHONPATH": "/of/the/job"}, f"{START}:/of/the/job"),
    ("PYTHONPATH=/of/the/image\n", {"PYTHONPATH": ""}, START),
]


@pytest.mark.parametrize(("image", "variables", "path"), PATHS)
def test_the_probe_is_mounted_and_comes_first(host: Host, image: str, variables: dict[str, str], path: str) -> None:
    (host.directory / "image").write_text(image)
    added, here = host.run(variables, (ProbeOverlay("/w/sglang", ("sglang",), "/w"),))
    evidence, probe = host.run_dir.evidence, host.run_dir.probe
    assert added == [f"PYTHONPATH={path}", f"{evidence}:{evidence}", f"{probe}:/ci-tasks-probe:ro", "/w:/w"]
    assert here == f"PYTHONPATH={path}"


def test_an_image_that_cannot_be_inspected_has_no_probe_and_says_so(host: Host) -> None:
    (host.directory / "image").unlink()
    assert host.run({}) == ([], "none in the container: the image could not be inspected")


def test_an_image_is_pulled_where_the_run_would(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    program = str(host.program)
    always, never = (parse_run(["run", f"--pull={policy}", "image"]) for policy in ("always", "never"))
    missing = parse_run(["run", "--platform", "linux/amd64", "image"])
    assert [pulls(run, program, host.environ) for run in (always, never, missing)] == [True, False, False]
    (host.directory / "image").unlink()
    assert [pulls(run, program, host.environ) for run in (always, never, missing)] == [True, False, True]
    assert pull(missing, program, host.environ)
    assert capfd.readouterr()[1].endswith("Pulling from x\n"), "docker run prints it there too"
    assert "pull --platform linux/amd64 image" in (host.directory / "calls").read_text()
    assert render(without_pull(always)) == ["run", "--pull", "never", "image"]
