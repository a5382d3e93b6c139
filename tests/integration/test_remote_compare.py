"""`compare` over a real sshd: a client that is killed loses no run, a cut link none either, and the word is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import fixtures as support

HOSTS = "hosts: {box: {kind: ssh, address: box, runtime: none}}\n"
WORKFLOW = """\
on: pull_request
jobs:
  e2e-test-words:
    runs-on: [self-hosted, cpu]
    steps:
      - uses: actions/checkout@v4
      - run: touch "MARK"; sleep 0.3; python3 tests/words.py
"""


def test_a_comparison_goes_on_after_a_killed_client_and_a_cut_link(person: Any, sshd: Any, tmp_path: Path) -> None:
    box, mark, hosts = sshd.start("box"), tmp_path / "begun", tmp_path / "hosts.yaml"
    hosts.write_text(HOSTS)
    person.env.update(sshd.env, CI_TASKS_HOSTS=str(hosts))
    person.write(".github/workflows/pr-test.yml", WORKFLOW.replace("MARK", str(mark)))
    person.write("tests/words.py", "print('step 0: loss 0.5')\n")
    person.git("add", "--all")
    person.git("-c", "user.name=s", "-c", "user.email=s@example.com", "commit", "--quiet", "--message=base")
    person.write("tests/words.py", "raise ValueError('no words')\n")
    words = ("compare", "words", "--base", "HEAD", "--host", "box", "--json")

    killed = person.start(*words)
    support.until(lambda: any(person.home.glob("runs/*/01/record.json")), "one run has ended")
    killed.kill()
    killed.communicate()
    before = len(list(person.home.glob("runs/*/01/record.json")))
    mark.unlink()

    client = person.start(*words)
    support.until(mark.exists, "a row runs")
    box.kill_children()
    output, _ = client.communicate()
    row = json.loads(output[output.index("{") :])["rows"][0]
    assert (client.returncode, row["verdict"]) == (1, "yours")
    assert row["yours"]["failed"] == row["yours"]["runs"] and not row["base"]["failed"]
    assert row["yours"]["from_history"] + row["base"]["from_history"] == before
    assert not row["yours"]["inconclusive"] and not row["base"]["inconclusive"]
