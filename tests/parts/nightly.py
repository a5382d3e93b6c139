"""Which tests of the long journeys run at every push: a sample of each file here, which the commit changes, and what is
marked `smoke`. All of them run in `nox -s nightly`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

SEED = os.environ.get("CI_TASKS_TEST_SEED", "0")  # `.ci/run` sets it to the commit
# File below tests → how many of its tests every push runs.
SAMPLES = {
    "agent/environments/test_sharing.py": 3,
    "agent/test_supervisor.py": 20,
    "agent/trees/test_idle_workspaces.py": 12,
    "checkout/test_journeys.py": 6,
    "checkout/test_travel.py": 20,
    "executors/remote/test_run_manager.py": 20,
    "features/difference/test_diff_command.py": 2,
    "features/failures/bisection/test_bisect_command.py": 1,
    "features/failures/hang/test_hang_command.py": 1,
    "features/failures/hang/test_planted_hangs.py": 1,
    "features/failures/repeats/test_repeat_command.py": 1,
    "features/failures/reproduction/test_reproduce_command.py": 2,
    "features/prefetch/test_download.py": 8,
    "features/prefetch/test_prefetch_hosts.py": 2,
    "features/prefetch/test_prefetch_story.py": 6,
    "features/setup/test_setup.py": 2,
    "features/verl/test_verl_command.py": 4,
    "integration/test_container_end.py": 4,
    "integration/test_container_label.py": 2,
    "integration/test_docker.py": 6,
    "integration/test_faults.py": 2,
    "integration/test_fleet.py": 1,
    "integration/test_hostile.py": 6,
    "integration/test_hung_daemon.py": 1,
    "integration/test_kept_connection.py": 3,
    "integration/test_killed_client.py": 2,
    "integration/test_labels.py": 3,
    "integration/test_looking.py": 1,
    "integration/test_remote.py": 4,
    "integration/test_remote_interrupts.py": 1,
    "integration/test_report_page.py": 1,
    "integration/test_retry.py": 2,
    "integration/test_secrets.py": 1,
    "integration/test_slurm.py": 2,
    "integration/test_ssh_link.py": 16,
    "run/test_interrupts.py": 4,
}


def mark_nightly(root: os.PathLike[str], items: Iterable[pytest.Item]) -> None:
    """Mark the tests of these files but the samples and the smoke tests. Each worker draws the same ones."""
    files: dict[str, list[pytest.Item]] = {name: [] for name in SAMPLES}
    for item in items:
        name = os.path.relpath(item.path, os.path.join(root, "tests"))
        if name in files and not item.get_closest_marker("smoke"):
            files[name].append(item)
    for name, tests in files.items():
        drawn = random.Random(f"{SEED} {name}").sample(tests, min(SAMPLES[name], len(tests)))
        for item in tests:
            if item not in drawn:
                item.add_marker(pytest.mark.nightly)
