"""What a stubbed call was given, as JSON."""

from __future__ import annotations

import json

from ci_tasks.recorder.stubs import plain


def test_a_value_that_contains_itself_is_cut_at_eight_levels() -> None:
    endless: list[object] = []
    endless.append(endless)
    tree: dict[str, object] = {}
    tree["more"] = tree
    assert json.dumps(plain(endless), ensure_ascii=False) == "[" * 8 + '"⟨list⟩"' + "]" * 8
    assert json.dumps(plain(tree), ensure_ascii=False) == '{"more": ' * 8 + '"⟨dict⟩"' + "}" * 8
