"""The log: the traceback of every bug is in a file that the last line names, in whatever thread; secrets are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks import debug_log, safe_output
from ci_tasks.debug_log import MAX_FILES

COMMAND = "from ci_tasks.cli.program import main; main()"
# A bug in each place, in a process of its own: what is run, the exit code, what the log names.
BUGS = {
    "in the flow": ("def flow(): return 1 // 0", 70, "in flow\n"),
    "in a thread of a command that ends as blocked": (
        "def flow(): t = threading.Thread(target=lambda: 1 // 0, name='worker'); t.start(); t.join(); return 125",
        70,
        "thread worker",
    ),
    "in a thread of a command that ends as failed": (
        "def flow(): t = threading.Thread(target=lambda: 1 // 0); t.start(); t.join(); return 1",
        1,
        "ZeroDivisionError",
    ),
    "in a thread that catches it": (
        "def flow():\n try: 1 // 0\n except Exception as bug: raise InternalError(debug_log.bug('worker', bug))",
        70,
        "bug: worker",
    ),
}
START = """import sys, threading
from ci_tasks import debug_log, safe_output
from ci_tasks.cli import exit_handler
from ci_tasks.errors import InternalError
"""


def python(code: str, home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CI_TASKS_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**environ, "CI_TASKS_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def logs(home: Path) -> list[Path]:
    return sorted(home.glob("logs/*.log"))


@pytest.mark.parametrize("case", BUGS)
def test_a_bug_prints_one_line_that_names_the_log_with_its_traceback(case: str, tmp_path: Path) -> None:
    code, expected, arguments = BUGS[case]
    done = python(f"{START}{code}\nsys.exit(exit_handler.run(flow))", tmp_path)
    assert done.returncode == expected, done.stderr
    (log,) = logs(tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "a bug in ci-tasks" in line]
    assert str(log) in line
    assert "Traceback" not in done.stderr
    text = log.read_text()
    assert "Traceback" in text and arguments in text


def test_without_a_bug_no_log_is_created(tmp_path: Path) -> None:
    assert python(COMMAND, tmp_path, "jobs", "--repo", "/no/such/place").returncode == 2
    flow = "def flow(): t = threading.Thread(target=sys.exit); t.start(); t.join(); return 1"
    assert python(f"{START}{flow}\nsys.exit(exit_handler.run(flow))", tmp_path).returncode == 1
    assert not logs(tmp_path)


@pytest.mark.parametrize("arguments", [["--debug", "jobs"], ["jobs", "--debug"], ["jobs", "ckpt", "--debug"], []])
def test_debug_is_accepted_anywhere_and_prints_the_path_of_the_log(arguments: list[str], tmp_path: Path) -> None:
    env = {} if arguments else {debug_log.ENV: "1"}
    done = python(COMMAND, tmp_path, *(arguments or ["jobs"]), **env)
    assert done.returncode == 0, done.stderr
    (log,) = logs(tmp_path)
    assert done.stderr == f"ci-tasks: log: {log}\n"
    assert "exit code 0" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0, "for its owner only"


# What may stand in a message of what nobody may read: a variable that is called so, a secret that was added, tokens of
# GitHub and of the hub, a login and a signature in an address, a header.
SECRETS = ["s3cr3t-value!", "secret-value", "ghp_abcdefghijklmnopqrstuvwxyz012345", "hf_abcdefghijklmnopqrstuvwxyz"]
SECRETS += ["https://me:pass-word@proxy:80/x", "https://blob/x?sig=abc%2Fdef&se=1", "Authorization: Bearer abcdef.ghi"]


def test_secrets_are_masked_in_the_log_and_the_message(tmp_path: Path) -> None:
    code = "safe_output.add_secrets(['secret-value'])\ndef flow(): raise ValueError(sys.argv[1])\n"
    code += "sys.exit(exit_handler.run(flow))"
    done = python(START + code, tmp_path, " ".join(SECRETS), MY_TOKEN="s3cr3t-value!", CI_TASKS_DEBUG="1")
    assert done.returncode == 70
    shown = "*** *** *** *** https://***@proxy:80/x https://blob/x?*** Authorization: Bearer ***"
    assert f"ValueError: {shown}\n" in logs(tmp_path)[0].read_text() and f"ValueError: {shown} (" in done.stderr
    assert not [secret for secret in SECRETS[:4] if secret in logs(tmp_path)[0].read_text() + done.stderr]


def test_secrets_of_hosts_yaml_are_masked_whatever_their_names(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("hosts:\n  box:\n    kind: local\n    secrets: [PLAIN_NAME]\n")
    code = "from ci_tasks.run.hosts_files import open_config\n"
    code += "def flow(): open_config(); raise ValueError('it is opensesame')\n"
    env = {"CI_TASKS_HOSTS": str(hosts), "PLAIN_NAME": "opensesame"}
    done = python(f"{START}{code}sys.exit(exit_handler.run(flow))", tmp_path, **env)
    assert f"it is {safe_output.MASK}" in done.stderr
    log = logs(tmp_path)[0].read_text()
    assert f"ValueError: it is {safe_output.MASK}" in log and "opensesame" not in log


def test_old_logs_are_removed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for number in range(MAX_FILES + 5):
        (tmp_path / f"logs/20200101-000000-{number:02d}.log").write_text("")
    python(f"{START}sys.exit(exit_handler.run(lambda: 1 // 0))", tmp_path)
    kept = logs(tmp_path)
    assert len(kept) == MAX_FILES
    assert re.match("20200101-000000-06", kept[0].name)
