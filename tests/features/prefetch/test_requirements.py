"""Sources of tests → what they will ask the hub for, and what they take to be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.features.prefetch.hub import HubRepository
from ci_tasks.features.prefetch.requirements import (
    Unresolved,
    UnresolvedArgument,
    downloaded_by_command,
    requirements_of,
)
from ci_tasks.features.recorder.syntax import Recording, commands_in
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "requirements.json")).fixture()
requirements_of = kept.of(requirements_of)
downloaded_by_command = kept.of(downloaded_by_command)

HEAD = "import slime.utils.external_utils.command_utils as U\nMODEL_NAME = 'Qwen3-4B'\n"
CACHE = "~/.cache/huggingface/hub"
MAIN = "\nif __name__ == '__main__':\n    prepare()\n"


Read = Callable[..., list[tuple[str, HubRepository | Unresolved]]]


@pytest.fixture
def read(record: Callable[..., Recording]) -> Read:
    """What a test whose `prepare` has this body asks for."""

    def requirements(body: str, **env: str) -> list[tuple[str, HubRepository | Unresolved]]:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        recording = record(f"{HEAD}def prepare():\n{lines}{MAIN}", **env)
        return list(requirements_of(recording, env, "tests/test_x.py"))

    return requirements


def requested(found: list[tuple[str, HubRepository | Unresolved]]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.id, each.directory) for _, each in found if isinstance(each, HubRepository)]


def unresolved(found: list[tuple[str, HubRepository | Unresolved]]) -> list[Unresolved]:
    return [each for _, each in found if isinstance(each, Unresolved)]


BODIES = [
    ("U.exec_command(f'hf download Qwen/{MODEL_NAME} --local-dir /root/models/{MODEL_NAME}')",
     [("model", "Qwen/Qwen3-4B", "/root/models/Qwen3-4B")]),
    ("U.hf_download_dataset('zhuzilin/gsm8k')", [("dataset", "zhuzilin/gsm8k", "/root/datasets/gsm8k")]),
    ("for n in ('a', 'b'):\n    U.exec_command(f'mkdir -p /m && hf download o/{n} --local-dir /m/{n}')",
     [("model", "o/a", "/m/a"), ("model", "o/b", "/m/b")]),
    ("import subprocess\nsubprocess.run(['hf', 'download', 'o/a', '--local-dir', '/m'], check=True)",
     [("model", "o/a", "/m")]),
    ("from huggingface_hub import snapshot_download as s\ns('o/a', repo_type='dataset', local_dir='/d')",
     [("dataset", "o/a", "/d")]),
    ("import huggingface_hub as h\nh.snapshot_download('o/a')", [("model", "o/a", CACHE)]),
    ("import huggingface_hub as h\nh.snapshot_download('o/a', local_files_only=True)", []),
    ("import os\nif os.environ.get('BIG') == '1':\n    U.hf_download_dataset('o/d')", []),
    ("U.exec_command('bash -c \"hf download o/a --local-dir /m\"')", [("model", "o/a", "/m")]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_what_a_test_downloads(read: Read, body: str, expected: list[tuple[str, str, str]]) -> None:
    requirements = read(body)
    assert requested(requirements) == expected
    assert not unresolved(requirements)


def test_the_rows_environment_decides(read: Read) -> None:
    body = "import os\nif os.environ.get('BIG') == '1':\n    U.hf_download_dataset('o/d')"
    assert requested(read(body, BIG="1")) == [("dataset", "o/d", "/root/datasets/d")]


NOT_KNOWN = [
    ("import torch\nU.exec_command(f'hf download o/{torch.version} --local-dir /m')", "⟨torch.version⟩"),
    ("import huggingface_hub as h\nh.hf_hub_download('o/a', 'x.json')", "a part of it"),
    ("import torch\nU.hf_download_dataset(f'o/{torch.version}')", "⟨torch.version⟩"),
    ("U.exec_command('parallel \"hf download o/{} --local-dir /m\"')", "another program"),
    ("import torch\nU.exec_command(f'{torch.version} download o/a')", "unknown program"),
]


@pytest.mark.parametrize(("body", "why"), NOT_KNOWN)
def test_what_is_not_known_is_listed_with_its_line(read: Read, body: str, why: str) -> None:
    (each,) = unresolved(read(body))
    assert why in f"{each.text} {each.why}"
    assert each.where in ("tests/test_x.py:4", "tests/test_x.py:5")


def test_the_part_after_a_stop_is_reported_as_not_seen(read: Read) -> None:
    requirements = read("import os\nU.hf_download_dataset('o/d')\nos.environ['GONE']\nU.hf_download_dataset('o/e')")
    assert [id for _, id, _ in requested(requirements)] == ["o/d"]
    (each,) = unresolved(requirements)
    assert each.why == "not read further: tests/test_x.py:6: KeyError: 'GONE'"


def downloads(line: Any, **env: str) -> list[HubRepository]:
    return [found for argv in commands_in(line) if (found := downloaded_by_command(argv, env))]


def model(id: str, directory: str = CACHE, **more: Any) -> HubRepository:
    return HubRepository("model", id, directory, directory == CACHE, **more)


DOWNLOADS = [
    ("hf download Qwen/Qwen3-4B --local-dir /root/models/Q", model("Qwen/Qwen3-4B", "/root/models/Q")),
    ("huggingface-cli download Qwen/Q --local-dir=/m", model("Qwen/Q", "/m")),
    ("hf download Qwen/Q --revision v1.0 --local-dir /m", model("Qwen/Q", "/m", revision="v1.0")),
    ("cd /tmp && HF_HUB_ENABLE_HF_TRANSFER=1 hf download Qwen/Q --local-dir /m; ls", model("Qwen/Q", "/m")),
    ("python3 -m huggingface_hub.commands.huggingface_cli download Qwen/Q", model("Qwen/Q")),
    ("hf download Qwen/Q --local-dir $MODELS/m", model("Qwen/Q", "/big/m")),
    ("hf download --repo-type dataset zhuzilin/gsm8k --local-dir /root/datasets/gsm8k",
     HubRepository("dataset", "zhuzilin/gsm8k", "/root/datasets/gsm8k")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), DOWNLOADS)
def test_a_download_is_read_as_the_program_would(line: str, expected: HubRepository) -> None:
    assert downloads(line, MODELS="/big") == [expected]


@pytest.mark.parametrize("line", ["hf upload a/b .", "echo hf download a/b", "python train.py --hf download"])
def test_other_commands_are_none(line: str) -> None:
    assert downloads(line) == []


UNRESOLVED = [
    ("hf download $REPO --local-dir /m", r"\$REPO is not in the row's environment"),
    ("hf download", "names no repository"),
    ("hf download ../a --local-dir /m", "no repository's id"),
    ("hf download a/b --repo-type space", "space: only whole models"),
    ("hf download a/b a.json b.bin", "a part of it"),
    ("hf download a/b --include '*.json' --include '*.txt'", "a part of it"),
    ("hf download Qwen/⟨name()⟩", r"⟨name\(\)⟩ is not known"),
]


@pytest.mark.parametrize(("line", "why"), UNRESOLVED)
def test_unknown_arguments_are_not_guessed(line: Any, why: str) -> None:
    with pytest.raises(UnresolvedArgument, match=why):
        downloads(line)
