"""py-spy on a host: what is kept is what its name says."""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from pathlib import Path

import pytest

from ci_tasks.agent.hang import programs
from ci_tasks.agent.hang.programs import find_py_spy, remove_old_programs, store_program

HERE = Path(sys.executable).read_bytes()[:20] + b"x" * 1000
ELSEWHERE = HERE[:18] + b"\xff\xff" + HERE[20:]


def store(home: Path, content: bytes) -> Path:
    name, packed = hashlib.sha256(content).hexdigest(), zlib.compress(content)
    store_program(str(home), "py-spy-", name, [packed[:10], packed[10:]])
    return home / "tools" / f"py-spy-{name}"


@pytest.mark.parametrize("run", ["runs/b/01", "runs/b/environments/venv"])
def test_a_program_is_used_under_its_hash_alone_and_on_its_machine(tmp_path: Path, run: str) -> None:
    assert find_py_spy(f"{tmp_path}/{run}") == b""
    store(tmp_path, ELSEWHERE)
    assert find_py_spy(f"{tmp_path}/{run}") == b""
    program = store(tmp_path, HERE)
    assert find_py_spy(f"{tmp_path}/{run}") == HERE
    program.write_bytes(HERE + b"changed")
    assert find_py_spy(f"{tmp_path}/{run}") == b""


@pytest.mark.parametrize("chunk", [zlib.compress(b"another"), b"no zlib", zlib.compress(bytes(3000))])
def test_what_is_no_program_of_this_name_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: bytes
) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAM", 2000)
    with pytest.raises(ValueError, match="program"):
        store_program(str(tmp_path), "py-spy-", hashlib.sha256(bytes(3000)).hexdigest(), [chunk])
    assert not (tmp_path / "tools").exists()


def test_old_programs_go_and_the_newest_stays(tmp_path: Path) -> None:
    old, older, new = (store(tmp_path, HERE + bytes([number])) for number in range(3))
    for path, age in ((old, 100), (older, 200), (new, 50)):
        os.utime(path, (age, age))
    remove_old_programs(str(tmp_path), 150)
    assert list((tmp_path / "tools").iterdir()) == [older]
    remove_old_programs(str(tmp_path / "nowhere"), 150)
