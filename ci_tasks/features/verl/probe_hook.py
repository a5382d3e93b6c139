"""The probe's hook for verl: notes from inside a training what its log does not say, or says in words that change.

It travels with the probe into every Python of the job, so it uses the standard library of Python 3.8 alone and imports
nothing of ours. Once one of MODULES has been imported, the functions that `_TABLE` names there are put behind a
wrapper that calls them first and then notes; a name that a revision does not have is noted as missing. What fails in a
note never reaches the job. The records' meaning: `ci_tasks.features.verl.judge.noted`.
"""

import functools
import os
import re
import sys
from collections import Counter
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

MAX_FILES = 500  # of a directory that are noted
MAX_METRICS = 200  # of a step

Emit = Callable[..., None]


class WrappedCall(NamedTuple):
    """A call of a function that was put behind a wrapper, and what came of it."""

    arguments: Tuple[Any, ...]
    keywords: Dict[str, Any]
    result: Any
    error: Optional[BaseException]

    def argument(self, name: str, place: int, default: Any = None) -> Any:
        return self.keywords.get(name, self.arguments[place] if len(self.arguments) > place else default)


# -- what is noted: of a call, with the word that _TABLE has for it ---------------------------------------------------


def note_config(emit: Emit, role: str, call: WrappedCall) -> None:
    """Of the configuration that a constructor got. The worker that has one engine is not told its role, and names its
    sections otherwise than the whole configuration that verl made them from."""
    config = _plain(call.argument("config", 1))
    config = config if isinstance(config, dict) else _fields(config)
    if role == "training_worker":
        role = "critic" if config.get("model_type") == "value_model" else role
        names = {"model_config": "model", "optimizer_config": "optim"}
        if getattr(config.get("engine_config"), "strategy", "") == "megatron":
            names["engine_config"] = "megatron"
        config = {names.get(key, key): value for key, value in config.items()}
    _emit_config(emit, role or str(call.argument("role", 2, "worker")), call.arguments[0], config)


def _emit_config(emit: Emit, role: str, owner: Any, config: Dict[str, Any]) -> None:
    """A line for each section, and one for the settings outside of sections."""
    single: Dict[str, Any] = {}
    for section, value in config.items():
        settings: Dict[str, Any] = {}
        _flatten(str(section), value, settings)
        if list(settings) == [str(section)]:
            single.update(settings)
        else:
            emit("config", role=role, owner=type(owner).__name__, section=str(section), settings=settings)
    if single:
        emit("config", role=role, owner=type(owner).__name__, section="", settings=single)


def note_model(emit: Emit, source: str, call: WrappedCall) -> None:
    """Of the models that a function returned: a list of chunks, a tuple with them, or one."""
    if call.error is not None:
        return
    first = call.arguments[0] if call.arguments else None
    provider = type(first).__name__ if hasattr(first, "provide") and hasattr(first, "finalize") else ""
    if provider:
        _emit_config(emit, "provider", first, {"provider": _fields(first)})
    for model in _models(call.result):
        emit("model", source=source, provider=provider, **_described(model))


def note_peft(emit: Emit, _name: str, call: WrappedCall) -> None:
    if call.error is None:
        emit("peft", method=type(call.arguments[0]).__name__)


def note_sizes(emit: Emit, _name: str, call: WrappedCall) -> None:
    state = sys.modules.get("megatron.core.parallel_state")
    if call.error is not None or state is None:
        return
    sizes: Dict[str, Any] = {}
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor", "data"):
        try:
            size = int(getattr(state, "get_" + name + "_parallel_world_size")())
        except Exception:
            size = None
        sizes[name.replace("_model", "")] = size
    emit("sizes", rank=_of_group("get_rank", "RANK", 0), world=_of_group("get_world_size", "WORLD_SIZE", 1), **sizes)


