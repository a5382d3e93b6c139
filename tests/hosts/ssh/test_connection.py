"""What is said about a connection over SSH that does not come about. Real ones: tests/integration/test_ssh_link.py."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from ci_tasks.errors import Blocked
from ci_tasks.hosts.ssh import messages
from ci_tasks.hosts.ssh.auth import SSHKeys
from ci_tasks.hosts.ssh.known_hosts import HostKey, KnownHostEntry, KnownHostsLookup
from ci_tasks.hosts.ssh.messages import Hop
from ci_tasks.hosts.ssh.ssh_config import SSHTarget

BOX = SSHTarget("box", "box.example.com", 2222, "alice", "~/.ssh/config")
JUMP = SSHTarget("jump", "10.0.0.1", 22, "bob", "~/.ssh/config")
KEY = HostKey("ssh-ed25519", b"key")


def test_importing_it_loads_neither_fabric_nor_paramiko() -> None:
    heavy = {"fabric", "paramiko", "invoke"}
    code = f"import sys, ci_tasks.hosts.ssh.connection; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_way_names_every_hop() -> None:
    target = replace(BOX, jumps=(replace(JUMP, alias="first"), JUMP))
    assert messages.describe_route(target) == (
        "box (alice@box.example.com:2222) through jump (bob@10.0.0.1:22) through first (bob@10.0.0.1:22)"
    )
    assert [hop.description for hop in messages.hops(target)] == [
        "gateway first (bob@10.0.0.1:22), on the way to box (alice@box.example.com:2222)",
        "gateway jump (bob@10.0.0.1:22), on the way to box (alice@box.example.com:2222)",
        "box (alice@box.example.com:2222)",
    ]


@pytest.mark.parametrize(
    ("error", "phrases"),
    [
        (socket.gaierror(-2, "Name or service not known"), ["no host of the name 'box.example.com'", "HostName"]),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ["box.example.com:2222 refuses", "check the port"]),
        (TimeoutError(), ["no answer from box.example.com:2222 within 15 s", "ConnectTimeout"]),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), ["cannot be reached (Network is unreachable)", "VPN"]),
    ],
)
def test_the_network_s_words_become_ours(error: OSError, phrases: list[str]) -> None:
    message = str(messages.unreachable(Hop(BOX), error))
    assert [word for word in phrases if word not in message] == []


@pytest.mark.parametrize(
    ("finding", "phrases"),
    [
        (
            KnownHostsLookup("unknown"),
            ["is not known", "add this line to /known", KEY.line("[box]:2222"), KEY.fingerprint],
        ),
        (
            KnownHostsLookup("changed", KnownHostEntry("/known", 7, "", "[box]:2222", HostKey("ssh-rsa", b"old"))),
            ["has changed", "/known:7", KEY.fingerprint, "ssh-keygen -R '[box]:2222' -f /known", "may be listening"],
        ),
        (KnownHostsLookup("changed", KnownHostEntry("/known", 7, "", "*", KEY)), ["take line 7 out of /known"]),
        (KnownHostsLookup("revoked", KnownHostEntry("/known", 7, "@revoked", "*", KEY)), ["is revoked (/known:7)"]),
        (
            KnownHostsLookup("authority", KnownHostEntry("/known", 7, "@cert-authority", "*", KEY)),
            ["only a @cert-authority", "/known:7"],
        ),
    ],
)
def test_a_refused_host_key_comes_with_the_next_step(finding: KnownHostsLookup, phrases: list[str]) -> None:
    message = str(messages.host_key(Hop(BOX), finding, KEY, "[box]:2222", "/known"))
    assert [word for word in phrases if word not in message] == []


def test_a_host_whose_keys_are_kept_nowhere_is_told_so() -> None:
    message = str(messages.host_key(Hop(BOX), KnownHostsLookup("unknown"), KEY, "[box]:2222", "/dev/null"))
    assert "add this line to" not in message
    assert "UserKnownHostsFile /dev/null" in message


def test_keyscan_is_to_be_run_where_the_host_can_be_seen() -> None:
    at_home = str(messages.host_key(Hop(JUMP), KnownHostsLookup("unknown"), KEY, "jump", "/known"))
    beyond = str(messages.host_key(Hop(BOX, gateway="jump"), KnownHostsLookup("unknown"), KEY, "box", "/known"))
    assert "network: ssh-keyscan 10.0.0.1 | ssh-keygen -lf -" in at_home
    assert "network (on jump): ssh-keyscan -p 2222 box.example.com" in beyond


@pytest.mark.parametrize(
    ("attributes", "phrases"),
    [
        ({"tried": ["/id"]}, ["does not let alice in", "keys tried: /id; no agent is running", "authorized_keys"]),
        ({"encrypted": ["/my id"]}, ["passphrase protects them: /my id", "eval \"$(ssh-agent)\" && ssh-add '/my id'"]),
        ({"encrypted": ["/id"], "agent_status": "the agent has 0 keys"}, ["the agent has 0 keys", "\nssh-add /id"]),
        (
            {"is_partial": True, "allowed_methods": ["keyboard-interactive"]},
            ["also wants keyboard-interactive", "never asks"],
        ),
        ({"allowed_methods": ["password"]}, ["takes password only", "never asks for passwords"]),
        ({"was_disconnected": True}, ["IdentitiesOnly yes"]),
        ({"unreadable": ["/junk"]}, ["cannot be read as keys: /junk"]),
    ],
)
def test_a_refused_login_says_what_was_tried(attributes: dict[str, object], phrases: list[str]) -> None:
    keys = SSHKeys(BOX)
    vars(keys).update(attributes)
    message = str(messages.refused_login(Hop(BOX), keys))
    assert [word for word in phrases if word not in message] == []


def test_a_proxy_command_is_not_shown_since_it_may_hold_a_password() -> None:
    hop = Hop(replace(BOX, proxy_command="corkscrew --auth alice:hunter2 %h"))
    error = messages.no_handshake(hop, EOFError(), "403 Forbidden\n")
    assert isinstance(error, Blocked)
    assert "hunter2" not in str(error)
    assert "403 Forbidden" in str(error)


def test_what_a_server_says_cannot_move_the_terminal_s_cursor() -> None:
    assert "\x1b" not in str(messages.gateway_refused(Hop(BOX, gateway="jump"), "\x1b[2J"))
