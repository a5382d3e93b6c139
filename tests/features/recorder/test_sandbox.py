"""What a hostile test can do from within the sandbox: nothing to the checkout, the home, the network or the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.features.recorder import record as recorder
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.syntax import Recording

pytestmark = pytest.mark.skipif(
    bool(recorder.unavailable_reason()), reason=f"no sandbox here: {recorder.unavailable_reason()}"
)

# Each tries something and says what came of it as the argument of a recorded call.
TRY = """
import ctypes, os, socket, sys
import subprocess
def attempt():
{body}
try:
    result = attempt()
except BaseException as error:
    result = type(error).__name__
subprocess.run(["result", str(result)])
"""


def attempt(checkout: Path, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    recording = recorded(checkout, TRY.replace("{body}", lines))
    (call,) = [call for call in recording.calls if call.target == "subprocess.run"]
    (argv,) = call.commands
    return argv[1]


def recorded(checkout: Path, source: str) -> Recording:
    (checkout / "test_x.py").write_text(source)
    return LaunchRecorder({}, lambda name: source, checkout).record("test_x.py")


HOSTILE = [
    ("socket.create_connection(('1.1.1.1', 53), 2)", "OSError"),
    ("socket.create_connection(('127.0.0.1', {port}), 2)", "OSError"),
    ("open(__file__, 'a')", "OSError"),
    ("os.remove(__file__)", "OSError"),
    ("open('/checkout/new', 'w')", "OSError"),
    ("open('/usr/new', 'w')", "OSError"),
    ("return os.path.exists({home!r})", "False"),
    ("return os.path.exists('/etc/passwd')", "False"),
    ("return [os.path.exists(one) for one in ('/proc/1/root', '/sys/class')]", "[False, False]"),
    ("return bytearray(10 << 30)", "MemoryError"),
    ("os.fork()", "AttributeError"),
    ("os.execv('/bin/sh', ['sh', '-c', 'true'])", "AttributeError"),
    ("os.posix_spawn('/bin/true', ['true'], {{}})", "AttributeError"),
    ("return ctypes.CDLL(None).mount(b'x', b'/mnt', b'tmpfs', 0, None)", "-1"),
    ("return ctypes.CDLL(None).mount(None, b'/checkout', None, 32 | 4096, None)", "-1"),  # remount, writable
    ("return ctypes.CDLL(None).unshare(0x10000000 | 0x20000)", "-1"),  # a user namespace of its own, to mount in
    ("return ctypes.CDLL(None).umount2(b'/checkout', 2)", "-1"),
    ("return os.write(os.open('/tmp/big', os.O_CREAT | os.O_WRONLY), b'x' * (100 << 20)) < 100 << 20", "True"),
]


@pytest.mark.parametrize(("body", "outcome"), HOSTILE)
def test_a_hostile_test_gets_nowhere(tmp_path: Path, body: str, outcome: str) -> None:
    import socket

    home = tmp_path / "home"
    home.mkdir()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = body.format(port=server.getsockname()[1], home=str(home))
        assert attempt(checkout, source) == outcome
    assert os.listdir(checkout) == ["test_x.py"]


def test_an_endless_test_and_a_process_that_gets_past_the_stubs_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they had recorded stays. The process sees no more than the test does, and writes into the recording at
    most."""
    monkeypatch.setattr(recorder, "SECONDS", 10)
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nwho = libc.fork()\nos.system(f'{who and 1}')\nwhile True: pass\n"
    )
    recording = recorded(tmp_path, source)
    assert {str(call.args) for call in recording.calls} == {"['0']", "['1']"}
    assert recording.stops == ("it ran for more than 10 s",)


def test_a_machine_without_namespaces_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(recorder._SANDBOX_ENV, "PATH", "/nowhere")
    assert recorder._run_sandboxed(tmp_path, []) == ("", "[Errno 2] No such file or directory: 'unshare'")
