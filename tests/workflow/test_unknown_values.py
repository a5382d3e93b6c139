"""How a person gives what only GitHub knows; tests/planning/test_unknown_values.py has each kind of value."""

from __future__ import annotations

from ci_tasks.workflow.resolve import how_to_give


def test_what_nobody_can_give_has_no_hint() -> None:
    assert how_to_give(["github.repository_id", "steps.a.outputs.b"]) == ""
