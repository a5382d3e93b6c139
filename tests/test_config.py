"""hosts.yaml becomes records; what it says without meaning is an error with its line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from ci_tasks import config, resources
from ci_tasks.config import Config, ConfigLayer, HostSpec, Override, read, read_layers
from ci_tasks.errors import ConfigError, UnknownName, UsageError
from tests.parts.cases import cases, named

CASES = cases("./data/config.yaml")

FULL = (Path(__file__).parent / "data/every-key.yaml").read_text()


def test_simulated_gpus_are_eight_unless_it_says_otherwise() -> None:
    hosts = read("hosts: {a: {simulate: true}, b: {simulate: true, gpus: 2}, c: {simulate: false}}").hosts
    assert [hosts[name].gpus for name in "abc"] == [8, 2, None]


def test_every_key_is_read() -> None:
    config = read(FULL)
    h100a = HostSpec(
        "h100a", kind="ssh", address="h100a.example.com", pull="missing", mounts={"/mnt/nvme0n1/ci": "/data/ci"},
        secrets=("WANDB_API_KEY", "HF_TOKEN"),
        env={"HF_HUB_OFFLINE": "1", "DEBUG": "true", "EMPTY": "", "RATIO": "0.5", "TEXT": "1.0"},
        timeout_minutes=90.0, stall_minutes=2.5,
    )  # fmt: skip
    cluster = HostSpec(
        "cluster", "slurm", "login", runtime="pyxis", partition="h100", gres="gpu:h100", account="me", qos="high",
        sbatch=("--exclude=node3", "--comment=a b"),
    )  # fmt: skip
    sim = HostSpec("sim", runtime="none", gpus=8, simulate=True)
    assert config.hosts == {"local": HostSpec("local"), "sim": sim, "h100a": h100a, "cluster": cluster}
    assert config.pools == {"both": ("h100a", "sim"), "one": ("local",)}
    with pytest.raises(UsageError, match="both is a pool"):
        config.host("both")
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
    assert config.includes(ConfigLayer(text)) == names


def test_what_is_included_is_named_by_text() -> None:
    with pytest.raises(ConfigError, match=r"hosts.yaml:2: include must be a path"):
        config.includes(ConfigLayer("hosts:\ninclude: [{a: b}]"))


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


def test_what_to_add_names_the_users_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    with pytest.raises(UnknownName) as caught:
        read_layers([config.BUILT_IN_LAYER]).select_hosts("h100a")
    assert str(caught.value).splitlines()[:3] == [
        "unknown host 'h100a'",
        "valid: local, sim",
        "Add a host to /elsewhere/ci-tasks/hosts.yaml:",
    ]


ERRORS = CASES["errors"]


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
    assert "names only" in str(caught.value) and "verysecret" not in str(caught.value)


# -- the published schema of hosts.yaml and the reader agree -----------------------------------------------------------


REFUSED = cases("data/refused-hosts.yaml")

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "docs/hosts.schema.json").read_text())

GOOD = [
    (ROOT / "hosts.yaml").read_text(),
    "hosts: {box: {kind: ssh, address: box.example.com, gpus: 8, mounts: {/a: /b}, secrets: [X], pull: never}}",
    "hosts: {slurm: {kind: slurm, address: login, partition: h100, gres: 'gpu:h100', runtime: pyxis}}",
    "hosts: {c: {kind: slurm, address: l, account: a, qos: q, gres: gpu, sbatch: [--exclude=n3, --exclusive]}}",
    "hosts: {a: {runtime: apptainer}, b: {kind: ssh, address: b, runtime: apptainer}}",
    "hosts: {a: {kind: local}, b: {kind: local}}\npools: {both: [a, b]}",
    "overrides: [{job: a, step: b, run: c}, {job: a, step: c, skip: true}, {job: a, step: d, with: {x: 1}}]",
    "include: lab.yaml",
    "include: [lab.yaml, 'https://example.com/lab.git']",
    "overrides: [{job: a, step: b, pip_index: default}, {job: a, step: c, replace: {x: y}}]",
    "overrides: [{job: a, step: b, pip_index: 'https://mirror.example/simple', replace: {'torch==2+cu1': torch==2}}]",
    "hosts: {a: {env: {A: 1, B: true, C: text}, timeout_minutes: 1.5, stall_minutes: 1}}",
]
# What a layer may say of a host of another one; alone, it is an error.
LAYERS = ["hosts: {box: {address: other.example.com}}", "hosts: {cluster: {partition: h100, runtime: pyxis}}"]
BELOW = "hosts: {box: {kind: ssh, address: box}, cluster: {kind: slurm, address: login}}"


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_accepts_what_the_reader_accepts(text: str) -> None:
    config.read(text)
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("text", REFUSED["the schema rejects what the reader rejects"])
def test_the_schema_rejects_what_the_reader_rejects(text: str) -> None:
    with pytest.raises(ConfigError):
        config.read(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("text", LAYERS)
def test_the_schema_accepts_a_layer_that_changes_a_host_below(text: str) -> None:
    config.read_layers([config.ConfigLayer(BELOW), config.ConfigLayer(text)])
    jsonschema.validate(yaml.safe_load(text), SCHEMA)
    with pytest.raises(ConfigError):
        config.read(text)


def test_the_schema_has_the_keys_and_choices_of_the_reader() -> None:
    host = SCHEMA["properties"]["hosts"]["additionalProperties"]["anyOf"][0]["properties"]
    keys = config.keys_of(HostSpec)
    assert host.keys() == keys.keys()
    hints = {key: field.metadata["hint"] for key, field in keys.items()}
    choices = {key: hint.removeprefix("valid: ") for key, hint in hints.items() if hint.startswith("valid: ")}
    assert {key: ", ".join(host[key]["enum"]) for key in choices} == choices
    refused = host["sbatch"]["items"]["pattern"].partition("(?!(")[2].partition(")")[0].split("|")
    assert set(refused) == set(config._SET_BY_US.split())
    assert set(SCHEMA["properties"]["overrides"]["items"]["properties"]) == set(config.keys_of(Override))


# -- where our own state and configuration are -------------------------------------------------------------------------

# What the variable says, None where it is not set.
NAMED = {"set": "/some/where", "empty": "", "not set": None, "no whole path": "some/where"}


@named("named", NAMED)
def test_the_directories_are_those_of_the_xdg_specification(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
        if named is not None:
            monkeypatch.setenv(variable, named)
    is_used = named == "/some/where"
    assert resources.user_directory("state") == Path("/some/where" if is_used else "/home/me/.local/state", "ci-tasks")
    assert resources.user_directory("config") == Path("/some/where" if is_used else "/home/me/.config", "ci-tasks")


def test_a_path_that_was_typed_has_the_home_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (resources.user_path("~/x"), resources.user_path("x/~")) == (Path("/home/me/x"), Path("x/~"))
    assert resources.user_path("~no-such-user/x") == Path("~no-such-user/x")


def test_a_variable_of_ours_names_the_directory_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(resources.HOME_ENV, f"{tmp_path}/./runs")
    assert resources.home() == tmp_path / "runs"
