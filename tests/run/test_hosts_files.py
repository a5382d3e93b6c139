"""Which hosts.yaml files count, in which order, and what one in the checkout may say."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Checkout, Plan
from ci_tasks.agent.run_directory import write_record
from ci_tasks.cli.commands.runs import HostsOptions, hosts
from ci_tasks.config import read
from ci_tasks.errors import ConfigError
from ci_tasks.records import RunRecord
from ci_tasks.report.results import advice_without_gpu_host
from ci_tasks.results import store
from ci_tasks.run.hosts_files import config_for_run, list_hosts, open_config, trust
from tests.checkout.repositories import commit, make_repo, untouched


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is no checkout, where the person is; `user` and `named` beside it are for the other layers."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI_TASKS_HOSTS", raising=False)
    monkeypatch.delenv("CI_TASKS_REPO", raising=False)
    (tmp_path / "config/ci-tasks").mkdir(parents=True)
    return here


def users(place: Path) -> Path:
    return place.with_name("config") / "ci-tasks/hosts.yaml"


def checkout(place: Path) -> Path:
    (place / ".github/workflows").mkdir(parents=True)
    (place / ".github/workflows/pr-test.yml").write_text("on: push\njobs: {}\n")
    return place


def test_without_any_file_there_are_the_built_in_hosts(place: Path) -> None:
    config = open_config()
    assert (list(config.hosts), config.file) == (["local", "sim"], "built in")
    assert config.hosts["sim"].simulate and config.hosts["sim"].gpus == 8


def test_a_later_layer_changes_keys_of_a_host_and_keeps_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = "overrides: [{job: a, step: b, run: %s}]\n"
    users(place).write_text("hosts:\n  box: {kind: ssh, address: user, gpus: 1}\n" + overrides % "user")
    (place / "hosts.yaml").write_text("hosts:\n  box:\n    address: here\n" + overrides % "here")
    (place.with_name("named.yaml")).write_text("hosts:\n  box:\n    gpus: 4\n  sim: {gpus: 2}\npools: {all: [box]}\n")
    monkeypatch.setenv("CI_TASKS_HOSTS", str(place.with_name("named.yaml")))
    config = open_config()
    assert (config.hosts["box"].address, config.hosts["box"].gpus) == ("here", 4)
    assert (config.hosts["sim"].gpus, config.hosts["sim"].simulate) == (2, True)
    assert config.pools == {"all": ("box",)}
    assert config.overrides[0].run == "here", "the first of a step counts"
    assert config.sources["box"] == {
        "kind": f"{users(place)}:2",
        "address": "hosts.yaml:3",
        "gpus": f"{place.with_name('named.yaml')}:3",
    }
    assert config.sources["sim"]["simulate"] == "built in"


@pytest.mark.parametrize(
    ("user", "here", "message"),
    [
        ("hosts: {box: {kind: ssh, address: a}}", "hosts:\n  box:\n    runtime: pyxis\n", "hosts.yaml:3: host box: "),
        ("hosts: {box: {knid: ssh}}", "", "{user}:1: host box: unknown key 'knid'"),
        ("hosts: {box: {kind: ssh}}", "", "{user}:1: host box: kind ssh requires an address"),
        ("", "pools: {p: [bx]}", "hosts.yaml:1: pool p: unknown host 'bx'"),
    ],
)
def test_an_error_names_the_file_of_the_key(place: Path, user: str, here: str, message: str) -> None:
    users(place).write_text(user)
    (place / "hosts.yaml").write_text(here)
    with pytest.raises(ConfigError) as caught:
        open_config()
    assert str(caught.value).startswith(message.format(user=users(place)))


def test_a_file_that_cannot_be_read_is_named_with_its_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "hosts.yaml").write_bytes(b"# fine\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"hosts.yaml:2: not UTF-8: byte 0xe9"):
        open_config()
    monkeypatch.setenv("CI_TASKS_HOSTS", "gone.yaml")
    with pytest.raises(ConfigError, match=r"gone.yaml: no such file"):
        open_config()


# What a file includes

LAB = "hosts:\n  h100a: {kind: ssh, address: lab, gpus: 8}\npools: {h100: [h100a]}\n"


def test_an_included_file_lies_below_the_one_that_includes_it(place: Path) -> None:
    users(place).with_name("lab.yaml").write_text(LAB)
    users(place).write_text("include: lab.yaml\nhosts:\n  h100a: {address: mine}\n")
    config = open_config()
    assert (config.hosts["h100a"].address, config.hosts["h100a"].gpus) == ("mine", 8)
    assert config.pools == {"h100": ("h100a",)}
    (listed,) = [host for host in list_hosts(config) if host.name == "h100a"]
    assert listed.sources["gpus"] == f"{users(place).with_name('lab.yaml')}:2"
    assert listed.sources["address"] == f"{users(place)}:3"


def test_an_included_repository_is_fetched_and_its_copy_counts_without_a_network(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for who, what in itertools.product(("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")):
        monkeypatch.setenv(f"GIT_{who}_{what}", "me@example.com")
    lab = make_repo(tmp_path / "lab")
    (lab / "hosts.yaml").write_text(LAB)
    commit(lab)
    address = f"file://{lab}"
    users(place).write_text(f"include: [{json.dumps(address)}]\n")
    with untouched(lab):
        assert open_config().sources["h100a"]["gpus"] == f"{address}:2"
    lab.rename(tmp_path / "moved")
    assert open_config().hosts["h100a"].gpus == 8
    assert capsys.readouterr().err == ""  # it is of this hour
    (copy,) = tmp_path.glob("cache/ci-tasks/include/*/hosts.yaml")
    os.utime(copy, (1e9, 1e9))
    (lab.with_name("moved") / "hosts.yaml").write_text(LAB.replace("8", "4"))
    commit(lab.with_name("moved")), lab.with_name("moved").rename(lab)
    copy.with_name("shallow.lock").touch()  # of a fetch that took too long, and was killed
    assert (open_config().hosts["h100a"].gpus, capsys.readouterr().err) == (4, "")
    os.utime(copy, (1e9, 1e9))
    lab.rename(tmp_path / "moved")
    assert open_config().hosts["h100a"].gpus == 4
    assert f"{address} was not updated: its copy of" in capsys.readouterr().err
    (lab.with_name("moved") / "hosts.yaml").write_text("hosts: {h100a: {kind: sssh}}\n")
    commit(lab.with_name("moved")), lab.with_name("moved").rename(lab)
    assert open_config().hosts["h100a"].gpus == 4, "a broken file does not replace the copy"
    assert "invalid kind" in capsys.readouterr().err
    lab.rename(tmp_path / "moved")
    copy.unlink()
    with pytest.raises(ConfigError, match=r"cannot be included: git fetch .* does not (exist|appear)") as caught:
        open_config()
    assert "needs network access once" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "lab.yaml: cannot be read: No such file"), ("include: other", "lab.yaml: an included file")],
)
def test_what_cannot_be_included_is_named(place: Path, text: str | None, message: str) -> None:
    users(place).write_text("include: lab.yaml\n")
    if text:
        users(place).with_name("lab.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        open_config()


@pytest.mark.parametrize("login", ["https://t0ken@", "https://me:t0ken@", "ssh://me:t0ken@"])
def test_an_address_with_a_login_is_refused_and_not_repeated(place: Path, login: str) -> None:
    users(place).write_text(f"include: {login}git.invalid/hosts.git\n")
    with pytest.raises(ConfigError, match="include must not contain a login") as caught:
        open_config()
    assert "t0ken" not in str(caught.value)


def test_a_file_of_the_checkout_is_not_included_either(place: Path) -> None:
    (checkout(place) / "lab.yaml").write_text(LAB)
    users(place).write_text(f"include: {place / 'lab.yaml'}\n")
    with pytest.raises(ConfigError, match="part of the checkout, which may only set overrides"):
        open_config()


def test_a_file_of_the_checkout_includes_nothing(place: Path) -> None:
    (checkout(place) / "hosts.yaml").write_text("include: ../lab.yaml\n")
    place.with_name("lab.yaml").write_text(LAB)
    trust(None)
    assert "h100a" not in open_config().hosts


@pytest.mark.parametrize(
    ("lacks", "hosts", "said"),
    [
        (["docker (not on PATH)"], "", True),
        (["4 GPUs (found 0)"], "", True),
        (["8 GPUs (found 0)"], "hosts: {box: {kind: ssh, address: box}}", False),
        (["GPUs for this checkout: simulated ones serve the sample only"], "", False),
    ],
)
def test_without_a_gpu_host_blocked_rows_come_with_what_to_add(lacks: list[str], hosts: str, said: bool) -> None:
    records = [RunRecord("b.1", "l", "r", "local", "blocked", f"local lacks {each}; no other host") for each in lacks]
    records.append(RunRecord("b.9", "l", "r", "local", "passed", "local lacks nothing"))
    assert any("Add a host" in line for line in advice_without_gpu_host(records, read(hosts))) == said


# A hosts.yaml in the checkout under test

OF_CHECKOUT = """
hosts: {evil: {kind: ssh, address: evil}, local: {env: {LD_PRELOAD: x}, secrets: [HF_TOKEN]}}
overrides: [{job: a, step: b, skip: true}]
"""


def test_a_file_in_the_checkout_does_not_count_before_it_is_trusted(place: Path, capsys: Any) -> None:
    (checkout(place) / "hosts.yaml").write_text("not even: [YAML")
    config = open_config()
    assert list(config.hosts) == ["local", "sim"] and not config.overrides
    assert "hosts.yaml is part of the checkout and ignored" in capsys.readouterr().err


def test_a_trusted_file_in_the_checkout_gives_its_overrides_alone(place: Path, capsys: Any) -> None:
    file = checkout(place) / "hosts.yaml"
    file.write_text(OF_CHECKOUT)
    assert trust(None) == ("hosts.yaml", OF_CHECKOUT)
    config = open_config()
    assert list(config.hosts) == ["local", "sim"]
    assert not config.hosts["local"].env and not config.hosts["local"].secrets
    assert [override.step for override in config.overrides] == ["b"]
    assert "hosts.yaml: its hosts are ignored" in capsys.readouterr().err


def test_trust_ends_when_the_content_changes(place: Path, capsys: Any) -> None:
    file = checkout(place) / "hosts.yaml"
    file.write_text(OF_CHECKOUT)
    trust(None)
    file.write_text(OF_CHECKOUT.replace("skip: true", "run: x"))
    assert not open_config(quiet=True).overrides
    assert not capsys.readouterr().err, "completion prints nothing"


def test_no_line_of_a_file_that_is_trusted_is_hidden(place: Path, capsys: Any) -> None:
    """To YAML a carriage return ends a line; a terminal writes what follows over it."""
    file = checkout(place) / "hosts.yaml"
    file.write_bytes(b"overrides:\r\n- {job: a, step: b, run: evil}\r# harmless, and longer than the line before\n")
    assert hosts(HostsOptions(trust=True)) == 0
    out = capsys.readouterr().out
    assert out.startswith("overrides:\n- {job: a, step: b, run: evil}\ufffd# harmless")
    assert "\n\ntrusted: hosts.yaml, until its content changes; only its overrides apply\n" in out


def test_the_file_of_a_checkout_does_not_count_when_one_comes_back_to_its_run(place: Path) -> None:
    """No suite knows its workflow, so the current directory does not look like a checkout."""
    (place / "hosts.yaml").write_text(OF_CHECKOUT)
    run = store.new_batch("label").run_dir(1)
    Path(run.path).mkdir(parents=True)
    write_record(run.plan, Plan(checkout=Checkout(path=str(place))))
    assert "evil" in open_config().hosts
    assert list(config_for_run("last").hosts) == ["local", "sim"]
    assert "evil" in config_for_run("nothing").hosts


def test_a_link_does_not_lead_out_of_the_checkout(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text(OF_CHECKOUT)
    (checkout(place) / "hosts.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    assert list(open_config().hosts) == ["local", "sim"]


def test_a_file_that_an_option_or_a_variable_names_may_lie_in_the_checkout_too(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it is what counts, not who named it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "hosts.yaml").write_text(OF_CHECKOUT)
    monkeypatch.setenv("CI_TASKS_HOSTS", str(other / "hosts.yaml"))
    assert "evil" in open_config().hosts
    assert "evil" not in open_config(str(other)).hosts
    assert "evil" not in open_config(other / "..", other).hosts
