"""The `docker` of a run directory, run as CI's scripts run it: a program on PATH, given words, giving an exit code.

The real docker is a stand-in that notes its words and environment and refuses any words it was not told to expect.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.containers import adapter, podman
from ci_tasks.agent.records import DockerInvocation, DockerInvocations
from ci_tasks.agent.run_directory import read_record

ROOT = Path(adapter.__file__).parents[3]
HOSTILE = 'it\'s a "dir"\nwith $(all)'

ADAPTER = """\
#!/bin/sh
exec {python} -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from ci_tasks.agent.containers.adapter import main
sys.exit(main(sys.argv[2:], sys.argv[1]))' {root} {run_dir} "$@"
"""
REAL = """\
#!/bin/sh
printf '%s\\0' "$@" > "$FAKE/got.$$"
env -0 > "$FAKE/env"
ls "$FAKE" | grep -q expected || exit 98
cmp -s "$FAKE/got.$$" "$FAKE/expected" || [ -e "$FAKE/expected.any" ] || { echo "unexpected words: $*" >&2; exit 99; }
echo "real ${0##*/} ran"
exit 7
"""
REAL_EXIT = 7


class Host:
    """A host with a run directory, and with a stand-in for its docker and podman."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_dir = root / "run dir's"
        self.fake = root / "fake"
        self.real = root / "real bin"
        for directory in (self.run_dir / "bin", self.fake, self.real):
            directory.mkdir(parents=True)
        values = {"python": sys.executable, "root": str(ROOT), "run_dir": str(self.run_dir)}
        quoted = {key: shlex.quote(word) for key, word in values.items()}
        self._program(self.run_dir / "bin" / "docker", ADAPTER.format(**quoted))
        for name in ("docker", "podman"):
            self._program(self.real / name, REAL)
        self.environ = {
            "PATH": os.pathsep.join([str(self.run_dir / "bin"), str(self.real), "/usr/bin", "/bin"]),
            "FAKE": str(self.fake),
            "HOME": str(root),
        }

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def rules(self, **container: Any) -> None:
        (self.run_dir / "plan.json").write_text(json.dumps({"container": container}))

    def expect(self, *args: str) -> None:
        (self.fake / "expected").write_bytes(b"".join(word.encode() + b"\0" for word in args))

    def docker(self, *args: str | bytes, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *args],
            env={**self.environ, **environ},
            cwd=self.root,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            executable=str(self.run_dir / "bin" / "docker"),
        )

    def journal(self) -> Sequence[DockerInvocation]:
        record = read_record(DockerInvocations, str(self.run_dir / "docker.json"))
        return record.calls if record is not None else ()

    def events(self) -> list[tuple[str, str | None]]:
        path = self.run_dir / "events.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        assert all(event["t"] > 0 for event in events)
        return [(event["event"], event.get("name", event.get("image"))) for event in events]

    def seen_environment(self) -> dict[str, str]:
        entries = (self.fake / "env").read_text().split("\0")
        return {name: value for name, _, value in (entry.partition("=") for entry in entries if entry)}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / HOSTILE)


