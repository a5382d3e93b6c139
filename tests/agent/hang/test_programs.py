"""py-spy on a host: what is kept is what its name says, and where it cannot be used there is a reason."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import pytest

from ci_tasks.agent.hang import programs
from ci_tasks.agent.hang.programs import find_py_spy, remove_old_programs, store_program

ELF = {"x86_64": 62, "aarch64": 183}


def elf(machine: str) -> bytes:
    return b"\x7fELF".ljust(18, b"\0") + ELF[machine].to_bytes(2, "little") + b"x" * 1000


def store(home: Path, content: bytes) -> Path:
    name, packed = hashlib.sha256(content).hexdigest(), zlib.compress(content)
    store_program(str(home), "py-spy-", name, [packed[:10], packed[10:]])
    return home / "tools" / f"py-spy-{name}"


@pytest.mark.parametrize("run", ["runs/b/01", "runs/b/environments/venv"])
def test_a_program_is_kept_under_its_hash_alone(tmp_path: Path, run: str) -> None:
    program = store(tmp_path, elf(os.uname().machine))
    assert find_py_spy(f"{tmp_path}/{run}") == (str(program), "", program.read_bytes())
    program.write_bytes(b"changed")
    assert not find_py_spy(f"{tmp_path}/{run}").path


@pytest.mark.parametrize("chunk", [zlib.compress(b"another"), b"no zlib", zlib.compress(bytes(3000))])
def test_what_is_no_program_of_this_name_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: bytes
) -> None:
    monkeypatch.setattr(programs, "MAX_PROGRAM", 2000)
    with pytest.raises(ValueError, match="program"):
        store_program(str(tmp_path), "py-spy-", hashlib.sha256(bytes(3000)).hexdigest(), [chunk])
    assert not (tmp_path / "tools").exists()


def test_where_it_cannot_be_used_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "runs/b/01")
    here = os.uname().machine
    (other,) = ELF.keys() - {here}
    assert find_py_spy(run).why_not.startswith(f"py-spy is not on this host: a client on {here} sends it")
    store(tmp_path, elf(other))
    assert find_py_spy(run) == ("", f"py-spy is here for {other}, not for {here}", b"")
    program = store(tmp_path, elf(here))
    monkeypatch.setattr(programs, "_is_noexec", lambda path: True)
    reason = f"py-spy may not run: {program} is on a file system mounted noexec"
    assert find_py_spy(run) == ("", reason, program.read_bytes()), "a container may run it"


def test_programs_that_nobody_uses_any_more_go_and_the_newest_stays(tmp_path: Path) -> None:
    old, older, new = (store(tmp_path, elf("x86_64") + bytes([number])) for number in range(3))
    for path, age in ((old, 100), (older, 200), (new, 50)):
        os.utime(path, (age, age))
    remove_old_programs(str(tmp_path), 150)
    assert sorted((tmp_path / "tools").iterdir()) == sorted([older])
    remove_old_programs(str(tmp_path / "nowhere"), 150)
