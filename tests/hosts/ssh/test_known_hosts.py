"""What known_hosts says about a key, as OpenSSH reads it."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from ci_tasks.hosts.ssh import known_hosts
from ci_tasks.hosts.ssh.known_hosts import HostKey

ED = HostKey("ssh-ed25519", b"an ed25519 key")
OTHER_ED = HostKey("ssh-ed25519", b"another ed25519 key")
RSA = HostKey("ssh-rsa", b"an rsa key")
NAMES = ["[box.example.com]:2222", "box.example.com"]


def verdict(text: str, key: HostKey = ED, names: list[str] = NAMES) -> str:
    finding = known_hosts.check_host_key(known_hosts.parse("known_hosts", text.splitlines()), names, key)
    return f"{finding.verdict}:{finding.entry.line}" if finding.entry else finding.verdict


def line(names: str, key: HostKey = ED) -> str:
    return key.line(names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "unknown"),
        (line("[box.example.com]:2222"), "known:1"),
        (line("[BOX.example.com]:2222"), "known:1"),
        (line("other,[box.example.com]:2222"), "known:1"),
        (line("[*.example.com]:2222"), "known:1"),
        (line("[box.example.com]:222?"), "known:1"),
        (line("*,![box.example.com]:2222"), "known:1"),  # the bare name is not taken out
        (line("[*]:2222,![box.example.com]:2222"), "unknown"),
        (line("[box.example.com]:22"), "unknown"),
        (line("b[ox].example.com"), "unknown"),  # no class of characters
        (line("box.example.com"), "known:1"),  # known on its usual port
        (line("box.example.com", OTHER_ED), "unknown"),  # which proves nothing for another port
        (f"# a comment\n\n{line('[box.example.com]:2222')} somebody's comment", "known:3"),
        ("[box.example.com]:2222 ssh-ed25519 not*base64\nshort line", "unknown"),
        (line("[box.example.com]:2222", OTHER_ED), "changed:1"),
        (f"{line('[box.example.com]:2222', OTHER_ED)}\n{line('[box.example.com]:2222')}", "known:2"),
        # It was asked for the key type that we know, and came with another.
        (line("[box.example.com]:2222", RSA), "changed:1"),
        (f"{line('[box.example.com]:2222', RSA)}\n{line('[box.example.com]:2222', OTHER_ED)}", "changed:2"),
        (f"{line('[box.example.com]:2222')}\n@revoked {line('*')}", "revoked:2"),
        (f"@revoked {line('elsewhere')}\n{line('[box.example.com]:2222')}", "known:2"),
        (f"@revoked {line('*', OTHER_ED)}\n{line('[box.example.com]:2222')}", "known:2"),
        (f"@cert-authority {line('[*.example.com]:2222', RSA)}", "authority:1"),
        # An authority's key is not a host's.
        (f"@cert-authority {line('[*.example.com]:2222')}", "authority:1"),
    ],
)
def test_the_file_says(text: str, expected: str) -> None:
    assert verdict(text) == expected


def test_hashed_names_are_found(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    key = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32))
    file.write_text(f"{key.line('elsewhere')}\n{key.line(NAMES[0])}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    assert NAMES[0] not in file.read_text()
    finding = known_hosts.check_host_key(known_hosts.read([str(file)]), NAMES, key)
    assert (finding.verdict, finding.entry and finding.entry.line) == ("known", 2)
    assert verdict("|1|broken|hash ssh-ed25519 " + base64.b64encode(ED.blob).decode()) == "unknown"


def test_a_fingerprint_is_the_one_that_ssh_shows(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    kind, blob, *_ = (tmp_path / "key.pub").read_text().split()
    shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key")], check=True, capture_output=True, text=True)
    assert HostKey(kind, base64.b64decode(blob)).fingerprint in shown.stdout


def test_files_that_are_missing_are_empty_and_others_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "second").write_text(line("box"))
    entries = known_hosts.read([str(tmp_path / "first"), str(tmp_path / "second")])
    assert [entry.place for entry in entries] == [f"{tmp_path}/second:1"]


def test_only_types_that_the_host_is_known_by_are_preferred() -> None:
    text = f"{line(NAMES[0], RSA)}\n@revoked {line(NAMES[0], OTHER_ED)}\n{line('elsewhere')}"
    assert known_hosts.known_types(known_hosts.parse("f", text.splitlines()), NAMES) == ["ssh-rsa"]


@pytest.mark.parametrize(
    ("host", "port", "name"),
    [("Box", 22, "box"), ("box", 2222, "[box]:2222"), ("::1", 22, "::1"), ("::1", 9, "[::1]:9")],
)
def test_a_host_is_called(host: str, port: int, name: str) -> None:
    assert known_hosts.known_hosts_name(host, port) == name
