"""A message says what happened, where, and the next step; the exit code says whose fault it is."""

from __future__ import annotations

import pytest

from ci_tasks.errors import CiTasksError, ConfigError, UnknownName, WorkflowError, short, shortened


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CiTasksError("it broke"), "it broke"),
        (CiTasksError("it broke", hint="repair it"), "it broke\nrepair it"),
        (UnknownName("label", "ckpr", ["ppo", "ckpt"]), "unknown label 'ckpr'; did you mean 'ckpt'?\nvalid: ckpt, ppo"),
        (UnknownName("host", "zzz", ["a"], where="hosts.yaml"), "unknown host 'zzz' in hosts.yaml\nvalid: a"),
        (UnknownName("run", "1", []), "unknown run '1'\nno runs"),
        (ConfigError("bad", line=3), "hosts.yaml:3: bad"),
        (ConfigError("bad", file="/etc/h.yaml"), "/etc/h.yaml: bad"),
        (WorkflowError("bad"), "bad"),
        (WorkflowError("bad", file="w.yml"), "w.yml: bad"),
        (
            WorkflowError("bad", file="w.yml", line=7, job="cpu", step="Run", text="  run: x  ", hint="try y"),
            "w.yml:7: job cpu, step 'Run': bad\n    run: x\ntry y",
        ),
        # Text of several lines keeps its shape.
        (WorkflowError("bad", text="\n  if x\n    then y\n"), "bad\n    if x\n      then y"),
        (WorkflowError("bad", text="   \n"), "bad"),
    ],
)
def test_a_message_has_what_where_and_the_next_step(error: CiTasksError, text: str) -> None:
    assert str(error) == text


def test_control_characters_are_replaced() -> None:
    assert str(CiTasksError("job \x1b[31mred\x9b\r", hint="a\tb")) == "job �[31mred��\na\tb"


def test_of_many_valid_names_the_first_ones_are_listed() -> None:
    hint = UnknownName("row", "x", [f"row{number:02d}" for number in range(51)]).hint
    assert hint.startswith("valid: row00, row01, ") and hint.endswith(", row23 and 27 more")


def test_a_text_is_shortened_in_its_middle() -> None:
    text = " ".join(f"word{number}" for number in range(100))
    begin, middle, end = shortened(text, 60).split(" … ")
    assert text.startswith(begin + " ") and text.endswith(" " + end), "between words"
    assert int(middle.split()[0]) == len(text) - len(begin) - len(end)
    assert short("c0ffee" * 7) == "c0ffeec0ffee"
