"""hosts.yaml becomes records; what it says without meaning is an error with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.config import Config, read
from ci_tasks.errors import ConfigError, UnknownName
from ci_tasks.model import HostSpec, Override

FULL = """\
hosts:
  local: {kind: local}
  sim: {kind: local, runtime: none, gpus: 8, simulate: true}
  h100a:
    kind: ssh
    address: h100a.example.com
    runtime: docker
    pull: missing
    mounts: {/mnt/nvme0n1/ci: /data/ci}
    secrets: [WANDB_API_KEY, HF_TOKEN]
    env: {HF_HUB_OFFLINE: 1, DEBUG: true, EMPTY: , RATIO: 0.5, TEXT: "1.0"}
    timeout_minutes: 90
    stall_minutes: 2.5
  cluster:
    {kind: slurm, address: login, partition: h100, gres: "gpu:h100", runtime: pyxis, account: me, qos: high,
    sbatch: [--exclude=node3, "--comment=a b"]}
pools:
  both: [h100a, sim]
  one: local
overrides:
  - {job: cpu-unittest, step: Install, run: "pip install torch"}
  - {job: cpu-unittest, step: Lint, skip: true}
  - job: cpu-unittest
    step: Python
    with: {python-version: "3.11"}
"""


def test_every_key_reaches_its_record() -> None:
    found = read(FULL)
    assert found.hosts == {
        "local": HostSpec("local"),
        "sim": HostSpec("sim", runtime="none", gpus=8, simulate=True),
        "h100a": HostSpec(
            "h100a",
            kind="ssh",
            address="h100a.example.com",
            pull="missing",
            mounts={"/mnt/nvme0n1/ci": "/data/ci"},
            secrets=("WANDB_API_KEY", "HF_TOKEN"),
            env={"HF_HUB_OFFLINE": "1", "DEBUG": "true", "EMPTY": "", "RATIO": "0.5", "TEXT": "1.0"},
            timeout_minutes=90.0,
            stall_minutes=2.5,
        ),
        "cluster": HostSpec(
            "cluster",
            "slurm",
            "login",
            runtime="pyxis",
            partition="h100",
            gres="gpu:h100",
            account="me",
            qos="high",
            sbatch=("--exclude=node3", "--comment=a b"),
        ),
    }
    assert found.pools == {"both": ("h100a", "sim"), "one": ("local",)}
    assert found.overrides == (
        Override("cpu-unittest", "Install", run="pip install torch"),
        Override("cpu-unittest", "Lint", skip=True),
        Override("cpu-unittest", "Python", with_={"python-version": "3.11"}),
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "hosts:\npools:\noverrides:\n", "hosts: {}\noverrides: []\n"])
def test_an_empty_file_has_no_hosts(text: str) -> None:
    assert read(text, "mine.yaml") == Config({}, {}, (), "mine.yaml")


def test_a_host_without_settings_is_this_machine() -> None:
    assert read("hosts:\n  here:\n").hosts == {"here": HostSpec("here")}


def test_the_file_that_ships_is_read() -> None:
    shipped = Path(__file__).parents[1] / "hosts.yaml"
    assert list(read(shipped.read_text(encoding="utf-8")).hosts) == ["local", "sim"]


def test_an_unknown_host_names_the_nearest_and_the_file() -> None:
    with pytest.raises(UnknownName) as caught:
        read(FULL, "mine.yaml").host("h100")
    assert str(caught.value) == (
        "no host 'h100' in mine.yaml; did you mean 'h100a'?\nvalid: cluster, h100a, local, sim"
    )


SLURM = "hosts:\n  a: {kind: slurm, address: login,\n    "
ERRORS = [
    # The file as a whole.
    ("- a\n", 1, "the file is a mapping"),
    ("word\n", 1, "the file is a mapping"),
    ("hosts: {}\nhots: {}\n", 2, "the file has no key 'hots'; did you mean 'hosts'?"),
    ("hosts:\n  a: {kind: local\n", 3, "not YAML"),
    ("hosts:\n  a: {}\n  a: {}\n", 3, "not YAML: the key 'a' stands twice"),
    # A part that is empty in the wrong way is not the same as none.
    ("hosts: []\n", 1, "hosts is a mapping, not []"),
    ("\npools: no\n", 2, "pools is a mapping, not 'no'"),
    ("hosts: {}\npools: 0\n", 2, "pools is a mapping, not 0"),
    ("overrides: {a: b}\n", 1, "overrides is a list"),
    # Hosts: keys, types, choices.
    ("hosts:\n  a: word\n", 2, "host a is a mapping"),
    ("hosts:\n  a,b: {}\n", 2, "the host 'a,b': a name is"),
    ("hosts:\n  a/../b: {}\n", 2, "the host 'a/../b': a name is"),
    ("hosts:\n  a:\n    kind: local\n    adress: x\n", 4, "host a has no key 'adress'; did you mean 'address'?"),
    ("hosts:\n  a:\n    kind: shh\n", 3, "host a: no kind 'shh'; did you mean 'ssh'?"),
    ("hosts:\n  a:\n    kind: zzz\n", 3, "host a: no kind 'zzz'\nvalid: local, ssh, slurm"),
    ("hosts:\n  a:\n    runtime: dokcer\n", 3, "host a: no runtime 'dokcer'; did you mean 'docker'?"),
    ("hosts:\n  a:\n    pull: alway\n", 3, "host a: no pull 'alway'; did you mean 'always'?"),
    ("hosts:\n  a: {kind: ssh}\n", 2, "host a has no address"),
    ("hosts:\n  a: {kind: slurm, address: ''}\n", 2, "host a has no address"),
    ("hosts:\n  a:\n    address: box\n", 3, "host a is this machine (kind local), which has no address"),
    ("hosts:\n  a: {kind: local}\n  b:\n    gres: gpu\n", 4, "host b is this machine (kind local), which has no gres"),
    # What only a cluster has, and what its containers have not.
    ("hosts:\n  a: {kind: ssh, address: b,\n    qos: x}\n", 3, "host a has no Slurm, so no qos\nkind: slurm has"),
    ("hosts:\n  a: {kind: ssh, address: b,\n    runtime: pyxis}\n", 3, "host a: pyxis is a part of Slurm"),
    (
        "hosts:\n  a: {runtime: apptainer,\n    network: bridge}\n",
        3,
        "host a: containers of apptainer have the host's network",
    ),
    (SLURM + "partition: a b}\n", 3, "host a: partition is a name, not 'a b'"),
    (SLURM + "account: ''}\n", 3, "host a: account is a name, not ''"),
    (SLURM + "gres: 'gpu:8'}\n", 3, "gres is a name and a type, not 'gpu:8'\nsuch as gpu or gpu:h100; the count is"),
    (SLURM + "gres: 'gpu:h100:8'}\n", 3, "host a: gres is a name and a type"),
    (SLURM + "sbatch: --exclude=a}\n", 3, "host a: sbatch is a list"),
    (SLURM + "sbatch: [-x]}\n", 3, "sbatch lists options of sbatch, not '-x'\none word each, such as --exclude=node3"),
    (SLURM + "sbatch: [--exclude node3]}\n", 3, "sbatch lists options of sbatch, not '--exclude node3'"),
    (SLURM + 'sbatch: ["--comment=a\\nb"]}\n', 3, "sbatch lists options of sbatch"),
    (SLURM + "sbatch: [--time=5]}\n", 3, "sbatch: --time is set by ci-tasks\nsay it by timeout_minutes"),
    (SLURM + "sbatch: [--gpus=8]}\n", 3, "sbatch: --gpus is set by ci-tasks\nsay it by gres"),
    (SLURM + "sbatch: [--array=1-9]}\n", 3, "sbatch: --array is set by ci-tasks"),
    (SLURM + "sbatch: [--out=x]}\n", 3, "sbatch: --output is set by ci-tasks"),  # sbatch takes that for --output
    ("hosts:\n  a:\n    timeout_minutes: 0\n", 3, "host a: timeout_minutes is more than 0"),
    ("hosts:\n  a:\n    address: 10\n", 3, "host a: address is text, not 10"),
    ("hosts:\n  a:\n    kind:\n", 3, "host a: kind is text, not None"),
    ("hosts:\n  a:\n    gpus: many\n", 3, "host a: gpus is a whole number, not 'many'"),
    ("hosts:\n  a:\n    gpus: 1.5\n", 3, "host a: gpus is a whole number, not 1.5"),
    ("hosts:\n  a:\n    gpus: true\n", 3, "host a: gpus is a whole number, not True"),
    ("hosts:\n  a:\n    gpus: -1\n", 3, "host a: gpus is not negative"),
    ("hosts:\n  a:\n    simulate: yes\n", 3, "host a: simulate is true or false, not 'yes'"),
    ("hosts:\n  a:\n    timeout_minutes: -5\n", 3, "host a: timeout_minutes is not negative"),
    ("hosts:\n  a:\n    stall_minutes: .nan\n", 3, "host a: stall_minutes is not negative"),
    ("hosts:\n  a:\n    stall_minutes: soon\n", 3, "host a: stall_minutes is a number, not 'soon'"),
    ("hosts:\n  a:\n    mounts: [/a, /b]\n", 3, "host a: mounts is a mapping"),
    ("hosts:\n  a:\n    mounts:\n      /a: [/b]\n", 4, "host a: mounts: /a is text"),
    ("hosts:\n  a:\n    env:\n      A: 1\n      B: {C: 1}\n", 5, "host a: env: B is text"),
    # Pools.
    ("pools:\n  p: [a]\n", 2, "pool p: no host 'a'"),
    ("hosts: {h100a: }\npools:\n  p:\n    - h100a\n    - h100b\n", 5, "no host 'h100b'; did you mean 'h100a'?"),
    ("pools:\n  p: []\n", 2, "pool p is a list of hosts"),
    ("pools:\n  p:\n", 2, "pool p is a list of hosts"),
    ("pools:\n  p: {a: b}\n", 2, "pool p is a list of hosts"),
    ("pools:\n  p: [[a]]\n", 2, "pool p is a list of hosts"),
    ("hosts: {a: }\npools:\n  a: [a]\n", 3, "a is a host; a pool has a name of its own"),
    # Overrides.
    ("overrides:\n  - word\n", 1, "an override is a mapping"),
    ("overrides:\n  - {job: a, run: b}\n", 2, "an override names its step"),
    ("overrides:\n  - {step: a, run: b}\n", 2, "an override names its job"),
    ("overrides:\n  - {job: [a], step: b, run: c}\n", 2, "an override names its job"),
    ("overrides:\n  - {job: a, step: b}\n", 2, "an override has one of"),
    ("overrides:\n  - {job: a, step: b, skip: false}\n", 2, "an override has one of"),
    ("overrides:\n  - {job: a, step: b, run: c, skip: true}\n", 2, "an override has one of"),
    ("overrides:\n  - job: a\n    step: b\n    rum: c\n", 4, "an override has no key 'rum'; did you mean 'run'?"),
    ("overrides:\n  - job: a\n    step: b\n    skip: maybe\n", 4, "an override's skip is true, not 'maybe'"),
    ("overrides:\n  - job: a\n    step: b\n    with: x\n", 4, "an override's with is a mapping, not 'x'"),
    ("overrides:\n  - job: a\n    step: b\n    run: [x]\n", 4, "an override's run is text"),
]


@pytest.mark.parametrize(("text", "line", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_what_has_no_meaning_is_an_error_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, "h.yaml")
    assert str(caught.value).startswith(f"h.yaml:{line}: ")
    assert message in str(caught.value)


# Someone will write the value itself. It must not reach a terminal or a CI log.
@pytest.mark.parametrize(
    "secrets",
    ["{HF_TOKEN: hf_verysecret}", "hf_verysecret", '["HF_TOKEN=hf_verysecret"]', "[{HF_TOKEN: hf_verysecret}]"],
)
def test_no_message_repeats_what_stands_under_secrets(secrets: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"hosts:\n  a:\n    secrets: {secrets}\n")
    assert str(caught.value).startswith("hosts.yaml:3: host a: secrets")
    assert "names only" in str(caught.value)
    assert "verysecret" not in str(caught.value)
