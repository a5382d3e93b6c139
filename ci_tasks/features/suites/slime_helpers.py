"""slime's own interface to its tests: the helpers that every test calls, under whatever name the module is imported.

Nothing else about it is written down here. Everything else is recorded from the test. A helper's body does not run:
what it does is what its name says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci_tasks.features.recorder.syntax import LaunchCall, commands_in

# Helper → the names of its parameters, in order.
HELPERS: Mapping[str, Sequence[str]] = {
    "exec_command": ["cmd", "capture_output"],
    "hf_download_dataset": ["full_name"],
    "convert_checkpoint": [
        *("model_name", "megatron_model_type", "num_gpus_per_node", "multinode", "extra_args", "dir_dst"),
        "hf_checkpoint",
    ],
    "rsync_simple": ["path_src", "path_dst"],
    "fp8_cast_bf16": ["path_src", "path_dst"],
    "execute_train": [
        *("train_args", "num_gpus_per_node", "megatron_model_type", "train_script", "before_ray_job_submit"),
        *("extra_env_vars", "config"),
    ],
}
# The place of a dataset, if the test does not say it.
DATASETS = "/root/datasets"


def commands_of(call: LaunchCall) -> list[list[str]]:
    """The words of each command that the call starts through `exec_command` or the standard library; [] for others."""
    return commands_in(call.kwargs.get("cmd")) if call.function == "exec_command" else call.commands
