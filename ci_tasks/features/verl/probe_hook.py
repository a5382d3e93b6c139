"""The probe's hook for verl: notes from inside a training what its log does not say, or says in words that change.

It travels with the probe into every Python of the job, so it uses the standard library of Python 3.8 alone and imports
nothing of ours. Once one of MODULES has been imported, the functions that `_WANTED` names there are put behind a
wrapper that calls them first and then notes; a name that a revision does not have is noted as missing. What fails in a
note never reaches the job. The records' meaning: `ci_tasks.features.verl.judge.noted`.
"""

import functools
import os
import sys
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


# -- what is noted: of a call, with the word that _WANTED has for it ---------------------------------------------------


def note_config(emit: Emit, role: str, call: WrappedCall) -> None:
    """Of the configuration that a constructor got."""
    name = role or str(call.argument("role", 2, "worker"))
    _emit_config(emit, name, call.arguments[0], _as_mapping(call.argument("config", 1)))


def note_training_worker(emit: Emit, _role: str, call: WrappedCall) -> None:
    """Of the worker that has one engine: its configuration does not name the role that this is for."""
    config = call.argument("config", 1)
    role = "critic" if getattr(config, "model_type", "") == "value_model" else "training_worker"
    # Named as in the section of the whole configuration that verl made them from.
    sections = {"model_config": "model", "optimizer_config": "optim"}
    if getattr(getattr(config, "engine_config", None), "strategy", "") == "megatron":
        sections["engine_config"] = "megatron"
    _emit_config(emit, role, call.arguments[0], {sections.get(key, key): v for key, v in _as_mapping(config).items()})


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


def note_models(emit: Emit, source: str, call: WrappedCall) -> None:
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

    def size(name: str) -> Optional[int]:
        try:
            return int(getattr(state, "get_" + name + "_world_size")())
        except Exception:
            return None

    emit(
        "sizes",
        rank=_of_group("get_rank", "RANK", 0),
        world=_of_group("get_world_size", "WORLD_SIZE", 1),
        tensor=size("tensor_model_parallel"),
        pipeline=size("pipeline_model_parallel"),
        context=size("context_parallel"),
        expert=size("expert_model_parallel"),
        expert_tensor=size("expert_tensor_parallel"),
        data=size("data_parallel"),
    )


def note_metrics(emit: Emit, _name: str, call: WrappedCall) -> None:
    """Tracking.log(self, data, step, backend=None)."""
    values = {}
    for name, value in list(call.argument("data", 1).items())[:MAX_METRICS]:
        number = _metric(value)
        if number is not None:
            values[str(name)[:200]] = number
    emit("metrics", step=int(call.argument("step", 2)), values=values)


def note_saved(emit: Emit, what: str, call: WrappedCall) -> None:
    """Of a method that writes below a path: its second argument, whatever its name is there."""
    path = _path(call)
    step = call.keywords.get("global_step", call.argument("global_steps", 3))
    step = step if what == "checkpoint" and type(step) is int else None
    emit("saved", what=what, path=path, step=step, rank=_rank(), files=_files(path), error=_said(call.error))


def note_loaded(emit: Emit, _name: str, call: WrappedCall) -> None:
    path = _path(call)
    if path:
        emit("loaded", path=path, rank=_rank(), files=_files(path), error=_said(call.error))


# Module → (name in it, what to note, a word for it). A name with a dot is a method.
_WANTED: Dict[str, List[Tuple[str, Callable[[Emit, str, WrappedCall], None], str]]] = {
    "verl.trainer.ppo.ray_trainer": [("RayPPOTrainer.__init__", note_config, "trainer")],
    "verl.trainer.ppo.v1.trainer_base": [("PPOTrainer.__init__", note_config, "trainer")],
    "verl.trainer.sft_trainer": [("SFTTrainer.__init__", note_config, "sft")],
    "verl.workers.megatron_workers": [
        ("ActorRolloutRefWorker.__init__", note_config, ""),
        ("CriticWorker.__init__", note_config, "critic"),
        ("RewardModelWorker.__init__", note_config, "reward_model"),
    ],
    "verl.workers.fsdp_workers": [
        ("ActorRolloutRefWorker.__init__", note_config, ""),
        ("CriticWorker.__init__", note_config, "critic"),
        ("RewardModelWorker.__init__", note_config, "reward_model"),
    ],
    "verl.workers.engine_workers": [
        ("ActorRolloutRefWorker.__init__", note_config, ""),
        ("TrainingWorker.__init__", note_training_worker, ""),
    ],
    # The class that serves; with Ray's decorator on it, in old releases, there is none that could be hooked.
    "verl.workers.rollout.vllm_rollout.vllm_async_server": [
        ("vLLMHttpServerBase.__init__", note_config, "rollout_server"),
        ("vLLMHttpServer.__init__", note_config, "rollout_server"),
    ],
    "verl.workers.rollout.sglang_rollout.async_sglang_server": [
        ("SGLangHttpServer.__init__", note_config, "rollout_server")
    ],
    "verl.experimental.reward_loop.reward_loop": [("RewardLoopWorker.__init__", note_config, "reward")],
    "verl.utils.tracking": [("Tracking.log", note_metrics, "")],
    "verl.utils.checkpoint.megatron_checkpoint_manager": [
        ("MegatronCheckpointManager.save_checkpoint", note_saved, "checkpoint"),
        ("MegatronCheckpointManager.load_checkpoint", note_loaded, ""),
    ],
    "verl.utils.checkpoint.fsdp_checkpoint_manager": [
        ("FSDPCheckpointManager.save_checkpoint", note_saved, "checkpoint"),
        ("FSDPCheckpointManager.load_checkpoint", note_loaded, ""),
    ],
    "verl.utils.megatron_peft_utils": [("save_adapter_checkpoint", note_saved, "adapter")],
    "verl.utils.megatron_utils": [("make_megatron_module", note_models, "make_megatron_module")],
    "verl.workers.engine.fsdp.transformer_impl": [("FSDPEngine._build_fsdp_module", note_models, "fsdp")],
    "megatron.bridge.models.model_provider": [
        ("ModelProviderMixin.provide_distributed_model", note_models, "provide_distributed_model")
    ],
    "megatron.bridge.peft.base": [("PEFT.__call__", note_peft, "")],
    "megatron.bridge.models.conversion.auto_bridge": [
        ("AutoBridge.save_hf_pretrained", note_saved, "hf"),
        ("AutoBridge.save_hf_weights", note_saved, "hf"),
        ("AutoBridge.save_hf_adapter", note_saved, "adapter"),
    ],
    "megatron.core.parallel_state": [("initialize_model_parallel", note_sizes, "")],
}

