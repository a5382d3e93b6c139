"""What this process knows of secrets, and that nothing which it prints has one."""

from __future__ import annotations

import base64
import sys

import pytest

from ci_tasks import known_secrets
from ci_tasks.cli import exit_handler
from ci_tasks.errors import UsageError

SECRET = "correct-horse"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in known_secrets.secret_variables():
        monkeypatch.delenv(name)


def test_variables_that_a_plan_names_are_known_as_far_as_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_NAME", SECRET)
    known_secrets.add_variables(["PLAIN_NAME", "NOT_SET"])
    assert known_secrets.values() == [SECRET]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HF_TOKEN", SECRET, [SECRET]),
        ("MY_API_KEY", SECRET, [SECRET]),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json", []),  # a path says nothing
        ("HF_TOKEN", "", []),
        ("KEYBOARD", "qwerty", []),
    ],
)
def test_a_variable_is_a_secret_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: list[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert known_secrets.values() == expected


def test_encoded_forms_are_masked_as_on_a_host() -> None:
    known_secrets.add([SECRET])
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert known_secrets.masked(f"{SECRET} {encoded}") == "*** ***Q=="  # the last character depends on what follows
    assert known_secrets.masked("nothing") == "nothing"


def _print(text: str) -> int:
    print(text)
    print(text, file=sys.stderr)
    return 0


def _fail(text: str) -> int:
    raise UsageError(text, hint=text)


def _break(text: str) -> int:
    raise RuntimeError(["docker", "login", "-p", text])


@pytest.mark.parametrize("command", [_print, _fail, _break])
def test_no_command_shows_a_secret_nor_does_an_error_of_it(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    known_secrets.add([SECRET])
    exit_handler.run(lambda: command(f"it is {SECRET}"))  # type: ignore[operator]
    said = "".join(capsys.readouterr())
    assert SECRET not in said
