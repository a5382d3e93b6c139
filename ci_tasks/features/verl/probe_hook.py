"""The probe's hook for verl: notes from inside a training what its log does not say, or says in words that change.

It travels with the probe into every Python of the job, so it uses the standard library of Python 3.8 alone and imports
nothing of ours. Once one of MODULES has been imported, the functions that `TABLE` names there are put behind a wrapper
that calls them first and then notes; which of them a revision has is noted too. What fails in a note never reaches the
job. The records' meaning: `ci_tasks.features.verl.judge.training_run`.
"""

import functools
import os
import re
import sys
from collections import Counter
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

MAX_FILES = 500  # of a directory that are noted

Emit = Callable[..., None]


class WrappedCall(NamedTuple):
    """A call of a function that was put behind a wrapper, and what came of it."""

    arguments: Tuple[Any, ...]
    keywords: Dict[str, Any]
    result: Any
    error: Optional[BaseException]


# -- what is noted of a call -----------------------------------------------------------------------------------------


def note_model(emit: Emit, call: WrappedCall) -> None:
    """Of the models that a function returned: a list of chunks, a tuple with them, or one."""
    first = call.arguments[0] if call.arguments else None
    is_provider = hasattr(first, "provide") and hasattr(first, "finalize")
    layers = getattr(first, "num_layers", 0) if is_provider else 0
    for model in _models(call.result):
        provider = type(first).__name__ if is_provider else ""
        emit("model", provider=provider, layers=layers if type(layers) is int else 0, **_described(model))


def note_sizes(emit: Emit, call: WrappedCall) -> None:
    state = sys.modules.get("megatron.core.parallel_state")
    sizes: Dict[str, Any] = {}
    for name in ("tensor_model", "pipeline_model", "context", "expert_model"):
        with suppress(Exception):
            sizes[name.replace("_model", "")] = int(getattr(state, "get_" + name + "_parallel_world_size")())
    if call.error is None:
        emit("sizes", **sizes)


def note_saved(emit: Emit, call: WrappedCall) -> None:
    emit("saved", **_at_path(call))


def note_loaded(emit: Emit, call: WrappedCall) -> None:
    found = _at_path(call)
    if found["path"]:
        emit("loaded", **found)


_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"
# Module, name in it (one with a dot is a method), what to note.
TABLE: Tuple[Tuple[str, str, Callable[[Emit, WrappedCall], None]], ...] = (
    (_MANAGER, "MegatronCheckpointManager.save_checkpoint", note_saved),
    (_MANAGER, "MegatronCheckpointManager.load_checkpoint", note_loaded),
    ("verl.utils.megatron_utils", "make_megatron_module", note_model),
    ("megatron.bridge.models.model_provider", "ModelProviderMixin.provide_distributed_model", note_model),
    ("megatron.core.parallel_state", "initialize_model_parallel", note_sizes),
)
MODULES = tuple(dict.fromkeys(row[0] for row in TABLE))


def after_import(module: Any, emit: Emit) -> None:
    found: List[str] = []
    for _, name, note in (row for row in TABLE if row[0] == module.__name__):
        owner, _, attribute = name.rpartition(".")
        place = getattr(module, owner, None) if owner else module
        function = vars(place).get(attribute) if place is not None else None
        if callable(function):
            setattr(place, attribute, _behind(function, functools.partial(note, emit), emit))
            found.append(name)
    emit("hooked", module=module.__name__, found=found)


def _behind(function: Callable[..., Any], note: Callable[[WrappedCall], None], emit: Emit) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result: Any = None
        error: Optional[BaseException] = None
        try:
            result = function(*arguments, **keywords)
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                note(WrappedCall(arguments, keywords, result, error))
            except Exception as failure:
                emit("failure", value=functools.partial(_raise, failure))

    return call


def _raise(failure: Exception) -> None:
    """The value of a note that cannot be had: the probe notes what it raises as the hook's own failure."""
    raise failure


# -- values ------------------------------------------------------------------------------------------------------------


def _models(result: Any) -> List[Any]:
    if isinstance(result, (list, tuple)):
        return [model for item in result for model in _models(item)]
    return [result] if hasattr(result, "named_parameters") else []


def _described(model: Any) -> Dict[str, Any]:
    wrappers: List[str] = []
    inner = model
    while len(wrappers) < 10 and hasattr(inner, "module") and hasattr(inner.module, "named_parameters"):
        wrappers.append(type(inner).__name__)
        inner = inner.module
    counts = [(int(parameter.numel()), parameter.requires_grad) for parameter in model.parameters()]
    # The classes of Hugging Face's peft are called Linear; their base is LoraLayer.
    bases = [(type(part).__name__, " ".join(base.__name__ for base in type(part).__mro__)) for part in model.modules()]
    return {
        "wrappers": wrappers,
        "model": type(inner).__name__,
        "parameters": sum(count for count, _ in counts),
        "trainable": sum(count for count, is_trained in counts if is_trained),
        "adapters": Counter(name for name, names in bases if re.search("lora|dora|adapter", names.lower())),
    }


def _at_path(call: WrappedCall) -> Dict[str, Any]:
    """The path that a call was given, with its files, their sizes, and how the call ended."""
    given = call.keywords.get("local_path", call.arguments[1] if len(call.arguments) > 1 else "")
    path, files = str(given or ""), {}  # type: Tuple[str, Dict[str, int]]
    every = sorted(os.path.join(directory, name) for directory, _, names in os.walk(path) for name in names)
    for name in every[:MAX_FILES]:
        with suppress(OSError):
            files[os.path.relpath(name, path)] = os.path.getsize(name)
    error = "" if call.error is None else type(call.error).__name__ + ": " + str(call.error)[:500]
    return {"path": path, "files": files, "error": error}
