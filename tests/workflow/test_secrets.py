"""Evaluated text holds marks for secrets; a person sees names, and values never pass through here."""

from __future__ import annotations

import pytest

from ci_tasks.workflow import secrets

A, B = secrets.mark("HF_TOKEN"), secrets.mark("WANDB_API_KEY")


@pytest.mark.parametrize(
    ("text", "names", "shown", "split"),
    [
        ("", [], "", [("", None)]),
        ("plain", [], "plain", [("plain", None)]),
        (A, ["HF_TOKEN"], "<secret HF_TOKEN>", [("", "HF_TOKEN"), ("", None)]),
        # Each name once, in order of appearance.
        (
            f"x{B}y{A}z{B}",
            ["WANDB_API_KEY", "HF_TOKEN"],
            "x<secret WANDB_API_KEY>y<secret HF_TOKEN>z<secret WANDB_API_KEY>",
            [("x", "WANDB_API_KEY"), ("y", "HF_TOKEN"), ("z", "WANDB_API_KEY"), ("", None)],
        ),
        # What looks like a shown secret is ordinary text.
        ("<secret HF_TOKEN>", [], "<secret HF_TOKEN>", [("<secret HF_TOKEN>", None)]),
        (f"{A}{A}", ["HF_TOKEN"], "<secret HF_TOKEN>" * 2, [("", "HF_TOKEN"), ("", "HF_TOKEN"), ("", None)]),
    ],
)
def test_text_with_marks_can_be_listed_shown_and_split(
    text: str, names: list[str], shown: str, split: list[tuple[str, str | None]]
) -> None:
    assert secrets.names(text) == names
    assert secrets.shown(text) == shown
    assert secrets.split(text) == split
