"""What ssh_config says about an address."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from ci_tasks.errors import ConfigError, UsageError
from ci_tasks.hosts.ssh import ssh_config
from ci_tasks.hosts.ssh.ssh_config import SSHAddress, SSHTarget, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box", SSHAddress("box")),
        ("box:2222", SSHAddress("box", port=2222)),
        ("alice@box", SSHAddress("box", "alice")),
        ("alice@box:2222", SSHAddress("box", "alice", 2222)),
        ("alice@corp.example@box", SSHAddress("box", "alice@corp.example")),
        ("::1", SSHAddress("::1")),
        ("fe80::1%eth0", SSHAddress("fe80::1%eth0")),
        ("[::1]", SSHAddress("::1")),
        ("[::1]:2222", SSHAddress("::1", port=2222)),
        ("alice@[::1]:2222", SSHAddress("::1", "alice", 2222)),
        ("alice@::1", SSHAddress("::1", "alice")),
    ],
)
def test_an_address_is_read(text: str, expected: SSHAddress) -> None:
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


def resolved(config: Path, text: str, address: str = "box") -> SSHTarget:
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
        ("Host box\n HostKeyAlias The-Box", "box", {"host_key_alias": "the-box"}),
        (
            "Host box\n IdentityFile /key\n IdentitiesOnly yes",
            "box",
            {"identities": ("/key",), "identities_only": True},
        ),
        ("Host box\n IdentityAgent /agent", "box", {"agent": "/agent"}),
        ("Host box\n IdentityAgent none", "box", {"agent": ""}),
        ("Host box\n ProxyCommand nc -x %r %h %p", "a@box:9", {"proxy_command": "nc -x a box 9"}),
        ("Host box\n ProxyCommand none\nHost *\n ProxyCommand nc", "box", {"proxy_command": ""}),
        ("Host box\n ProxyJump none\nHost *\n ProxyCommand nc", "box", {"proxy_command": "nc", "jumps": ()}),
        ("Host box\n ProxyCommand nc\n ProxyJump jump", "box", {"proxy_command": "nc", "jumps": ()}),
        ("Host *\n ProxyJump box", "box", {"jumps": ()}),  # as with OpenSSH, not through itself
        ("Host *\n ProxyJump other\nHost other\n HostName box", "box", {"jumps": ()}),
        ("Match user bob\n Port 7", "bob@box", {"port": 7}),
    ],
)
def test_settings_have_the_values_that_ssh_gives_them(
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


def test_jump_hosts_in_a_loop_are_an_error(config: Path) -> None:
    with pytest.raises(ConfigError, match="forms a loop"):
        resolved(config, "Host box\n ProxyJump one\nHost one\n ProxyJump two\nHost two\n ProxyJump one")


def test_included_files_count_in_their_place(config: Path) -> None:
    ssh = config.parent / ".ssh"
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d/10-box").write_text("Host box\n  Port 10\n")
    (ssh / "conf.d/20-user").write_text("User alice\n")
    target = resolved(config, f"Include {ssh}/conf.d/*\nPort 20\nHost other\n Include missing\n Port 30")
    assert (target.port, target.user) == (10, "alice")
    assert resolved(config, config.read_text(), "elsewhere").port == 20


def test_what_an_include_in_a_block_says_is_for_that_block(config: Path) -> None:
    (config.parent / ".ssh/one").write_text("Port 10\n")
    text = f"Host other\n Include {config.parent}/.ssh/one\n User alice\nHost *\n Port 20"
    assert resolved(config, text).port == 20
    other = resolved(config, text, "other")
    assert (other.port, other.user) == (10, "alice")
    (config.parent / ".ssh/one").write_text("Host box\nPort 10\n")
    assert resolved(config, text).port == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Host box\n Port\n", "config line 2: no argument"),
        ("Match all host x\n", "config line 1: "),
        ('Host "box\n', "config line 1: "),
        ("Host box\n Port none", "config line 2: "),
        ("Host box\n ConnectTimeout soon", "config line 2: "),
        ("Include {config}", "Too many recursive"),
    ],
)
def test_an_error_of_the_configuration_names_file_and_line(config: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(config, text.replace("{config}", str(config)))
    assert message in str(caught.value)
    assert "config" in str(caught.value).split(": ")[0]
    assert caught.value.exit_code == 2


def test_the_variable_names_a_file_that_exists(config: Path) -> None:
    with pytest.raises(ConfigError, match="CI_TASKS_SSH_CONFIG"):
        ssh_config.resolve("box")


def test_without_openssh_s_client_paramiko_reads_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    text = "Host box\n HostName 10.0.0.1\n Port 2222\n User alice\n IdentityFile ~/.ssh/%h\n ProxyJump bob@jump\n"
    target = resolved(config, text, "box:22")
    assert (target.host, target.port, target.user) == ("10.0.0.1", 22, "alice")
    assert target.identities == (f"{config.parent}/.ssh/10.0.0.1",)
    assert [(jump.host, jump.user) for jump in target.jumps] == [("jump", "bob")]
    with pytest.raises(ConfigError, match="Include is not supported without OpenSSH"):
        resolved(config, "Include other\n" + text)
