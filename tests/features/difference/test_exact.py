"""Which logs are equal, bit for bit, and what is said of those that are not."""

from __future__ import annotations

import pytest

from ci_tasks.features.difference.exact import compare_exactly, text
from ci_tasks.features.difference.logged import read_results
from ci_tasks.features.difference.result import Divergence

LOG = """step 0: {'train/loss': 1.5, 'train/grad_norm': 0.25}
[rank3]: step 0: {'train/loss': 2.0}
a word of nobody
step 1: {'train/loss': 1.25, 'train/grad_norm': nan}
HASH  ckpt/iter_1/weights.safetensors
ci-tasks-verl: file: resume: OTHER actor/model.pt
""".replace("HASH", "a" * 64).replace("OTHER", "b" * 64)
EQUAL = "old and new are equal, bit for bit: 5 metric values, 2 checkpoint files"
SEEN = "old and new are not equal; compared: 5 metric values, 2 checkpoint files"
CASES: list[tuple[str, str, str, int, list[str]]] = [
    ("equal", LOG, LOG, 0, [EQUAL]),
    ("-0 is not 0", LOG.replace("1.5", "0.0"), LOG.replace("1.5", "-0.0"), 1,
     [SEEN, "  metrics diverge at step 0: train/loss 0.0 → -0.0"]),
    ("the last digit", LOG, LOG.replace("1.25", "1.2500000000000002"), 1,
     [SEEN, "  metrics diverge at step 1: train/loss 1.25 → 1.2500000000000002"]),
    ("a rank", LOG, LOG.replace("2.0}", "2.5}"), 1,
     [SEEN, "  metrics diverge at step 0, rank 3: train/loss 2.0 → 2.5"]),
    ("a checkpoint", LOG, LOG.replace("b" * 64, "c" * 64), 1, [SEEN, "  checkpoint files differ: actor/model.pt"]),
    ("nothing in common", "hello\n", "", 1,
     ["old and new: not seen: their logs have no metric by step and no checkpoint hash"]),
    ("one ended earlier", LOG, LOG.replace(", 'train/grad_norm': nan", ""), 1,
     ["old and new are not equal; compared: 4 metric values, 2 checkpoint files", "  only one of them has 1 value"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "lines"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_two_logs_are_equal_only_if_all_that_they_print_is(old: str, new: str, code: int, lines: list[str]) -> None:
    sides = [read_results(log.encode().splitlines(keepends=True)) for log in (old, new)]
    compared = compare_exactly("old", sides[0], "new", sides[1])
    assert text(compared) == lines
    assert (compared.outcome != "shown") == bool(code)


def test_no_step_of_a_long_training_is_left_out() -> None:
    """A chart leaves out what is neither low nor high among its neighbours."""
    steps = [f"step {step}: {{'train/loss': {step % 4}}}\n".encode() for step in range(3000)]
    other = [*steps[:2001], b"step 2001: {'train/loss': 1.5}\n", *steps[2002:]]
    compared = compare_exactly("old", read_results(steps), "new", read_results(other))
    assert (compared.first, compared.values) == (Divergence("train/loss", "", 1, 2001, 1.0, 1.5), 3000)
