"""What OpenSSH knows of an address: its settings and its host keys."""

from __future__ import annotations

import base64
import getpass
import re
import subprocess
from pathlib import Path

import pytest

from ci_tasks.errors import Blocked, ConfigError, UsageError
from ci_tasks.hosts import ssh_config
from ci_tasks.hosts.ssh_config import HostKey, SSHTarget, check_host_key, known_keys, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box", ("box", "", 0)),
        ("alice@box:2222", ("box", "alice", 2222)),
        ("alice@corp.example@box", ("box", "alice@corp.example", 0)),
        ("::1", ("::1", "", 0)),
        ("fe80::1%eth0", ("fe80::1%eth0", "", 0)),
        ("[::1]", ("::1", "", 0)),
        ("alice@[::1]:2222", ("::1", "alice", 2222)),
    ],
)
def test_an_address_is_read(text: str, expected: tuple[str, str, int]) -> None:
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
    return tmp_path / "config"


def resolved(config: Path, text: str, address: str = "box") -> SSHTarget:
    config.write_text(text)
    return ssh_config.resolve(address)


@pytest.mark.parametrize(
    ("text", "address", "expected"),
    [
        ("", "box", {"host": "box", "port": 22, "user": getpass.getuser(), "connect_timeout": 15.0, "agent": ""}),
        ("Host box\n Port 2222\n User alice", "bob@box:22", {"port": 22, "user": "bob"}),
        ("Host *\n HostName %h.example.com", "box", {"host": "box.example.com"}),
        ("Host box\n ConnectTimeout 2m", "box", {"connect_timeout": 120.0}),
        ("UserKnownHostsFile /a /b\nGlobalKnownHostsFile none", "box", {"known_hosts": ("/a", "/b")}),
        ('UserKnownHostsFile "/a b\'s" /b\nGlobalKnownHostsFile none', "box", {"known_hosts": ("/a b's", "/b")}),
        ("UserKnownHostsFile /hosts/%h\nGlobalKnownHostsFile none", "box", {"known_hosts": ("/hosts/box",)}),
        ("Host box\n HostKeyAlias The-Box", "box", {"names": ["the-box"]}),
        ("Host box\n Port 9", "box", {"names": ["[box]:9", "box"]}),
        ("IdentityFile /key\nIdentitiesOnly yes", "box", {"identities": ("/key",), "identities_only": True}),
        ("Host box\n IdentityAgent /agent", "box", {"agent": "/agent"}),
        ("Host box\n ProxyCommand nc -x %r %h %p", "a@box:9", {"proxy_command": "nc -x a box 9"}),
        ("Host box\n ProxyCommand none\nHost *\n ProxyCommand nc", "box", {"proxy_command": ""}),
        ("Host *\n ProxyJump box", "box", {"jumps": ()}),  # as with OpenSSH, not through itself
        ("Host *\n ProxyJump other\nHost other\n HostName box", "box", {"jumps": ()}),
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
    assert target.jumps[1].description == f"gateway one ({getpass.getuser()}@10.0.0.1:22), on the way to {target.label}"
    assert target.jumps[1].gateway == target.jumps[0].label and target.gateway == target.jumps[3].label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Host box\n Port\n", "config line 2: no argument"),
        ("Host box\n ProxyJump one\nHost one\n ProxyJump two\nHost two\n ProxyJump one", "forms a loop"),
    ],
)
def test_an_error_of_the_configuration_names_its_file(config: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(config, text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(config))


def test_the_file_and_the_program_must_exist(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CI_TASKS_SSH_CONFIG"):
        ssh_config.resolve("box")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Blocked, match="ssh cannot be run"):
        resolved(config, "")


# -- known hosts -----------------------------------------------------------------------------------------------------


def host_key(kind: str, content: bytes) -> HostKey:
    return HostKey(kind, base64.b64encode(content).decode())


ED, OTHER_ED = host_key("ssh-ed25519", b"an ed25519 key"), host_key("ssh-ed25519", b"another ed25519 key")
RSA = host_key("ssh-rsa", b"an rsa key")
BOX, NAME = SSHTarget("box", "box.example.com", 2222, "ada"), "[box.example.com]:2222"


def line(names: str, key: HostKey = ED) -> str:
    return f"{names} {key.type} {key.blob}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "unknown"),
        (line(NAME), "known:1"),
        (line("other,[*.example.com]:222?"), "known:1"),
        (line("[*]:2222,![box.example.com]:2222"), "unknown"),
        (line("[box.example.com]:22"), "unknown"),
        (line("box.example.com"), "known:1"),  # known on its usual port
        (line("box.example.com", OTHER_ED), "unknown"),  # which proves nothing for another port
        (f"# a comment\n\n{line(NAME)} a comment of somebody's\nshort line", "known:3"),
        (line(NAME, OTHER_ED), "changed:1"),
        (f"{line(NAME, OTHER_ED)}\n{line('box.example.com')}", "changed:1"),
        (f"{line(NAME, OTHER_ED)}\n{line(NAME)}", "known:2"),
        # It was asked for the key type that we know, and came with another.
        (line(NAME, RSA), "changed:1"),
        (f"{line(NAME, RSA)}\n{line(NAME, OTHER_ED)}", "changed:2"),
        (f"{line(NAME)}\n@revoked {line('*')}", "revoked:2"),
        (f"@revoked {line('elsewhere')}\n@revoked {line('*', OTHER_ED)}\n{line(NAME)}", "known:3"),
        # An authority's key is not a host's.
        (f"@cert-authority {line('[*.example.com]:2222')}", "unknown"),
    ],
)
@pytest.mark.parametrize("is_hashed", [False, True])
def test_known_hosts_say_of_a_key(tmp_path: Path, text: str, expected: str, is_hashed: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"{text}\n")
    if is_hashed and not re.search("[*,#]", text):  # patterns cannot be hashed
        subprocess.run(["ssh-keygen", "-H", "-f", str(file)], capture_output=True)
    target = SSHTarget("box", "box.example.com", 2222, "ada", known_hosts=(str(tmp_path / "none"), str(file)))
    verdict, found = check_host_key(known_keys(target), target.names, ED)
    assert (verdict + found.place.removeprefix(str(file)) if found else verdict) == expected


def test_a_fingerprint_is_the_one_that_ssh_shows(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    kind, blob, *_ = (tmp_path / "key.pub").read_text().split()
    shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key")], check=True, capture_output=True, text=True)
    assert HostKey(kind, blob).shown.split()[1] in shown.stdout
