"""`diff` on real runs: the search for the commit is named, and values are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROW = ("precision", "--host", "sim")


def test_runs_are_compared_exactly_and_with_golden_values(person: Any, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    for _ in range(2):
        assert person.ci_tasks("remote", *ROW).code == 0
    same = person.ci_tasks("diff", "last", "--exact")
    assert same.code == 0 and " values, bit for bit)" in same.out, same.out + same.err
    assert person.ci_tasks("diff", "last", "--write-golden", str(golden)).code == 0
    assert person.ci_tasks("diff", "last", "--golden", str(golden), "--tolerance", "0").code == 0

    person.edit("tiny_slime/train.py", '"--lr", type=float, default=0.1', '"--lr", type=float, default=0.2')
    assert person.ci_tasks("remote", *ROW).code == 0
    parted = person.ci_tasks("diff", "last", "--exact")
    assert parted.code == 1 and " at step " in parted.out
    differs = person.ci_tasks("diff", "last", "--golden", str(golden), "--json")
    assert (differs.code, differs.json["outcome"]) == (1, "contradicted")

    person.edit("tiny_slime/train.py", '"train/kl_loss": kl,', '"train/kl_loss": kl + 1.0,')
    assert person.ci_tasks("remote", *ROW).code == 1
    for arguments, message in (
        (["last", "--write-golden", str(golden)], "no golden values"),
        (["last", "last", "--golden", str(golden)], "cannot be combined"),
        (["last", "--tolerance", "0.1"], "--tolerance needs --golden FILE"),
        (["last", "--golden", str(golden), "--tolerance", "x"], "for example --tolerance 0.01, which is 1 %"),
    ):
        result = person.ci_tasks("diff", *arguments)
        assert result.code == 2 and message in result.err
