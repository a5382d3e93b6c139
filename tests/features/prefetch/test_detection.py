"""Sources of tests → what they will ask the hub for, and what they take to be there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci_tasks.features.prefetch.requirements import Requirements, requirements_of
from ci_tasks.features.recorder.records import Recording

HEAD = "import slime.utils.external_utils.command_utils as U\nMODEL_NAME = 'Qwen3-4B'\n"
MAIN = "\nif __name__ == '__main__':\n    prepare()\n"
CACHE = "~/.cache/huggingface/hub"


Read = Callable[..., Requirements]


@pytest.fixture
def read(record: Callable[..., Recording]) -> Read:
    """What a test whose `prepare` has this body asks for."""

    def requirements(body: str, **env: str) -> Requirements:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        return requirements_of(record(f"{HEAD}def prepare():\n{lines}{MAIN}", **env), env, "tests/test_x.py")

    return requirements


def requested(requirements: Requirements) -> list[tuple[str, str, str]]:
    return [(repository.kind, repository.id, repository.directory) for repository in requirements.repositories]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("U.exec_command(f'hf download Qwen/{MODEL_NAME} --local-dir /root/models/{MODEL_NAME}')",
         [("model", "Qwen/Qwen3-4B", "/root/models/Qwen3-4B")]),
        ("U.hf_download_dataset('zhuzilin/gsm8k')", [("dataset", "zhuzilin/gsm8k", "/root/datasets/gsm8k")]),
        ("for n in ('a', 'b'):\n    U.exec_command(f'mkdir -p /m && hf download o/{n} --local-dir /m/{n}')",
         [("model", "o/a", "/m/a"), ("model", "o/b", "/m/b")]),
        ("import subprocess\nsubprocess.run(['hf', 'download', 'o/a', '--local-dir', '/m'], check=True)",
         [("model", "o/a", "/m")]),
        ("from huggingface_hub import snapshot_download as s\ns('o/a', repo_type='dataset', local_dir='/d')",
         [("dataset", "o/a", "/d")]),
        ("import huggingface_hub as h\nh.hf_hub_download('o/a', 'x.json')", [("model", "o/a", CACHE)]),
        ("import datasets\ndatasets.load_dataset('o/d', split='train')", [("dataset", "o/d", CACHE)]),
        ("from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('o/a')", [("model", "o/a", CACHE)]),
        ("from transformers import AutoConfig\nAutoConfig.from_pretrained('o/a', local_files_only=True)", []),
        ("import os\nif os.environ.get('BIG') == '1':\n    U.hf_download_dataset('o/d')", []),
    ],
)  # fmt: skip
def test_what_a_test_downloads(read: Read, body: str, expected: list[tuple[str, str, str]]) -> None:
    requirements = read(body)
    assert requested(requirements) == expected
    assert not requirements.unresolved


def test_the_rows_environment_decides(read: Read) -> None:
    body = "import os\nif os.environ.get('BIG') == '1':\n    U.hf_download_dataset('o/d')"
    assert requested(read(body, BIG="1")) == [("dataset", "o/d", "/root/datasets/d")]


def test_a_tokenizer_wants_no_weights(read: Read) -> None:
    (repository,) = read("from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('o/a')").repositories
    assert "*.json" in repository.include and not any("safetensors" in pattern for pattern in repository.include)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import torch\nU.exec_command(f'hf download o/{torch.version} --local-dir /m')", "⟨torch.version⟩"),
        ("import torch\nU.hf_download_dataset(f'o/{torch.version}')", "⟨torch.version⟩"),
        ("U.exec_command('parallel \"hf download o/{} --local-dir /m\"')", "another program"),
        ("import torch\nU.exec_command(f'{torch.version} download o/a')", "which program"),
    ],
)
def test_what_is_not_known_is_listed_with_its_line(read: Read, body: str, why: str) -> None:
    (unresolved,) = read(body).unresolved
    assert why in f"{unresolved.text} {unresolved.why}"
    assert unresolved.where in ("tests/test_x.py:4", "tests/test_x.py:5")


def test_the_part_after_a_stop_is_reported_as_not_seen(read: Read) -> None:
    requirements = read("import os\nU.hf_download_dataset('o/d')\nos.environ['GONE']\nU.hf_download_dataset('o/e')")
    assert [id for _, id, _ in requested(requirements)] == ["o/d"]
    (unresolved,) = requirements.unresolved
    assert unresolved.why == "not seen from there on: tests/test_x.py:6: KeyError: 'GONE'"


CONVERT = "U.convert_checkpoint(model_name=MODEL_NAME, megatron_model_type='t', num_gpus_per_node=8)"
TRAIN = "U.execute_train(train_args='{}', num_gpus_per_node=8, megatron_model_type='t')"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (CONVERT, ["/root/models/Qwen3-4B"]),
        ("U.exec_command('hf download Qwen/Qwen3-4B --local-dir /root/models/Qwen3-4B')\n" + CONVERT, []),
        (TRAIN.format("--hf-checkpoint /root/models/x/ --save /out"), ["/root/models/x"]),
        (TRAIN.format("--prompt-data /root/datasets/d/a.jsonl@[0:10]"), ["/root/datasets/d/a.jsonl"]),
        ("U.hf_download_dataset('o/d')\n" + TRAIN.format("--eval-prompt-data n /root/datasets/d/a.jsonl"), []),
    ],
)
def test_a_path_that_nothing_in_the_test_makes_is_expected_to_be_there(
    read: Read, body: str, expected: list[str]
) -> None:
    assert list(read(body).expected) == expected
