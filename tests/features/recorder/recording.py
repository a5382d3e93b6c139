"""`record`, which records what a test that a test wrote launches, in the real sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.features.recorder import record as recorder
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.syntax import Recording

_HELPERS_FILE = "slime/utils/external_utils/command_utils.py"  # where tests import their helpers from


@pytest.fixture
def launch_helpers() -> Mapping[str, Sequence[str]]:
    """The functions by which tests launch, with their parameters. The tests of a feature give those of its suite."""
    return {
        "exec_command": ["cmd", "capture_output"],
        "execute_train": ["train_args", "num_gpus_per_node", "megatron_model_type", "before_ray_job_submit"],
    }


@pytest.fixture
def record(tmp_path: Path, launch_helpers: Mapping[str, Sequence[str]]) -> Callable[..., Recording]:
    """`record(source, *args, files={}, static=False, path=…, **env)`: what the test `source` launches, in the real
    sandbox, or a skip with the reason why there is none."""
    module = "import os, ray\n" + "".join(
        f"def {name}({', '.join(f'{parameter}=None' for parameter in parameters)}):\n    os.abort()\n"
        for name, parameters in launch_helpers.items()
    )

    def recorded(
        source: str,
        *args: str,
        files: Mapping[str, str] | None = None,
        static: bool = False,
        path: str = "tests/test_x.py",
        **env: str,
    ) -> Recording:
        if not static and recorder.unavailable_reason():
            pytest.skip(f"no sandbox here: {recorder.unavailable_reason()}")
        tree = {_HELPERS_FILE: module, path: source, **(files or {})}
        for name, text in tree.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return LaunchRecorder(launch_helpers, tree.get, None if static else tmp_path).record(path, args, env)

    return recorded
