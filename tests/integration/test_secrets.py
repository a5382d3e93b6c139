"""A job that writes its secrets wherever it can reach: none of them is in what leaves the host, what the client keeps,
or what any command shows."""

from __future__ import annotations

import base64
import html
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# place → the Python that writes the secret `value` there; `run` is the run directory
PLACES = {
    "STDOUT": "print('out', value, flush=True)",
    "STDERR": "print('err', value, file=sys.stderr, flush=True)",
    "BASE64": "print('encoded', base64.b64encode(b'ab' + value.encode()).decode(), flush=True)",
    "QUOTED": "print('encoded', json.dumps({'url': urllib.parse.quote(value, safe='')}), repr(value), flush=True)",
    "SPLIT": "os.write(1, value[:9].encode()); time.sleep(0.1); os.write(1, value[9:].encode() + b'\\n')",
    "ASSERTION": "junit += f'<failure message={attribute(value)}>E  assert {escape(repr(value))}</failure>'",
    "TEST_NAME": "names.append(value)",
    "PROPERTY": "junit += f'<system-out>{escape(value)}</system-out>'",
    "OUTPUT": "append(os.environ['GITHUB_OUTPUT'], f'token={value}')",
    "SUMMARY": "append(os.environ['GITHUB_STEP_SUMMARY'], f'the token is {value}')",
    "LATER": "append(os.environ['GITHUB_ENV'], f'TOKEN={value}')",
    "ARTIFACT": "write('artifacts/a.txt', f'here: {value}')",
    "BINARY": "write('artifacts/b.bin', '\\0\\1' + value + '\\2')",
    "FILE_NAME": "write(f'artifacts/{value}.txt', 'nothing')",
    "DIRECTORY": "write(f'artifacts/{value}/c.txt', 'nothing')",
    "EVENT": "append(run / 'events.jsonl', json.dumps({'t': time.time(), 'event': 'step', 'name': value}))",
    "COLLECTED": "write_to('/tmp/ci-tasks-test-secrets/d.txt', value)",
    "ARGV": "subprocess.Popen(['sleep', '300', value], stderr=subprocess.DEVNULL)",
    "DOCKER": "subprocess.run(['docker', 'run', '-e', f'SETTING={value}', 'image', 'true'])",
    "REASON": "last = f'RuntimeError: bad token {value}'",
}
JOB = """\
import base64, json, os, subprocess, sys, time, urllib.parse
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr as attribute

run, junit, names, last = Path(os.environ["CI_TASKS_RUN_DIR"]), "", [], ""

def write_to(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)

def write(name, text):
    write_to(run / name, text)

def append(path, text):
    with open(path, "a") as out:
        out.write(text + "\\n")

"""
END = """
write("artifacts/junit.xml", f'<testsuite tests="1" failures="1"><testcase classname="t" name={attribute(names[0])}>'
      + junit + '</testcase></testsuite>')
print(last, file=sys.stderr, flush=True)
sys.exit(3)
"""


def secret_of(place: str) -> str:
    number = list(PLACES).index(place)
    middle = "k9Zr7Lw4TpB8Qx2V" + chr(ord("a") + number) * 2 + "m3N"
    quote = "" if place in ("FILE_NAME", "DIRECTORY", "EVENT") else "'\"&<"
    return f"Ab{quote}{middle}"


WORKFLOW = """\
on: pull_request
jobs:
  leaky:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - id: first
        run: |
          python3 tests/leak.py
"""


@pytest.fixture
def leaky(person: Any) -> Any:
    """In a checkout whose test writes each secret to its place, and fails."""
    lines = [f"value = os.environ['SECRET_{place}']\n{code}\n" for place, code in PLACES.items()]
    person.write("tests/leak.py", JOB + "".join(lines) + END)
    person.write(".github/workflows/pr-test.yml", WORKFLOW)
    person.env.update({f"SECRET_{place}": secret_of(place) for place in PLACES})
    return person


def use(person: Any, host: str) -> None:
    names = ", ".join(f"SECRET_{place}" for place in PLACES)
    keys = f"{host}, runtime: none, secrets: [{names}], artifacts: [/tmp/ci-tasks-test-secrets]"
    person.write_hosts(f"hosts: {{box: {{{keys}}}}}\n")


def leaks(data: bytes) -> list[str]:
    """The places whose secret is in `data`, as it is or encoded."""
    text = data.decode("utf-8", "replace")
    views = {text, html.unescape(text), urllib.parse.unquote(text), re.sub(r"\\(.)", r"\1", text)}
    found = []
    for place in PLACES:
        middle = secret_of(place)[-21:]
        encoded = [base64.b64encode(b"\0" * offset + middle.encode())[4:-4].decode() for offset in range(3)]
        if any(form in view for form in [middle, middle.encode().hex(), *encoded] for view in views):
            found.append(place)
    return found


def leaky_files(top: Path) -> dict[str, list[str]]:
    paths = list(top.rglob("*"))
    files = {str(path.relative_to(top)): path.read_bytes() for path in paths if path.is_file()}
    return {name: found for name, data in files.items() if (found := leaks(name.encode() + b"\n" + data))}


@contextmanager
def argv_sampled() -> Iterator[set[str]]:
    """The places whose secrets are in an argv while the block runs, but those that the job itself puts there."""
    found: set[str] = set()
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    found.update(leaks(path.read_bytes()))
                except OSError:
                    continue

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found -= {"ARGV", "DOCKER"}


def shown_by_every_command(person: Any, host: str) -> dict[str, list[str]]:
    """What each command shows of the secrets, `remote` first."""
    page, junit = person.home / "page.html", person.home / "out.xml"
    said = person.ci_tasks("remote", "--host", host, "leaky")
    assert said.code == 1, said.out + said.err
    shown = {"remote": leaks((said.out + said.err).encode())}
    (log,) = person.home.glob("runs/*/01/log")
    for command in [
        ("runs",),
        ("runs", "--json"),
        ("logs", "last"),
        ("attach", "last"),
        ("report", "last", "--html", str(page)),
        ("report", "last", "--markdown", "--junit", str(junit)),
        ("report", "last"),
        ("triage", str(log)),
    ]:
        said = person.ci_tasks(*command)
        shown[" ".join(command[:3])] = leaks((said.out + said.err).encode())
    return {command: found for command, found in shown.items() if found}


def test_a_job_on_a_box_shows_none_of_its_secrets(leaky: Any, sshd: Any) -> None:
    """Nor does the debug log."""
    box = sshd.start("box")
    leaky.env.update(sshd.env, CI_TASKS_DEBUG="1")
    use(leaky, "kind: ssh, address: box")
    with argv_sampled() as argvs:
        shown = shown_by_every_command(leaky, "box")
    (record,) = leaky.records()
    assert (record["status"], record["exit_code"]) == ("failed", 3), record["reason"]
    assert shown == {}
    assert leaky_files(leaky.home) == {}
    assert list(leaky.home.glob("logs/*.log"))
    assert leaky_files(box.home) == {}
    assert argvs == set()
