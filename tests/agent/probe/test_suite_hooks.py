"""What a suite adds to the probe: a module that is loaded in the job once a module that it names has been imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.probe.records import HookEvent
from ci_tasks.agent.records import ProbeRules
from ci_tasks.results.probe_evidence import hook_records, probe_summary
from ci_tasks.run.probe_rules import probe_rules
from ci_tasks.workflow.suite import Suite
from tests.agent.probe.interpreters import Interpreter, add_probe, make_interpreter
from tests.results.test_probe_evidence import PLAN

SUITE = Suite(name="toy", packages=("toy",), probe_hook="tests.agent.probe.toy_hook")


@dataclass(frozen=True)
class Config:
    lr: float
    sizes: dict[str, int]
    layers: tuple[int | str, ...]
    text: str


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    python = make_interpreter(tmp_path, probe=False)
    add_probe(python, probe_rules(SUITE))
    python.install(toy__trainer="LR = 0.5\ndef save(path): print('saved', path)\n", toy__broken="")
    return python


def test_a_hook_notes_what_it_sees_and_nothing_is_imported_between(python: Interpreter) -> None:
    assert python("-c", "import toy.trainer; toy.trainer.save('/ckpt')") == (0, "saved /ckpt\n", "")
    evidence = python.evidence()
    [(process, config)] = hook_records(evidence, "toy", "config", Config)
    assert config == Config(0.5, {"tp": 2}, (1, "two", "nan"), "xxx")
    assert process.argv[1] == "-c"
    assert [(event.kind, event.fields) for event in process.hook_events if event.kind == "checkpoint"] == [
        ("checkpoint", '{"path": "/ckpt"}')
    ]
    assert list(hook_records(evidence, "toy", "checkpoint", Config)) == []


def test_what_fails_in_a_hook_is_noted_and_does_not_reach_the_program(python: Interpreter) -> None:
    assert python("-c", "import toy.broken, toy.trainer; print(toy.trainer.LR)") == (0, "0.5\n", "")
    summary = probe_summary(python.evidence(), PLAN, ())
    assert summary is not None
    assert summary.not_seen == (
        "toy: hook failed: RuntimeError: no such trainer",
        "toy: hook failed: ZeroDivisionError: division by zero",
    )


def test_a_process_that_imports_no_such_module_does_not_load_the_hook(python: Interpreter) -> None:
    assert python("-c", "import toy, sys; print([name for name in sys.modules if 'probe_toy' in name])")[1] == "[]\n"
    assert python.only_process().hook_events == ()


def test_a_suite_without_a_hook_has_its_packages_only() -> None:
    assert probe_rules(Suite(packages=("a",))) == ProbeRules(("a",))


def test_fields_of_another_type_are_an_error_that_names_the_line() -> None:
    event = HookEvent(1.0, "toy", "config", '{"lr": "high"}')
    with pytest.raises(RecordError, match="config of toy: lr"):
        event.decode(Config)
