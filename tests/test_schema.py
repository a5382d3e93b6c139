"""The published schema of hosts.yaml and the reader agree."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from ci_tasks import config
from ci_tasks.config import HostSpec, Override, keys_of
from ci_tasks.errors import ConfigError
from tests.parts.cases import cases

CASES = cases("data/refused-hosts.yaml")

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "docs/hosts.schema.json").read_text())

GOOD = [
    (ROOT / "hosts.yaml").read_text(),
    "hosts: {box: {kind: ssh, address: box.example.com, gpus: 8, mounts: {/a: /b}, secrets: [X], pull: never}}",
    "hosts: {slurm: {kind: slurm, address: login, partition: h100, gres: 'gpu:h100', runtime: pyxis}}",
    "hosts: {c: {kind: slurm, address: l, account: a, qos: q, gres: gpu, sbatch: [--exclude=n3, --exclusive]}}",
    "hosts: {a: {runtime: apptainer}, b: {kind: ssh, address: b, runtime: apptainer}}",
    "hosts: {a: {kind: local}, b: {kind: local}}\npools: {both: [a, b]}",
    "overrides: [{job: a, step: b, run: c}, {job: a, step: c, skip: true}, {job: a, step: d, with: {x: 1}}]",
    "include: lab.yaml",
    "include: [lab.yaml, 'https://example.com/lab.git']",
    "overrides: [{job: a, step: b, pip_index: default}, {job: a, step: c, replace: {x: y}}]",
    "overrides: [{job: a, step: b, pip_index: 'https://mirror.example/simple', replace: {'torch==2+cu1': torch==2}}]",
    "hosts: {a: {env: {A: 1, B: true, C: text}, timeout_minutes: 1.5, stall_minutes: 1}}",
]
# What a layer may say of a host of another one; alone, it is an error.
LAYERS = ["hosts: {box: {address: other.example.com}}", "hosts: {cluster: {partition: h100, runtime: pyxis}}"]
BELOW = "hosts: {box: {kind: ssh, address: box}, cluster: {kind: slurm, address: login}}"


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_accepts_what_the_reader_accepts(text: str) -> None:
    config.read(text)
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("text", CASES["the schema rejects what the reader rejects"])
def test_the_schema_rejects_what_the_reader_rejects(text: str) -> None:
    with pytest.raises(ConfigError):
        config.read(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("text", LAYERS)
def test_the_schema_accepts_a_layer_that_changes_a_host_below(text: str) -> None:
    config.read_layers([config.ConfigLayer(BELOW), config.ConfigLayer(text)])
    jsonschema.validate(yaml.safe_load(text), SCHEMA)
    with pytest.raises(ConfigError):
        config.read(text)


def test_the_schema_has_the_keys_and_choices_of_the_reader() -> None:
    host = SCHEMA["properties"]["hosts"]["additionalProperties"]["anyOf"][0]["properties"]
    keys = keys_of(HostSpec)
    assert host.keys() == keys.keys()
    hints = {key: field.metadata["hint"] for key, field in keys.items()}
    choices = {key: hint.removeprefix("valid: ") for key, hint in hints.items() if hint.startswith("valid: ")}
    assert {key: ", ".join(host[key]["enum"]) for key in choices} == choices
    refused = host["sbatch"]["items"]["pattern"].partition("(?!(")[2].partition(")")[0].split("|")
    assert set(refused) == set(config._SET_BY_US.split())
    assert set(SCHEMA["properties"]["overrides"]["items"]["properties"]) == set(keys_of(Override))
