"""The options of `bisect`: each axis takes its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parts.commands import run_command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "env", "good": "a"}, "invalid value 'env' for --axis"),
        ({}, "bisect needs --good"),
        ({"axis": "image", "good": "a:1"}, "bisect needs --images"),
        ({"axis": "image", "images": "a,b", "bad": "b"}, "cannot be combined"),
        ({"good": "a", "images": "a,b"}, "cannot be combined"),
        ({"good": "a", "rev": "b"}, "--rev and --axis commit cannot"),
        ({"axis": "submodule:x", "good": "a", "images": "a,b"}, "cannot be combined"),
    ],
)
def test_an_axis_takes_its_own_options_only(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("bisect", label="ckpt", only="row", **options) == 2
    assert message in capsys.readouterr().err
