"""The probe in a whole run: from the row's venv to the file that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.evidence import parse_lines
from ci_tasks.agent.records import ProbeOverlay, ProbeRules
from tests.fixtures import LINKS, PIP
from tests.integration.container_box import Box
from tests.parts.dockerd import PYTHON_IMAGE, Daemon, docker, image_tar

PROGRAM = """\
import threading
from tiny_slime import metrics
thread = threading.Thread(target=lambda: {}["no such key"])
thread.start()
thread.join()
raise ValueError("the reason")
"""


def test_a_row_that_fails_leaves_what_its_processes_noted(person: Any) -> None:
    person.edit(".github/workflows/pr-test.yml", LINKS, PIP)
    person.write("tests/test_tiny_ckpt.py", PROGRAM)
    [record] = person.ci_tasks("remote", "--host", "sim", "ckpt", "--only", "async-save", "--json").json["runs"]
    assert record["status"] == "failed"
    assert "probe" in [deviation["what"] for deviation in record["deviations"]]
    summary, environment = record["probe"], record["environment"]
    assert (summary["processes"], summary["not_seen"]) == (summary["counted"], [])
    assert "ValueError: the reason (test_tiny_ckpt.py:6 in <module>)" in summary["exceptions"][1]
    assert environment["interpreter"].endswith("/tmp/venv/bin/python")
    assert environment["packages"]["tiny-slime"], "the row's install step put it into the row's own venv"
    run = Path(person.home, "runs", *record["id"].split("."))
    assert not (run / "evidence").exists()
    evidence = parse_lines((run / "evidence.jsonl").read_text())
    test = evidence.processes[-1]
    assert test.argv[1] == "tests/test_tiny_ckpt.py" and test.end == "exit"
    assert test.parent in [process.key for process in evidence.processes], "the lock script"
    failures = [(failure.where, failure.chain[0].type) for failure in test.exceptions]
    assert failures == [("thread", "builtins.KeyError"), ("main", "builtins.ValueError")]
    origins = {module.name: module.origin for module in test.imports}
    assert origins["tiny_slime"].endswith("/workspace/tiny_slime/__init__.py")


# -- containers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python_image(docker_daemon: Daemon) -> str:
    """An image that has the Python of these tests."""
    docker(docker_daemon.host, "import", "-", PYTHON_IMAGE, stdin=image_tar(python=True))
    return PYTHON_IMAGE


@pytest.fixture
def box(tmp_path: Path, docker_daemon: Daemon) -> Box:
    docker_daemon.reset()
    return Box(tmp_path / "home", docker_daemon)


def container_deviation(box: Box) -> str:
    [call] = box.json("docker.json")["calls"]
    return next(str(deviation["here"]) for deviation in call["deviations"] if deviation["what"] == "probe")


def test_an_overlay_lies_over_a_package_of_the_image(box: Box, python_image: str, tmp_path: Path) -> None:
    """Whatever the job's own PYTHONPATH says, once a Python of the image has run without it."""
    (tmp_path / "tree/colorsys").mkdir(parents=True)
    (tmp_path / "tree/colorsys/__init__.py").write_text("V = 'overlay'")
    overlay = ProbeOverlay(str(tmp_path / "tree"), ("colorsys",), str(tmp_path / "tree"))
    inside = """/usr/bin/python3 -c pass
env -i PYTHONPATH=/nowhere /usr/bin/python3 -c 'import colorsys; print(colorsys.V)'"""
    box.write(inside, image=python_image, probe=ProbeRules(("colorsys",), overlays=(overlay,)))
    box.start()
    assert box.ended().exit_code == 0 and "overlay" in box.log()
    *_, process = parse_lines(Path(box.run.evidence_file).read_text()).processes
    assert {module.origin for module in process.imports} == {str(tmp_path / "tree/colorsys/__init__.py")}


def test_the_pythons_of_an_image_have_the_probe(box: Box, python_image: str) -> None:
    """Also for another user, in a container whose own files cannot be written."""
    inside = "/usr/bin/python3 -c 'import json; raise ValueError(1)'; echo ended with $?"
    box.write(inside, "--read-only", "--user", "1000:1000", image=python_image, probe=ProbeRules())
    box.start()
    status = box.ended()
    assert (status.exit_code, status.left) == (0, ())
    assert "ended with 1" in box.log() and "ci_tasks_probe" not in box.log()
    [process] = parse_lines(Path(box.run.evidence_file).read_text()).processes
    assert (process.pid < 100, process.end) == (True, "exit"), "the container's own pids"
    assert [failure.chain[0].type for failure in process.exceptions] == ["builtins.ValueError"]
    assert container_deviation(box) == "PYTHONPATH=/ci-tasks-probe/start"
    assert not Path(box.run.evidence).exists()
    box.is_gone()


def test_a_venv_that_the_job_makes_in_its_container_is_reached(box: Box, python_image: str) -> None:
    inside = """version=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
mkdir -p /tmp/late/bin /tmp/late/lib/$version/site-packages && ln -s /usr/bin/python3 /tmp/late/bin/python
echo home = /usr/bin > /tmp/late/pyvenv.cfg  # the image has no venv module
/tmp/late/bin/python -c pass
PYTHONPATH=/nowhere /tmp/late/bin/python -c 'raise KeyError(1)'"""
    box.write(inside, image=python_image, probe=ProbeRules())
    box.start()
    assert box.ended().exit_code == 1
    processes = parse_lines(Path(box.run.evidence_file).read_text()).processes
    assert [process.executable for process in processes if process.exceptions] == ["/tmp/late/bin/python"]
