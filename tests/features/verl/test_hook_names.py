"""The probe's hook and the functions of real revisions, which `bench/verl_hooks.py` writes into a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci_tasks.features.verl.probe_hook import MODULES, TABLE

REVISIONS: Mapping[str, Mapping[str, Mapping[str, list[str]]]] = json.loads(
    Path(__file__).with_name("hook_names.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_has_each_function_of_its_package_and_calls_it_as_the_hook_expects(revision: str) -> None:
    modules = REVISIONS[revision]
    expected = {module: {name for own, name, _ in TABLE if own == module} for module in MODULES if module in modules}
    assert {module: set(names) for module, names in modules.items()} == expected
    for names in modules.values():
        for name, parameters in names.items():
            assert parameters[0] == "self" or "." not in name
            assert "checkpoint" not in name or parameters[1] == "local_path"  # the place that a note is made of


def test_the_revisions_are_of_all_three_packages() -> None:
    assert {module for modules in REVISIONS.values() for module in modules} == set(MODULES)
