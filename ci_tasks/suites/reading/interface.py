"""slime's own interface to its tests: the helpers that every test calls, under whatever name the module is imported.

This is all that is written down here of it. Everything else is read from the test. A helper's body is not read: what it
does is what its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.values import Call, Partly, Text, Unresolved

# Helper → the names of its parameters, in order.
HELPERS: Mapping[str, tuple[str, ...]] = {
    "exec_command": ("cmd", "capture_output"),
    "hf_download_dataset": ("full_name",),
    "convert_checkpoint": (
        *("model_name", "megatron_model_type", "num_gpus_per_node", "multinode", "extra_args", "dir_dst"),
        "hf_checkpoint",
    ),
    "rsync_simple": ("path_src", "path_dst"),
    "fp8_cast_bf16": ("path_src", "path_dst"),
    "execute_train": (
        *("train_args", "num_gpus_per_node", "megatron_model_type", "train_script", "before_ray_job_submit"),
        *("extra_env_vars", "config"),
    ),
}
# Where a converted model and a dataset lie, where the test does not say it.
CONVERTED = "/root"
MODELS = "/root/models"
DATASETS = "/root/datasets"

_TRUE, _FALSE = ("true", "1"), ("false", "0")
# What starts a program and waits, or does not, in the standard library.
_STARTERS = {
    *("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "subprocess.Popen"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
}


def is_slimes(target: str) -> bool:
    """Whether a function is of slime's module of helpers. One of the same name elsewhere may do something else: it is
    read, where the checkout has it."""
    return "command_utils" in target.split(".")


def helper_of(call: Call) -> str | None:
    """Which of slime's helpers it is, if any."""
    name = call.name.rpartition(".")[2]
    return name if name in HELPERS else None


def named(call: Call) -> dict[str, Any]:
    """A helper's arguments by the names of its parameters; those that are left to their default are not there."""
    parameters = HELPERS.get(call.name.rpartition(".")[2], ())
    return {**dict(zip(parameters, call.args, strict=False)), **call.kwargs}


def commands_of(call: Call) -> list[list[Text]]:
    """The words of each command that the call starts through `exec_command` or the standard library; [] for others.

    A word that is not known at all is a `Partly` of one hole.
    """
    if helper_of(call) == "exec_command":
        command = named(call).get("cmd")
    elif call.target in _STARTERS:
        command = call.args[0] if call.args else call.kwargs.get("args", call.kwargs.get("cmd"))
    else:
        return []
    if isinstance(command, str | Partly):
        return texts.commands(command)
    if isinstance(command, list | tuple):
        return [[_word(item) for item in command]]
    return []


def _word(item: Any) -> Text:
    if isinstance(item, str | Partly):
        return item
    return Partly((item,)) if isinstance(item, Unresolved) else str(item)


def _bool_env(environ: Mapping[str, Any], name: Any, default: Any = "false") -> Any:
    value = environ.get(name, default) if isinstance(name, str) else None
    if not isinstance(value, str):
        return None
    return value.lower() in _TRUE


def _infinite(environ: Mapping[str, Any]) -> Any:
    return _bool_env(environ, "SLIME_TEST_ENABLE_INFINITE_RUN")


def _no_text(environ: Mapping[str, Any], *_: Any, **__: Any) -> Any:
    return ""


# Helpers that give a value: from the environment, or flags of experiment tracking, which are of no interest to a
# reader. None where they cannot say it.
VALUES: Mapping[str, Callable[..., Any]] = {
    "get_bool_env_var": _bool_env,
    "get_env_enable_infinite_run": _infinite,
    "get_default_wandb_args": _no_text,
}