def _blocked(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("ci-tasks: blocked: ")
    for part in parts:
        assert part in done.stderr


def test_the_real_docker_gets_the_rewritten_words_and_its_exit_code_is_ours(host: Host) -> None:
    data = host.root / "data"
    data.mkdir()
    host.rules(name="ci-7", mounts={"/mnt/x": str(host.root)}, pull="never", image={"img": "img@sha256:1"})
    volume = f"{data}:/d"
    here = ["run", "--pull=never", "-v", volume, "--name", "ci-7", "--init", "img@sha256:1", "sh", "-c", "a\nb"]
    host.expect(*here)
    ci = ["run", "--rm", "--pull=always", "-v", "/mnt/x/data:/d", "img", "sh", "-c", "a\nb"]
    done = host.docker(*ci)
    assert (done.returncode, done.stdout, done.stderr) == (REAL_EXIT, "real docker ran\n", "")
    (entry,) = host.journal()
    assert (list(entry.ci), list(entry.here), entry.name, entry.runtime) == (ci, here, "ci-7", "docker")
    assert [d.what for d in entry.deviations] == ["mount /mnt/x/data", "pull", "image", "name", "rm", "init"]


def test_the_stand_in_refuses_words_that_nobody_expects(host: Host) -> None:
    host.rules()
    host.expect("run", "img")
    assert host.docker("run", "img").returncode == 99  # --init is missing in what is expected


def test_podman_runs_where_the_host_says_so(host: Host) -> None:
    host.rules(runtime="podman")
    init = podman.init_options(which=lambda name: shutil.which(name, path=host.environ["PATH"]))
    options = ["--device", "nvidia.com/gpu=all", *[word for item in init for word in item.argv], "--http-proxy=false"]
    host.expect("container", "run", *options, "--pids-limit", "-1", "docker.io/library/img")
    done = host.docker("container", "run", "--gpus", "all", "img")
    assert (done.returncode, done.stdout) == (REAL_EXIT, "real podman ran\n")
    assert host.journal()[0].runtime == "podman"


def test_secrets_reach_the_container_through_the_environment_only(host: Host) -> None:
    host.rules(env={"OUR_TOKEN": "t0p"})
    host.expect("run", "-e", "HF_TOKEN", "--init", "-e", "OUR_TOKEN", "img")
    assert host.docker("run", "-e", "HF_TOKEN=s3cret", "img").returncode == REAL_EXIT
    environment = host.seen_environment()
    assert (environment["OUR_TOKEN"], environment["HF_TOKEN"]) == ("t0p", "s3cret")
    text = (host.run_dir / "docker.json").read_text()
    assert "t0p" not in text
    assert "s3cret" not in text


def test_concurrent_runs_of_one_script_are_all_recorded_under_different_names(host: Host) -> None:
    host.rules(name="ci")
    (host.fake / "expected.any").touch()
    running = [
        subprocess.Popen(
            [str(host.run_dir / "bin" / "docker"), "run", "img", str(number)],
            env=host.environ,
            stdout=subprocess.DEVNULL,
        )
        for number in range(8)
    ]
    assert [process.wait(20) for process in running] == [REAL_EXIT] * 8
    entries = host.journal()
    assert sorted(entry.ci[-1] for entry in entries) == [str(number) for number in range(8)]
    assert [entry.name for entry in entries] == ["ci", *(f"ci-{number}" for number in range(2, 9))]


def test_a_start_and_a_pull_that_is_certain_are_events(host: Host) -> None:
    (host.fake / "expected.any").touch()
    host.rules(name="ci", image={"img": "img@sha256:1"})
    host.docker("pull", "--quiet", "other")
    host.docker("run", "--pull=always", "img")
    host.docker("run", "img", "pull")
    host.docker("ps")
    host.docker("run", "-v", "/no/such:/d", "img")
    starts = [("pull", "img@sha256:1"), ("container", "ci"), ("container", "ci-2")]
    assert host.events() == [("pull", "other"), *starts]


def test_what_cannot_be_put_on_record_does_not_start(host: Host) -> None:
    """A container that nobody knows of would be left behind. A directory in the record's place stands for a full
    disk."""
    host.rules()
    (host.run_dir / "docker.json").mkdir()
    _blocked(host.docker("run", "img"), "docker.json cannot be written")
    assert not (host.fake / "env").exists()


def test_it_never_finds_itself_even_through_a_link(host: Host, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(host.run_dir / "bin")
    host.rules()
    host.expect("run", "--init", "img")
    path = os.pathsep.join([str(link), str(host.run_dir / "bin"), str(host.real), "/usr/bin", "/bin"])
    assert host.docker("run", "img", PATH=path).stdout == "real docker ran\n"
    _blocked(host.docker("run", "img", PATH=str(link)), "no docker on PATH", "runtime: none")


@pytest.mark.parametrize("source", ["/no/such dir", '/no/such\n"dir"\'s'])
@pytest.mark.parametrize("spelling", ["-v", "--mount"])
def test_a_missing_mount_source_blocks_and_names_the_line_to_add(host: Host, spelling: str, source: str) -> None:
    host.rules()
    fields = '"src=' + source.replace('"', '""') + '"'
    value = f"{source}:/d" if spelling == "-v" else f"type=bind,{fields},dst=/d"
    _blocked(host.docker("run", spelling, value, "img"), repr(source), f"hosts.yaml: mounts: {{{source}: DIR}}")
    assert host.journal() == ()


BAD_PLANS = [
    (None, "has no `container` rules"),
    ("{}", "has no `container` rules"),
    ("{nope", "not JSON"),
    ('{"container": {"mounts": []}}', "plan.json: container.mounts: expected object, got list"),
]


@pytest.mark.parametrize(("text", "message"), BAD_PLANS)
def test_a_plan_that_cannot_be_read_blocks(host: Host, text: str | None, message: str) -> None:
    if text is not None:
        (host.run_dir / "plan.json").write_text(text)
    _blocked(host.docker("run", "img"), message)


# -- runtime: none, for real -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(host: Host) -> Host:
    host.rules(runtime="none", env={"OURS": "o"})
    return host


def test_without_containers_the_inner_command_runs_here_with_its_exit_code(bare: Host) -> None:
    ci = [
        "run",
        "--rm",
        "--gpus",
        "all",
        "-w",
        str(bare.fake),
        "-v",
        "/mnt/x:/no/where",
        "img",
        "sh",
        "-c",
        "pwd; exit 3",
    ]
    done = bare.docker(*ci)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{bare.fake}\n", "")
    (entry,) = bare.journal()
    assert (list(entry.ci), list(entry.here), entry.name) == (ci, ["sh", "-c", "pwd; exit 3"], None)
    assert [d.what for d in entry.deviations] == ["container", "mount /no/where", "container flags"]


NOT_WITHOUT = [
    (["run", "img"], "the default command of img is unknown without docker"),
    (["run", "-d", "img", "ls"], "--detach needs a container"),
    (["run", "-w", "/no/such dir", "img", "ls"], "working directory '/no/such dir'"),
    (["run", "-w", "relative", "img", "ls"], "working directory 'relative'"),
    (["run", "--env-file", "/no/file", "img", "ls"], "--env-file '/no/file': No such file or directory"),
    (["exec", "box", "ls"], "docker exec needs docker, and this host's runtime is none"),
    (["image", "rm", "x"], "docker image needs docker"),
    ([], "docker (no subcommand) needs docker"),
]


@pytest.mark.parametrize(("args", "message"), NOT_WITHOUT, ids=[" ".join(args) for args, _ in NOT_WITHOUT])
def test_what_needs_a_container_is_blocked_without_one(bare: Host, args: list[str], message: str) -> None:
    _blocked(bare.docker(*args), message)
    assert bare.journal() == ()


@pytest.mark.parametrize("args", [["pull", "img"], ["image", "pull", "img"], ["login", "--password-stdin"], ["logout"]])
def test_pull_login_and_logout_do_nothing_and_say_so_in_one_line(bare: Host, args: list[str]) -> None:
    done = bare.docker(*args, stdin="pw")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert "nothing to do, this host's runtime is none" in done.stderr
    assert "blocked" not in done.stderr  # the judge reads that word as a verdict
    (entry,) = bare.journal()
    assert (list(entry.ci), list(entry.here), entry.deviations[0].here) == (args, [], "nothing done")


def test_a_command_that_is_missing_or_no_program_gives_dockers_exit_codes(bare: Host) -> None:
    assert bare.docker("run", "img", "no-such-command").returncode == 127
    assert bare.docker("run", "img", str(bare.root)).returncode == 126
