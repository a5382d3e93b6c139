"""The probe's hook and the functions of real revisions, which `bench/verl_hooks.py --write` put into a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ci_tasks.features.verl import probe_hook

REVISIONS: Mapping[str, Mapping[str, Mapping[str, list[str]]]] = json.loads(
    Path(__file__).with_name("hook_names.json").read_text(encoding="utf-8")
)
# What each tree has to note at each revision; Megatron-LM and Bridge give the rest.
KINDS = {
    "verl": {"model", "saved", "loaded"},
    "Megatron-Bridge": {"model"},
    "Megatron-LM": {"sizes"},
}


class Part:
    """A model, a PEFT method and a provider at once: what the functions that notes are made of are given and give."""

    module: Any = None

    def named_parameters(self) -> None: ...
    def parameters(self) -> list[Any]:
        return []

    def modules(self) -> list[Any]:
        return []


def function(name: str, parameters: list[str]) -> Any:
    """Does nothing, with the parameters that the real one has."""
    rest = ", ".join(parameters if parameters[:1] != ["self"] else parameters[1:])
    scope: dict[str, Any] = {"Part": Part}
    first = "self, " if parameters[:1] == ["self"] else ""
    result = "" if name == "__init__" else "return [Part()]"
    exec(f"def {name}({first}{rest}, **more):\n    {result or 'pass'}", scope)
    return scope[name]


def stub(module: str, names: Mapping[str, list[str]]) -> ModuleType:
    stub = ModuleType(module)
    for name, parameters in names.items():
        owner, _, attribute = name.rpartition(".")
        place: Any = stub
        if owner:
            place = vars(stub).setdefault(owner, type(owner, (), {}))
        setattr(place, attribute, function(attribute, parameters))
    return stub


def values(path: Path) -> dict[str, Any]:
    """What a parameter of that name gets."""
    config = {"actor": {"lr": 1}, "model_type": "value_model"}
    paths = dict.fromkeys(("local_path", "checkpoint_path", "path"), str(path))
    return {"config": config, "role": "actor", "data": {"a": 1.0}, "step": 3, "global_step": 3, **paths}


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_function_of_a_revision_is_noted_when_it_is_called_as_it_is_there(
    revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"1234")
    torch = SimpleNamespace(distributed=SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", ModuleType("parallel_state"))
    kinds: set[str] = set()
    for module, names in REVISIONS[revision].items():
        noted: list[tuple[str, dict[str, Any]]] = []
        made = stub(module, names)
        probe_hook.after_import(made, lambda kind, noted=noted, **fields: noted.append((kind, fields)))
        [(_, hooked)] = noted
        assert set(hooked["found"]) == set(names)
        assert set(hooked["found"] + hooked["missing"]) == set(probe_hook.names_by_module()[module])
        for name, parameters in names.items():
            noted.clear()
            owner, _, attribute = name.rpartition(".")
            given = [values(tmp_path).get(parameter) for parameter in parameters if parameter != "self"]
            place = getattr(made, owner)(*given) if attribute == "__init__" else made
            if attribute != "__init__":
                getattr(object.__new__(getattr(made, owner)) if owner else place, attribute)(*given)
            wanted = probe_hook.names_by_module()[module][name]
            assert {kind for kind, _ in noted} == {wanted}, name
            kinds.add(wanted)
            if wanted in ("saved", "loaded"):
                assert noted[0][1]["files"] == {"weights": 4}
    assert kinds == KINDS[revision.split()[0]]
