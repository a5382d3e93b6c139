"""What is known before a level runs: images that move or serve another engine, and what the trees lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.features.verl import remarks
from ci_tasks.features.verl.levels.levels import LevelRequest


@pytest.mark.parametrize(
    ("image", "engine", "words"),
    [
        ("verlai/verl:vllm012.dev1", "vllm", []),
        ("registry:5000/verlai/verl", "vllm", ["a tag that moves"]),
        ("verlai/verl:vllm024.latest", "vllm", ["a tag that moves"]),
        ("verlai/verl:vllm024.latest@sha256:00", "vllm", []),
        ("verlai/verl:sgl056.latest", "vllm", ["a tag that moves", "one for sglang, and the rollout engine is vllm"]),
        ("verlai/verl:vllm011.dev7", "sglang", ["one for vllm, and the rollout engine is sglang"]),
        # One that has both serves either; and a registry's name says nothing of the image.
        ("verlai/verl:vllm-sglang-mcore", "sglang", []),
    ],
)
def test_an_image_is_remarked_on(image: str, engine: str, words: list[str]) -> None:
    found = list(remarks.of_image(image, engine))
    assert len(found) == len(words)
    assert all(word in remark for word, remark in zip(words, found, strict=True))


def test_a_submodule_that_was_not_checked_out_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    megatron = tmp_path / "3rdparty/Megatron-LM"
    megatron.mkdir(parents=True)
    request = LevelRequest(0, train_files="/t", val_files="/v")
    (remark,) = remarks.of_trees(tmp_path, tmp_path, request)
    assert f"git -C {tmp_path} submodule update --init 3rdparty/Megatron-LM" in remark
    (megatron / ".git").write_text("gitdir: ../../.git/modules/megatron")
    assert len([*remarks.of_trees(tmp_path, tmp_path, request)]) == 1, "a link to a repository is no content"
    (megatron / "megatron").mkdir()
    assert not [*remarks.of_trees(tmp_path, tmp_path, request)]