def note_metrics(emit: Emit, _name: str, call: WrappedCall) -> None:
    """Tracking.log(self, data, step, backend=None)."""
    values = {}
    for name, value in list(call.argument("data", 1).items())[:MAX_METRICS]:
        number = _metric(value)
        if number is not None:
            values[str(name)[:200]] = number
    emit("metrics", step=int(call.argument("step", 2)), values=values)


def note_saved(emit: Emit, what: str, call: WrappedCall) -> None:
    """Of a method that writes below a path."""
    step = call.keywords.get("global_step", call.argument("global_steps", 3))
    emit("saved", what=what, step=step if what == "checkpoint" and type(step) is int else None, **_at_path(call))


def note_loaded(emit: Emit, _name: str, call: WrappedCall) -> None:
    found = _at_path(call)
    if found["path"]:
        emit("loaded", **found)


_VERL, _BRIDGE = "verl.", "megatron.bridge."
_MANAGER = _VERL + "utils.checkpoint.megatron_checkpoint_manager"
_CONVERSION = _BRIDGE + "models.conversion.auto_bridge"
_SERVERS, _PROVIDE = _VERL + "workers.rollout.", "provide_distributed_model"
# Module, name in it (one with a dot is a method), what to note, a word for it.
_TABLE: Tuple[Tuple[str, str, Callable[[Emit, str, WrappedCall], None], str], ...] = (
    (_VERL + "trainer.ppo.ray_trainer", "RayPPOTrainer.__init__", note_config, "trainer"),
    (_VERL + "trainer.ppo.v1.trainer_base", "PPOTrainer.__init__", note_config, "trainer"),
    (_VERL + "workers.megatron_workers", "ActorRolloutRefWorker.__init__", note_config, ""),
    (_VERL + "workers.megatron_workers", "CriticWorker.__init__", note_config, "critic"),
    (_VERL + "workers.engine_workers", "ActorRolloutRefWorker.__init__", note_config, ""),
    (_VERL + "workers.engine_workers", "TrainingWorker.__init__", note_config, "training_worker"),
    # The class that serves; with Ray's decorator on it, in old releases, there is none that could be hooked.
    (_SERVERS + "vllm_rollout.vllm_async_server", "vLLMHttpServerBase.__init__", note_config, "rollout_server"),
    (_SERVERS + "vllm_rollout.vllm_async_server", "vLLMHttpServer.__init__", note_config, "rollout_server"),
    (_SERVERS + "sglang_rollout.async_sglang_server", "SGLangHttpServer.__init__", note_config, "rollout_server"),
    (_VERL + "experimental.reward_loop.reward_loop", "RewardLoopWorker.__init__", note_config, "reward"),
    (_VERL + "utils.tracking", "Tracking.log", note_metrics, ""),
    (_MANAGER, "MegatronCheckpointManager.save_checkpoint", note_saved, "checkpoint"),
    (_MANAGER, "MegatronCheckpointManager.load_checkpoint", note_loaded, ""),
    (_VERL + "utils.megatron_peft_utils", "save_adapter_checkpoint", note_saved, "adapter"),
    (_VERL + "utils.megatron_utils", "make_megatron_module", note_model, "make_megatron_module"),
    (_BRIDGE + "models.model_provider", "ModelProviderMixin." + _PROVIDE, note_model, _PROVIDE),
    (_BRIDGE + "peft.base", "PEFT.__call__", note_peft, ""),
    (_CONVERSION, "AutoBridge.save_hf_pretrained", note_saved, "hf"),
    (_CONVERSION, "AutoBridge.save_hf_weights", note_saved, "hf"),
    (_CONVERSION, "AutoBridge.save_hf_adapter", note_saved, "adapter"),
    ("megatron.core.parallel_state", "initialize_model_parallel", note_sizes, ""),
)
MODULES = tuple(dict.fromkeys(row[0] for row in _TABLE))


def names_by_module() -> Dict[str, Dict[str, str]]:
    """Module → name in it → the kind of record that it gives."""
    return {module: {row[1]: row[2].__name__[5:] for row in _TABLE if row[0] == module} for module in MODULES}


