"""torch's flight recorder is a pickle that the job has written: data is read, anything else is refused."""

from __future__ import annotations

import os
import pickle
import struct
import threading
from pathlib import Path

import pytest

from ci_tasks.agent.hang import MAX_DUMP, RecordedCollective, UnsafePickle, newest_collective, recorded_collectives


def entry(number: int, state: str) -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "record_id": number,
        "state": state,
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "default_pg"),
        "is_p2p": False,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RecordedCollective(3, "all_reduce", 6, "scheduled", "0 default_pg")),
        (
            {"profiling_name": "nccl:recv 1<-0", "is_p2p": True, "p2p_seq_id": 9},
            RecordedCollective(3, "recv 1<-0", 9, "scheduled", "0 default_pg"),
        ),
        ({"process_group": ("7", "tp")}, RecordedCollective(3, "all_reduce", 6, "scheduled", "7 tp")),
    ],
    ids=["a collective", "a message", "another group"],
)
def test_the_last_collective_or_message_that_was_begun(fields: dict[str, object], expected: RecordedCollective) -> None:
    entries = [entry(5, "completed"), {**entry(6, "scheduled"), **fields}]
    content = pickle.dumps({"version": "2.5", "entries": entries}, protocol=2)
    assert newest_collective(content, 3) == expected


class Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"entries": [Runs()]}),
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04r" + struct.pack("<I", 0xFFFFFFFF) + b".",  # the reader in C would reserve 64 GiB
        b"\x80\x04" + b"]" * 10,
        b"",
        pickle.dumps({"entries": [{**entry(6, "scheduled"), "process_group": [["x"], 1]}]}),
        pickle.dumps({"entries": [{**entry(6, "scheduled"), "state": [1]}]}),
        b"." * (MAX_DUMP + 1),
    ],
)
def test_what_is_more_than_data_is_refused(content: bytes) -> None:
    with pytest.raises(UnsafePickle):
        newest_collective(content, 0)


def test_a_dump_is_asked_for_through_torchs_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe0.pipe")
    content = pickle.dumps({"entries": [entry(1, "scheduled")]})

    def torch() -> None:
        with open(tmp_path / "pipe0.pipe", "rb") as pipe:
            opened.set()
            pipe.read(1)
        (tmp_path / "dump0").write_bytes(content)

    opened = threading.Event()
    thread = threading.Thread(target=torch, daemon=True)
    thread.start()
    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump"}
    holder = os.open(tmp_path / "pipe0.pipe", os.O_RDWR)  # so that torch's end opens
    assert opened.wait(10)
    found, could_not = recorded_collectives([{**env, "RANK": "0"}, {**env, "RANK": "1"}], seconds=5)
    os.close(holder)
    assert found == (RecordedCollective(0, "all_reduce", 1, "scheduled", "0 default_pg"),)
    assert could_not == [f"rank 1: no process reads {tmp_path}/pipe1.pipe (No such file or directory)"]
