"""What ssh_config says about an address."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from ci_tasks.errors import ConfigError, UsageError
from ci_tasks.hosts import ssh_config
from ci_tasks.hosts.ssh_config import Address, Target, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box", Address("box")),
        ("box:2222", Address("box", port=2222)),
        ("alice@box", Address("box", "alice")),
        ("alice@box:2222", Address("box", "alice", 2222)),
        ("alice@corp.example@box", Address("box", "alice@corp.example")),
        ("::1", Address("::1")),
        ("fe80::1%eth0", Address("fe80::1%eth0")),
        ("[::1]", Address("::1")),
        ("[::1]:2222", Address("::1", port=2222)),
        ("alice@[::1]:2222", Address("::1", "alice", 2222)),
        ("alice@::1", Address("::1", "alice")),
    ],
)
def test_an_address_is_read(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "@box", "alice@", ":22", "box:", "box:ssh", "box:0", "box:65536", "box:-1", "[::1]:", "[::1", "[]:22"),
        *("-oProxyCommand=x", "box;touch x", "$(touch x)", "a b", "box\n", "-l@box", "`x`@box"),
    ],
)
def test_no_address_and_nothing_for_a_shell(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert caught.value.hint


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CI_TASKS_SSH_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path / "config"


def resolved(config: Path, text: str, address: str = "box") -> Target:
    config.write_text(text)
    return ssh_config.resolve(address)


@pytest.mark.parametrize(
    ("text", "address", "expected"),
    [
        ("", "box", {"host": "box", "port": 22, "user": getpass.getuser(), "connect_timeout": 15.0, "agent": ""}),
        (
            "Host box\n HostName 10.0.0.1\n Port 2222\n User alice",
            "box",
            {"host": "10.0.0.1", "port": 2222, "user": "alice"},
        ),
        ("Host box\n Port 2222\n User alice", "bob@box:22", {"port": 22, "user": "bob"}),
        ("Host *\n HostName %h.example.com", "box", {"host": "box.example.com"}),
        ("Host box\n ConnectTimeout 3", "box", {"connect_timeout": 3.0}),
        ("Host box\n ConnectTimeout 2m", "box", {"connect_timeout": 120.0}),
        ("Host box\n UserKnownHostsFile /a /b\n GlobalKnownHostsFile none", "box", {"user_known_hosts": ("/a", "/b")}),
        ("Host box\n GlobalKnownHostsFile none", "box", {"global_known_hosts": ()}),
        ("Host box\n UserKnownHostsFile /hosts/%h", "box", {"user_known_hosts": ("/hosts/box",)}),
        ("Host box\n HostKeyAlias The-Box", "box", {"host_key_alias": "The-Box"}),
        (
            "Host box\n IdentityFile /key\n IdentitiesOnly yes",
            "box",
            {"identities": ("/key",), "identities_only": True},
        ),
        ("Host box\n IdentityAgent /agent", "box", {"agent": "/agent"}),
        ("Host box\n IdentityAgent none", "box", {"agent": ""}),
        ("Host box\n ProxyCommand nc -x %r %h %p", "a@box:9", {"proxy_command": "nc -x a box 9"}),
        ("Host box\n ProxyCommand none\nHost *\n ProxyCommand nc", "box", {"proxy_command": ""}),
        ("Host box\n ProxyJump none\nHost *\n ProxyCommand nc", "box", {"proxy_command": "", "jumps": ()}),
        ("Host box\n ProxyCommand nc\n ProxyJump jump", "box", {"proxy_command": "nc", "jumps": ()}),
        ("Host *\n ProxyJump box", "box", {"jumps": ()}),  # as with OpenSSH, not through itself
        ("Host *\n ProxyJump other\nHost other\n HostName box", "box", {"jumps": ()}),
        ("Match user bob\n Port 7", "bob@box", {"port": 7}),
    ],
)
def test_settings_mean_what_they_mean_to_ssh(
    config: Path, text: str, address: str, expected: dict[str, object]
) -> None:
    target = resolved(config, text, address)
    assert {key: getattr(target, key) for key in expected} == expected


def test_jump_hosts_are_visited_in_their_order_each_with_its_own_settings(config: Path) -> None:
    target = resolved(
        config,
        "Host box\n ProxyJump one,bob@two:99,ssh://three\n"
        "Host one\n HostName 10.0.0.1\n ProxyJump zero\nHost two\n User alice\n ProxyJump never",
    )
    assert [(hop.alias, hop.host, hop.port) for hop in target.jumps] == [
        ("zero", "zero", 22),
        ("one", "10.0.0.1", 22),
        ("two", "two", 99),
        ("three", "three", 22),
    ]
    assert target.jumps[2].user == "bob"


def test_jumps_in_a_circle_end(config: Path) -> None:
    with pytest.raises(ConfigError, match="circles"):
        resolved(config, "Host box\n ProxyJump one\nHost one\n ProxyJump two\nHost two\n ProxyJump one")


def test_included_files_count_in_their_place(config: Path) -> None:
    ssh = config.parent / ".ssh"
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d/10-box").write_text("Host box\n  Port 10\n")
    (ssh / "conf.d/20-user").write_text("User alice\n")
    target = resolved(config, "Include conf.d/*\nPort 20\nHost other\n Include missing\n Port 30")
    assert (target.port, target.user) == (10, "alice")
    assert resolved(config, config.read_text(), "elsewhere").port == 20


def test_what_an_include_in_a_block_says_is_for_that_block(config: Path) -> None:
    (config.parent / ".ssh/one").write_text("Port 10\n")
    text = "Host other\n Include one\n User alice\nHost *\n Port 20"
    assert resolved(config, text).port == 20
    other = resolved(config, text, "other")
    assert (other.port, other.user) == (10, "alice")
    (config.parent / ".ssh/one").write_text("Host box\nPort 10\n")
    with pytest.raises(ConfigError, match=r"config:2: Include within 'Host other'"):
        resolved(config, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Host box\n Port\n", "config:2: not understood: Port"),
        ("Match all host x\n", "Match does not allow"),
        ('Host "box\n', "Unparsable host"),
        ("Host box\n Port ssh", "Port 'ssh' is not"),
        ("Host box\n ConnectTimeout soon", "ConnectTimeout 'soon'"),
        ("Host box\n CanonicalizeHostname yes", "it lacks 'canonicaldomains'"),
        ("Include ../config", "circles"),
    ],
)
def test_what_is_not_understood_names_the_file(config: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(config, text)
    assert words in str(caught.value)
    assert "config" in str(caught.value).split(": ")[0]
    assert caught.value.exit_code == 2


def test_the_variable_names_a_file_that_exists(config: Path) -> None:
    with pytest.raises(ConfigError, match="CI_TASKS_SSH_CONFIG"):
        ssh_config.resolve("box")


def test_without_the_variable_the_user_s_file_counts_before_the_system_s(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI_TASKS_SSH_CONFIG")
    monkeypatch.setattr(ssh_config, "SYSTEM_FILE", str(config))
    config.write_text("Port 10\nUser system")
    assert ssh_config.resolve("box").user == "system"
    (config.parent / ".ssh/config").write_text("User alice")
    target = ssh_config.resolve("box")
    assert (target.port, target.user) == (10, "alice")


def test_a_lookup_does_not_ask_for_this_machine_s_full_name(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda *_: pytest.fail("asked the name server"))
    assert resolved(config, "Host *\n IdentityFile ~/.ssh/%h").identities == (f"{config.parent}/.ssh/box",)
