"""hosts.yaml becomes records; what it says without meaning is an error with its line."""

from __future__ import annotations

import pytest

from ci_tasks.config import Config, ConfigLayer, HostSpec, Override, includes, read
from ci_tasks.errors import ConfigError, UnknownName

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
  - {job: cpu-unittest, step: Torch, pip_index: default, replace: {torch==2.9.1+cu128: torch==2.9.1}}
"""


def test_simulated_gpus_are_eight_unless_it_says_otherwise() -> None:
    hosts = read("hosts: {a: {simulate: true}, b: {simulate: true, gpus: 2}, c: {simulate: false}}").hosts
    assert [hosts[name].gpus for name in "abc"] == [8, 2, None]


def test_every_key_is_read() -> None:
    config = read(FULL)
    assert config.hosts == {
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
    assert config.pools == {"both": ("h100a", "sim"), "one": ("local",)}
    assert config.overrides == (
        Override("cpu-unittest", "Install", run="pip install torch"),
        Override("cpu-unittest", "Lint", skip=True),
        Override("cpu-unittest", "Python", with_={"python-version": "3.11"}),
        Override("cpu-unittest", "Torch", pip_index="default", replace={"torch==2.9.1+cu128": "torch==2.9.1"}),
    )
    assert config.overrides[2].source == "hosts.yaml:23"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "hosts:\npools:\noverrides:\n", "hosts: {}\noverrides: []\n"])
def test_an_empty_file_has_no_hosts(text: str) -> None:
    assert read(text, "mine.yaml") == Config({}, {}, (), "mine.yaml")


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("include: lab.yaml", ["lab.yaml"]), ("include: [a, git@b:c.git]", ["a", "git@b:c.git"])],
)
def test_a_file_may_include_others(text: str, names: list[str]) -> None:
    assert includes(ConfigLayer(text)) == names


def test_what_is_included_is_named_by_text() -> None:
    with pytest.raises(ConfigError, match=r"hosts.yaml:2: include must be a path"):
        includes(ConfigLayer("hosts:\ninclude: [{a: b}]"))


def test_no_message_repeats_a_login_in_an_index() -> None:
    with pytest.raises(ConfigError, match="must not contain a login") as caught:
        read("overrides: [{job: a, step: b, pip_index: 'https://me:verysecret@mirror/simple'}]")
    assert "verysecret" not in str(caught.value)
    assert "`pip_index: default`" in caught.value.hint


def test_an_unknown_host_suggests_the_nearest_and_names_the_file() -> None:
    with pytest.raises(UnknownName) as caught:
        read(FULL, "mine.yaml").host("h100")
    assert str(caught.value) == (
        "unknown host 'h100' in mine.yaml; did you mean 'h100a'?\nvalid: cluster, h100a, local, sim"
    )


@pytest.mark.parametrize(("name", "added"), [("h100a", "h100a"), ("a b: {x", "h100a")])
def test_without_a_gpu_host_an_unknown_one_comes_with_what_to_add(name: str, added: str) -> None:
    with pytest.raises(UnknownName) as caught:
        read("hosts: {local: {kind: local}}").select_hosts(name)
    text = caught.value.hint.partition("hosts.yaml:\n")[2]
    assert read(text).hosts[added].kind == "ssh"


SLURM = "hosts:\n  a: {kind: slurm, address: login,\n    "
ERRORS = [
    # The file as a whole.
    ("- a\n", 1, "the file must be a mapping"),
    ("hosts: {}\nhots: {}\n", 2, "unknown key 'hots'; did you mean 'hosts'?"),
    ("hosts:\n  a: {kind: local\n", 3, "invalid YAML"),
    ("hosts:\n  a: {}\n  a: {}\n", 3, "invalid YAML: duplicate key 'a'"),
    # A part that is empty in the wrong way is not the same as none.
    ("hosts: []\n", 1, "hosts must be a mapping"),
    ("hosts: {}\npools: 0\n", 2, "pools must be a mapping"),
    ("overrides: {a: b}\n", 1, "overrides must be a list"),
    # Hosts: keys, types, choices.
    ("hosts:\n  a: word\n", 2, "host a must be a mapping"),
    ("hosts:\n  a,b: {}\n", 2, "invalid host name 'a,b'\nletters"),
    ("hosts:\n  a:\n    kind: local\n    adress: x\n", 4, "host a: unknown key 'adress'; did you mean 'address'?"),
    ("hosts:\n  a:\n    user: me\n", 3, "host a: unknown key 'user'\nput them into address: user@host:port, or"),
    ("hosts:\n  a:\n    kind: shh\n", 3, "host a: invalid kind\nvalid: local, ssh, slurm"),
    ("hosts:\n  a:\n    runtime: dokcer\n", 3, "host a: invalid runtime\nvalid: docker, "),
    ("hosts:\n  a: {kind: ssh}\n", 2, "host a: kind ssh requires an address"),
    ("hosts:\n  a: {kind: slurm, address: ''}\n", 2, "host a: kind slurm requires an address"),
    ("hosts:\n  a:\n    address: box\n", 3, "host a: address is only valid with kind ssh or slurm\nuse kind: ssh"),
    ("hosts:\n  a: {kind: local}\n  b:\n    gres: gpu\n", 4, "host b: gres is only valid with kind slurm"),
    # What only a cluster has, and what its containers have not.
    ("hosts:\n  a: {kind: ssh, address: b,\n    qos: x}\n", 3, "host a: qos is only valid with kind slurm"),
    (
        "hosts:\n  a: {kind: ssh, address: b,\n    runtime: pyxis}\n",
        3,
        "host a: runtime pyxis is only valid with kind slurm",
    ),
    (
        "hosts:\n  a: {runtime: apptainer,\n    network: bridge}\n",
        3,
        "host a: containers of apptainer use the host's network",
    ),
    (SLURM + "partition: a b}\n", 3, "host a: invalid partition"),
    (SLURM + "account: ''}\n", 3, "host a: invalid account"),
    (
        SLURM + "gres: 'gpu:8'}\n",
        3,
        "invalid gres\na name and perhaps a type, such as gpu or gpu:h100; the count",
    ),
    (SLURM + "sbatch: --exclude=a}\n", 3, "host a: sbatch must be a list"),
    (SLURM + "sbatch: [-x]}\n", 3, "invalid sbatch\none word for each option, such as --exclude=node3"),
    (SLURM + 'sbatch: ["--comment=a\\nb"]}\n', 3, "invalid sbatch"),
    (SLURM + "sbatch: [--time=5]}\n", 3, "sbatch option --time is set by ci-tasks\nkeys of the host: partition"),
    (SLURM + "sbatch: [--gpus=8]}\n", 3, "sbatch option --gpus is set by ci-tasks"),
    (SLURM + "sbatch: [--out=x]}\n", 3, "sbatch option --output is set by ci-tasks"),  # sbatch takes that for --output
    ("hosts:\n  a:\n    timeout_minutes: 0\n", 3, "host a: timeout_minutes must be more than 0"),
    ("hosts:\n  a:\n    kind:\n", 3, "host a: kind must be text"),
    ("hosts:\n  a:\n    gpus: true\n", 3, "host a: gpus must be a whole number"),
    ("hosts:\n  a:\n    gpus: -1\n", 3, "host a: gpus must be more than 0"),
    ("hosts:\n  a:\n    persist: false\n", 3, "host a: persist is only valid with kind ssh or slurm"),
    ("hosts:\n  a:\n    simulate: yes\n", 3, "host a: simulate must be true or false"),
    ("hosts:\n  a:\n    stall_minutes: .nan\n", 3, "host a: stall_minutes must be a number"),
    ("hosts:\n  a:\n    mounts: [/a, /b]\n", 3, "host a: mounts must be a mapping"),
    ("hosts:\n  a:\n    mounts:\n      /a: [/b]\n", 3, "host a: invalid mounts\nabsolute paths without a colon"),
    ("hosts:\n  a:\n    mounts:\n      /a: /b:c\n", 4, "host a: invalid mounts"),
    ("hosts:\n  a:\n    env:\n      A: 1\n      B: {C: 1}\n", 5, "host a: env: B must be text"),
    # Pools.
    ("pools:\n  p: [a]\n", 2, "pool p: unknown host 'a'"),
    ("hosts: {h100a: }\npools:\n  p:\n    - h100a\n    - h100b\n", 5, "unknown host 'h100b'; did you mean 'h100a'?"),
    ("pools:\n  p: []\n", 2, "pool p must be a list of hosts"),
    ("hosts: {a: }\npools:\n  a: [a]\n", 3, "pool a has the same name as a host"),
    # Overrides.
    ("overrides:\n  - word\n", 1, "an override must be a mapping"),
    ("overrides:\n  - {job: a, run: b}\n", 2, "override: missing step"),
    ("overrides:\n  - {job: [a], step: b, run: c}\n", 2, "override: job must be text"),
    ("overrides:\n  - {job: a, step: b}\n", 2, "override: exactly one of"),
    ("overrides:\n  - {job: a, step: b, run: c, skip: true}\n", 2, "override: exactly one of"),
    ("overrides:\n  - {vars: {A: b}}\n", 2, "override: unknown key 'vars'"),
    ("overrides:\n  - job: a\n    step: b\n    skip: maybe\n", 4, "override: skip must be true or false"),
    ("overrides:\n  - {job: a, step: b, replace: {c: [d]}}\n", 2, "override: replace: c must be text"),
]


@pytest.mark.parametrize(("text", "line", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_an_invalid_file_is_an_error_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, "h.yaml")
    assert str(caught.value).startswith(f"h.yaml:{line}: ")
    assert message in str(caught.value)


# Someone will write the value itself. It must not reach a terminal or a CI log.
@pytest.mark.parametrize(
    "secrets",
    ["{HF_TOKEN: hf_verysecret}", "hf_verysecret", '["HF_TOKEN=hf_verysecret"]', "[{HF_TOKEN: hf_verysecret}]"],
)
def test_no_message_repeats_values_under_secrets(secrets: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"hosts:\n  a:\n    secrets: {secrets}\n")
    assert str(caught.value).startswith("hosts.yaml:3: host a: ")
    assert "names only" in str(caught.value)
    assert "verysecret" not in str(caught.value)
