"""The suite does not depend on what surrounds it: a checkout beside the clone, what a person's shell has set, a TMPDIR
with a space and an umlaut, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fixtures import ROOT, SAMPLE

COPIED = ("ci_tasks", "docs", "examples", "tests", "hosts.yaml", "noxfile.py", "pyproject.toml", "tasks.py")
SHELL = {"CI_TASKS_REPO": "/nowhere", "CI_TASKS_HOSTS": "/nowhere", "NO_COLOR": "1", "COLUMNS": "50", "GIT_DIR": "/no"}
# Of the files that run commands where they stand, or read what a terminal shows.
SELECTED = ["tests/cli/test_sessions.py", "tests/report/test_screens.py", "tests/executors/ssh/test_ssh_config.py"]
LABELS = "tests/integration/test_labels.py::test_"
SELECTED += [f"{LABELS}jobs_lists_every_row_with_the_fields_of_the_contract"]
SELECTED += [f"{LABELS}the_sample_is_used_where_there_is_no_checkout_and_says_so"]
OFFLINE = ["unshare", "--user", "--map-root-user", "--net"]


def test_a_part_of_it_passes_in_odd_surroundings(tmp_path: Path) -> None:
    clone, temporary = tmp_path / "clone", tmp_path / "odd änd temporary"
    for path in (clone, temporary):
        path.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, clone / name) if (ROOT / name).is_dir() else shutil.copy2(ROOT / name, clone)
    shutil.copytree(SAMPLE, tmp_path / "slime")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "slime", check=True)
    is_alone = subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTED]
    environ = {**os.environ, **SHELL, "TMPDIR": str(temporary), "PYTHONPATH": str(clone)}
    words = [*(OFFLINE if is_alone else []), *pytest]
    done = subprocess.run(words, cwd=clone, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