def after_import(module: Any, emit: Emit) -> None:
    found: List[str] = []
    missing: List[str] = []
    for _, name, note, word in (row for row in _TABLE if row[0] == module.__name__):
        owner, _, attribute = name.rpartition(".")
        place = getattr(module, owner, None) if owner else module
        function = vars(place).get(attribute) if place is not None else None
        if not callable(function):
            missing.append(name)
            continue
        setattr(place, attribute, _behind(function, functools.partial(note, emit, word), emit))
        found.append(name)
    emit("hooked", module=module.__name__, found=found, missing=missing)


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


def _plain(config: Any) -> Any:
    """OmegaConf's as dicts and lists, a dataclass as a dict. A value of OmegaConf's that refers to what is not there
    remains as it is written."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_config(config):
        return _fields(config) if hasattr(type(config), "__dataclass_fields__") else config
    try:
        return omegaconf.OmegaConf.to_container(config, resolve=True)
    except Exception:
        return omegaconf.OmegaConf.to_container(config, resolve=False)


def _fields(value: Any) -> Dict[str, Any]:
    return {name: item for name, item in vars(value).items() if not name.startswith("_")}


def _flatten(name: str, value: Any, settings: Dict[str, Any], depth: int = 0) -> None:
    value = _plain(value)
    if isinstance(value, dict) and depth < 12:
        for key, item in value.items():
            _flatten(name + "." + str(key), item, settings, depth + 1)
        if not value:
            settings[name] = {}
    elif isinstance(value, (list, tuple)):
        settings[name] = [_simple(item) for item in value]
    else:
        settings[name] = _simple(value)


def _simple(value: Any) -> Any:
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)[:500]


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
    # Those of Hugging Face's peft are called Linear; a base of theirs is LoraLayer.
    bases = [(type(part).__name__, " ".join(base.__name__ for base in type(part).__mro__)) for part in model.modules()]
    return {
        "wrappers": wrappers,
        "model": type(inner).__name__,
        "parameters": sum(count for count, _ in counts),
        "trainable": sum(count for count, is_trained in counts if is_trained),
        "adapters": Counter(name for name, names in bases if re.search("lora|dora|adapter", names.lower())),
    }


def _metric(value: Any) -> Any:
    """As a number; None for what is none, such as a table."""
    if isinstance(value, (bool, str)):
        return None
    try:
        number = float(value)
    except Exception:
        return None
    if number != number or abs(number) == float("inf"):
        return str(number)
    return float(format(number, ".8g"))


def _at_path(call: WrappedCall) -> Dict[str, Any]:
    """The path that a call was given: a keyword, or the first of the next arguments that is one, since AutoBridge's
    methods take the model first. With its files, their sizes, and how the call ended."""
    given = [call.keywords[name] for name in ("local_path", "checkpoint_path", "path") if name in call.keywords]
    given += [value for value in call.arguments[1:3] if isinstance(value, (str, os.PathLike))]
    path, files = str(given[0] or "") if given else "", {}  # type: Tuple[str, Dict[str, int]]
    every = sorted(os.path.join(directory, name) for directory, _, names in os.walk(path) for name in names)
    for name in every[:MAX_FILES]:
        with suppress(OSError):
            files[os.path.relpath(name, path)] = os.path.getsize(name)
    error = "" if call.error is None else type(call.error).__name__ + ": " + str(call.error)[:500]
    rank = os.environ.get("RANK", "")
    return {"path": path, "rank": int(rank) if rank.isdigit() else None, "files": files, "error": error}


def _of_group(getter: str, variable: str, default: int) -> int:
    """What torch's process group says, else the environment."""
    torch = sys.modules.get("torch")
    try:
        return int(getattr(torch.distributed, getter)()) if torch is not None else int(os.environ[variable])
    except Exception:
        return default
