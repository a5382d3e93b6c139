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
    "agent/containers/test_run_containers.py": 12,
    "agent/environments/test_sharing.py": 2,
    "agent/probe/test_payload.py": 10,
    "agent/serving/test_serve.py": 3,
    "agent/slurm/test_batch.py": 12,
    "agent/test_archive.py": 50,
    "agent/test_main.py": 8,
    "agent/test_own_files.py": 5,
    "agent/test_supervisor.py": 12,
    "agent/trees/test_store.py": 25,
    "agent/trees/test_workspaces.py": 32,
    "checkout/test_commits.py": 9,
    "checkout/test_conversions.py": 7,
    "checkout/test_journeys.py": 4,
    "checkout/test_overlays.py": 7,
    "checkout/test_trees.py": 25,
    "cli/test_completion.py": 20,
    "cli/test_program.py": 20,
    "examples/test_tiny_verl.py": 14,
    "features/ci_logs/parse/test_hostile.py": 30,
    "features/coverage/test_collect.py": 3,
    "features/difference/test_diff_command.py": 1,
    "features/failures/bisection/test_bisect.py": 15,
    "features/failures/bisection/test_bisect_command.py": 1,
    "features/failures/comparison/test_compare.py": 5,
    "features/failures/hang/test_hang_command.py": 1,
    "features/failures/hang/test_planted_hangs.py": 1,
    "features/failures/repeats/test_repeat_command.py": 1,
    "features/failures/reproduction/test_reproduce_command.py": 1,
    "features/lint/test_command.py": 4,
    "features/mcp/test_mcp.py": 4,
    "features/prefetch/test_detection.py": 14,
    "features/prefetch/test_download.py": 4,
    "features/prefetch/test_prefetch_hosts.py": 1,
    "features/prefetch/test_prefetch_story.py": 4,
    "features/recorder/test_sandbox.py": 11,
    "features/setup/test_setup.py": 2,
    "features/verl/test_verl_command.py": 2,
    "hosts/test_local_executor.py": 6,
    "hosts/test_mux.py": 9,
    "hosts/test_pull_images.py": 5,
    "hosts/test_run_manager.py": 12,
    "integration/test_container_end.py": 3,
    "integration/test_container_label.py": 1,
    "integration/test_docker.py": 4,
    "integration/test_faults.py": 1,
    "integration/test_fleet.py": 1,
    "integration/test_hostile.py": 4,
    "integration/test_hostile_host.py": 9,
    "integration/test_hung_daemon.py": 1,
    "integration/test_kept_connection.py": 2,
    "integration/test_killed_client.py": 1,
    "integration/test_labels.py": 2,
    "integration/test_looking.py": 1,
    "integration/test_probe.py": 2,
    "integration/test_remote.py": 2,
    "integration/test_remote_interrupts.py": 1,
    "integration/test_report_page.py": 1,
    "integration/test_retry.py": 1,
    "integration/test_secrets.py": 1,
    "integration/test_slurm.py": 1,
    "integration/test_ssh_link.py": 10,
    "run/test_execute.py": 20,
    "run/test_interrupts.py": 4,
    "run/test_job_outputs.py": 5,
    "test_docs_run.py": 25,
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