MODULES = tuple(_WANTED)
KINDS = ("hooked", "config", "model", "peft", "sizes", "metrics", "saved", "loaded")


def names_by_module() -> Dict[str, Dict[str, str]]:
    """Module → name in it → the kind of record that it gives."""
    kind = {"models": "model", "training_worker": "config"}
    return {
        module: {name: kind.get(note.__name__[5:], note.__name__[5:]) for name, note, _ in wanted}
        for module, wanted in _WANTED.items()
    }


def after_import(module: Any, emit: Emit) -> None:
    found: List[str] = []
    missing: List[str] = []
    for name, note, word in _WANTED[module.__name__]:
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
                _emit_failure(emit, failure)

    return call


def _emit_failure(emit: Emit, failure: Exception) -> None:
    """As a value that cannot be had: the probe notes what that raises as the hook's own failure."""

    def value() -> None:
        raise failure

    emit("failure", value=value)


# -- values ------------------------------------------------------------------------------------------------------------


def _as_mapping(config: Any) -> Dict[str, Any]:
    """OmegaConf's, a dataclass or a dict, as dicts and lists."""
    config = _plain(config)
    return config if isinstance(config, dict) else _fields(config)


def _plain(config: Any) -> Any:
    """OmegaConf's as dicts and lists; a value that refers to what is not there remains as it is written."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_config(config):
        return config
    try:
        return omegaconf.OmegaConf.to_container(config, resolve=True)
    except Exception:
        return omegaconf.OmegaConf.to_container(config, resolve=False)


def _fields(value: Any) -> Dict[str, Any]:
    return {name: item for name, item in vars(value).items() if not name.startswith("_")}


def _flatten(name: str, value: Any, settings: Dict[str, Any], depth: int = 0) -> None:
    value = _plain(value)
    if hasattr(type(value), "__dataclass_fields__"):
        value = _fields(value)
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
    if isinstance(value, (int, float, bool, type(None))):
        return value
    try:
        return str(value)[:500]
    except Exception:
        return "<" + type(value).__name__ + ">"


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
    parameters = trainable = 0
    for parameter in model.parameters():
        count = int(parameter.numel())
        parameters += count
        trainable += count if parameter.requires_grad else 0
    adapters: Dict[str, int] = {}
    for part in model.modules():
        name = type(part).__name__
        # Those of Hugging Face's peft are called Linear; a base of theirs is LoraLayer.
        if any(word in base.__name__.lower() for base in type(part).__mro__ for word in ("lora", "dora", "adapter")):
            adapters[name] = adapters.get(name, 0) + 1
    return {
        "wrappers": wrappers,
        "model": type(inner).__name__,
        "parameters": parameters,
        "trainable": trainable,
        "adapters": adapters,
    }


def _metric(value: Any) -> Any:
    """As a number; None for what is none, such as a table."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        number = float(value)
    except Exception:
        return None
    if number != number or abs(number) == float("inf"):
        return str(number)
    return float(format(number, ".8g"))


def _path(call: WrappedCall) -> str:
    for name in ("local_path", "checkpoint_path", "path"):
        if name in call.keywords:
            return str(call.keywords[name] or "")
    # AutoBridge's methods take the model first.
    rest = [value for value in call.arguments[1:3] if isinstance(value, (str, os.PathLike))]
    return str(rest[0]) if rest else ""


def _files(path: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for directory, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            if len(found) >= MAX_FILES:
                return found
            full = os.path.join(directory, name)
            try:
                found[os.path.relpath(full, path)] = os.path.getsize(full)
            except OSError:
                continue
    return found


def _of_group(getter: str, variable: str, default: int) -> int:
    """What torch's process group says, else the environment."""
    torch = sys.modules.get("torch")
    try:
        return int(getattr(torch.distributed, getter)()) if torch is not None else int(os.environ[variable])
    except Exception:
        return default


def _rank() -> Optional[int]:
    value = os.environ.get("RANK", "")
    return int(value) if value.isdigit() else None


def _said(error: Optional[BaseException]) -> str:
    return "" if error is None else type(error).__name__ + ": " + str(error)[:500]
