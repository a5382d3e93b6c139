"""The generic suite: what any workflow's matrix entries say."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.workflow.suite import GENERIC


@pytest.mark.parametrize(
    ("entry", "gpus"),
    [
        ({"num_gpus": 2, "python": "3.12"}, 2),
        ({"gpus": "4"}, 4),
        ({"info": {"num_gpus": 8, "level": 1}}, 8),
        ({"gpu-count": 4}, 4),
        ({"n_gpus": 2}, 2),
        ({"gpu_num": "gpu_num_4"}, 4),
        # Unknown is a value.
        ({"num_gpus": "many"}, None),
        ({"python": "3.12"}, None),
        ({"info": "word"}, None),
        ({}, None),
    ],
)
def test_an_entry_says_how_many_gpus_it_wants_and_no_test_is_guessed(entry: dict[str, Any], gpus: int | None) -> None:
    assert GENERIC.describe(entry) == (None, "", gpus)
