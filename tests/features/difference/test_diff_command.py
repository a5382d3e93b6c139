"""`diff` on real runs: the commits between them are named, and so is an image that moved."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.parts import dockerd, registry

ROW = ("precision", "--host", "sim")
WORKFLOW = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-far:
    runs-on: [self-hosted, cpu]
    steps:
      - uses: actions/checkout@v4
      - run: |
          docker run --pull=always --rm IMAGE bash -c 'read -r version < /version; [ "$version" = fast ] || exit 3'
"""


def test_the_commit_that_broke_a_row_is_found_by_the_command_that_is_named(person: Any) -> None:
    assert person.ci_tasks("remote", *ROW).code == 0
    good = person.git("rev-parse", "HEAD").strip()
    person.edit("tiny_slime/train.py", '"train/kl_loss": kl,', '"train/kl_loss": kl + 1.0,')
    person.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "kl plus one")
    assert person.ci_tasks("remote", *ROW).code == 1
    bad = person.git("rev-parse", "HEAD").strip()

    shown = person.ci_tasks("diff", "last")
    assert shown.code == 0, shown.err
    assert f"  {bad[:7]} kl plus one" in shown.out
    assert f"--good {good} --bad {bad}" in shown.out

    difference = person.ci_tasks("diff", "last", "--json").json
    assert [each["axis"] for each in difference["inputs"]] == ["commit", "commit"]
    assert {"packages", "env", "arguments", "machine"} <= set(difference["same"])
    assert ["status", "passed", "failed"] in [
        [each["name"], each["old"], each["new"]] for each in difference["outputs"]
    ]


def _image(version: str) -> bytes:
    """The test image with a file /version."""
    out = io.BytesIO(dockerd.image_tar())
    with tarfile.open(fileobj=out, mode="a") as tar:
        entry = tarfile.TarInfo("version")
        entry.size = len(version)
        tar.addfile(entry, io.BytesIO(version.encode()))
    return out.getvalue()


def test_an_image_that_moved_is_named(person: Any, docker_host: str) -> None:
    with registry.serving(_image("fast\n")) as (old, digest), registry.serving(_image("slow\n")) as (new, _):
        person.write(".github/workflows/pr-test.yml", WORKFLOW.replace("IMAGE", f"{old}:latest"))
        person.env["DOCKER_HOST"] = docker_host
        person.write_hosts(json.dumps({"hosts": {"here": {"kind": "local", "runtime": "docker"}}}))
        person.ci_tasks("remote", "--host", "here", "far")
        person.ci_tasks("remote", "--host", "here", "far", "--image", f"{new}:latest")
        assert person.records()[0]["exit_code"] == 3
        difference = person.ci_tasks("diff", *_last_two(person), "--json").json
        assert [[each["axis"], each["old"]] for each in difference["inputs"]] == [["image", f"{old}@{digest}"]]


def _last_two(person: Any) -> list[str]:
    return [path.name for path in sorted((person.home / "runs").iterdir())][-2:]


def test_runs_are_compared_exactly_and_with_golden_values(person: Any, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    for _ in range(2):
        assert person.ci_tasks("remote", *ROW).code == 0
    same = person.ci_tasks("diff", "last", "--exact")
    assert same.code == 0 and " values, bit for bit)" in same.out, same.out + same.err
    assert person.ci_tasks("diff", "last", "--write-golden", str(golden)).code == 0
    assert person.ci_tasks("diff", "last", "--golden", str(golden), "--tolerance", "0").code == 0

    person.edit("tiny_slime/train.py", '"--lr", type=float, default=0.1', '"--lr", type=float, default=0.2')
    assert person.ci_tasks("remote", *ROW).code == 0
    parted = person.ci_tasks("diff", "last", "--exact")
    assert parted.code == 1 and " at step " in parted.out
    differs = person.ci_tasks("diff", "last", "--golden", str(golden), "--json")
    assert (differs.code, differs.json["outcome"]) == (1, "contradicted")

    person.edit("tiny_slime/train.py", '"train/kl_loss": kl,', '"train/kl_loss": kl + 1.0,')
    assert person.ci_tasks("remote", *ROW).code == 1
    for arguments, message in (
        (["last", "--write-golden", str(golden)], "no golden values"),
        (["last", "last", "--golden", str(golden)], "cannot be combined"),
        (["last", "--tolerance", "0.1"], "--tolerance needs --golden FILE"),
        (["last", "--golden", str(golden), "--tolerance", "x"], "for example --tolerance 0.01, which is 1 %"),
    ):
        result = person.ci_tasks("diff", *arguments)
        assert result.code == 2 and message in result.err
