"""The tree that was sent is the tree that runs, also after a job that rewrites what later runs are made of."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

# Gives `helper.py` another content under the same name in every pack below a directory: git reads it without complaint.
ATTACK = """
import glob, os, random, re, subprocess, sys, zlib
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import helper
print("step 0: {'x': 1}")
print("helper is", helper.WORD)
honest = open(helper.__file__, "rb").read()
name = subprocess.run(["git", "hash-object", helper.__file__], capture_output=True, text=True).stdout.strip()
for pack in glob.glob(os.path.abspath("PACKS")):
    listed = subprocess.run(["git", "verify-pack", "-v", pack], capture_output=True, text=True).stdout
    place = re.search(name + r" blob +[0-9]+ [0-9]+ ([0-9]+)", listed)
    if place is None:
        continue
    content = open(pack, "rb").read()
    start = int(place[1])
    while content[start] & 0x80:
        start += 1
    start += 1
    stream = zlib.decompressobj()
    assert stream.decompress(content[start:]) == honest
    size = len(content) - start - len(stream.unused_data)
    for _ in range(10_000):
        forged = honest.replace(b"honest", b"forged")[:-65] + b"%064x\\n" % random.getrandbits(256)
        compressed = zlib.compress(forged, 1)
        if len(compressed) == size:
            break
    else:
        sys.exit("no content has the same length when it is compressed")
    os.chmod(pack, 0o644)
    with open(pack, "r+b") as out:
        out.seek(start)
        out.write(compressed)
    print("attacked", pack)
"""


INJECTION = """

import sysconfig, pathlib
pathlib.Path(sysconfig.get_path("purelib"), "sitecustomize.py").write_text("print('forged')")
"""


@pytest.fixture
def far_person(person: Any, sshd: Any) -> Any:
    sshd.start("box")
    person.env.update(sshd.env)
    hosts = person.home.with_name("hosts.yaml")
    hosts.write_text("hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}}\n")
    person.env["CI_TASKS_HOSTS"] = str(hosts)
    return person


@pytest.mark.parametrize(
    "packs", [".git/objects/pack/*.pack", "../../../../store.git/objects/pack/*.pack"], ids=["its own", "the store's"]
)
def test_a_job_that_rewrites_git_objects_does_not_change_what_the_next_run_executes(
    far_person: Any, packs: str
) -> None:
    person = far_person
    person.write("tests/helper.py", f'WORD = "honest"  # {hashlib.sha256().hexdigest()}\n')
    person.write("tests/test_tiny_ckpt.py", ATTACK.replace("PACKS", packs))
    for number in range(2):
        said = person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async")
        assert said.code == 0, said.out + said.err
        assert "helper is honest" in said.out
        assert "attacked" in said.out, f"run {number} was the attack that it should be"


def test_what_a_row_writes_into_its_venv_reaches_no_later_row(far_person: Any) -> None:
    """Each row has a venv of its own over that of the install steps."""
    test = far_person.checkout / "tests/test_agent/test_tool_calls.py"
    test.write_text(test.read_text() + INJECTION)
    result = far_person.ci_tasks("remote", "--host", "box", "agent-test", "--jobs", "1")
    assert result.code == 0, result.out + result.err
    assert [record["status"] for record in far_person.records()] == ["passed", "passed"]
    assert "forged" not in "".join(far_person.logs().values())
