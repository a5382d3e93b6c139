"""`reproduce` as a person types it: what names the failed job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parts.commands import run_command

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "reproduce needs --log FILE, --log - or --url URL"),
        ({"log": "gone.log"}, "gone.log"),
        ({"url": "https://example.org/x"}, "https://example.org/x"),
        ({"log": "gone.log", "url": "https://example.org/x"}, "both name the failed job"),
        ({"log": "gone.log", "host": "nowhere"}, "unknown host 'nowhere'"),
        ({"log": "gone.log", "host": "local,sim"}, "unknown host 'local,sim'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"HOME": tmp_path, "HOSTS": ROOT / "hosts.yaml"}.items():
        monkeypatch.setenv(f"CI_TASKS_{name}", str(value))
    monkeypatch.chdir(tmp_path)
    assert run_command("reproduce", **options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "env", "good": "a"}, "invalid value 'env' for --axis"),
        ({"axis": "commit,image", "good": "a"}, "invalid value 'commit,image' for --axis"),
        ({}, "bisect needs --good REV"),
        ({"axis": "overlay:sglang"}, "bisect needs --good REV"),
        ({"axis": "image", "good": "a:1", "bad": "a:2"}, "bisect needs --images LIST"),
        ({"axis": "image", "images": "a,b", "first_parent": True}, "--first-parent and --axis image cannot"),
        ({"good": "a", "images": "a,b"}, "--images and --axis commit cannot"),
        ({"good": "a", "rev": "b"}, "--rev and --axis commit cannot"),
        ({"axis": "submodule:x", "good": "a", "images": "a,b"}, "--images and --axis submodule:x cannot"),
    ],
)
def test_an_axis_takes_its_own_options_only(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("bisect", label="ckpt", only="row", **options) == 2
    assert message in capsys.readouterr().err
