"""Command lines of tests → what they download. The oldest forms are huggingface-cli's, the newest hf's."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.prefetch.hub import HubRepository
from ci_tasks.features.prefetch.requirements import UnresolvedArgument, downloaded_by_command
from ci_tasks.features.recorder.syntax import commands_in

CACHE = "~/.cache/huggingface/hub"


def downloads(line: Any, **env: str) -> list[HubRepository]:
    return [found for argv in commands_in(line) if (found := downloaded_by_command(argv, env))]


def model(id: str, directory: str = CACHE, **more: Any) -> HubRepository:
    return HubRepository("model", id, directory, directory == CACHE, **more)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hf download Qwen/Qwen3-4B --local-dir /root/models/Q", model("Qwen/Qwen3-4B", "/root/models/Q")),
        ("huggingface-cli download Qwen/Q --local-dir=/m", model("Qwen/Q", "/m")),
        ("hf download Qwen/Q --revision v1.0 --local-dir /m", model("Qwen/Q", "/m", revision="v1.0")),
        ("cd /tmp && HF_HUB_ENABLE_HF_TRANSFER=1 hf download Qwen/Q --local-dir /m; ls", model("Qwen/Q", "/m")),
        ("python3 -m huggingface_hub.commands.huggingface_cli download Qwen/Q", model("Qwen/Q")),
        ("hf download Qwen/Q --local-dir $MODELS/m", model("Qwen/Q", "/big/m")),
        ("hf download --repo-type dataset zhuzilin/gsm8k --local-dir /root/datasets/gsm8k",
         HubRepository("dataset", "zhuzilin/gsm8k", "/root/datasets/gsm8k")),
    ],
)  # fmt: skip
def test_a_download_is_read_as_the_program_would(line: str, expected: HubRepository) -> None:
    assert downloads(line, MODELS="/big") == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "hf upload a/b .",
        "echo hf download a/b",
        "python train.py --hf download",
    ],
)
def test_other_commands_are_none(line: str) -> None:
    assert downloads(line) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hf download $REPO --local-dir /m", r"\$REPO is not in the row's environment"),
        ("hf download", "names no repository"),
        ("hf download ../a --local-dir /m", "no repository's id"),
        ("hf download a/b --repo-type space", "space: only whole models"),
        ("hf download a/b a.json b.bin", "a part of it"),
        ("hf download a/b --include '*.json' --include '*.txt'", "a part of it"),
        ("hf download Qwen/⟨name()⟩", r"⟨name\(\)⟩ is not known"),
    ],
)
def test_unknown_arguments_are_not_guessed(line: Any, why: str) -> None:
    with pytest.raises(UnresolvedArgument, match=why):
        downloads(line)
