"""Proving who we are to an SSH server: the agent's keys and key files, in ssh's order. Nobody is asked for anything."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from typing import Any

from ci_tasks import debug_log
from ci_tasks.hosts.ssh.ssh_config import SSHTarget

_AGENT_TIMEOUT_S = 10.0  # an agent behind a dead forwarding would keep us for ever; a person may have to touch a key


class SSHKeys:
    """What fabric and paramiko call an authentication strategy; afterwards it knows what was tried."""

    def __init__(self, target: SSHTarget) -> None:
        self._target = target
        self.user = target.user
        self.tried: list[str] = []
        self.encrypted: list[str] = []
        self.unreadable: list[str] = []
        self.agent_status = "no agent is running" if not target.agent else ""
        self.allowed_methods: list[str] = []  # what the host would accept, or wants besides a key
        self.is_partial = self.was_disconnected = False
        self._connection: socket.socket | None = None

    def authenticate(self, transport: Any) -> None:
        """Raises AuthenticationException."""
        import paramiko

        try:
            self._authenticate(transport)
        except paramiko.BadAuthenticationType as error:
            self.allowed_methods = list(error.allowed_types)
            raise
        finally:
            if self._connection is not None:
                self._connection.close()

    def _authenticate(self, transport: Any) -> None:
        import paramiko

        for name, key in self._keys():
            self.tried.append(name)
            try:
                remaining_methods = transport.auth_publickey(self.user, key)
            except paramiko.BadAuthenticationType:
                raise
            except (paramiko.SSHException, OSError, EOFError) as error:
                if not transport.is_active():  # the server has had enough of our keys
                    self.was_disconnected = True
                    raise paramiko.AuthenticationException(str(error)) from error
                continue
            if not remaining_methods:
                return
            self.is_partial, self.allowed_methods = True, list(remaining_methods)
            if "publickey" not in remaining_methods:
                break
        if self.is_partial:
            raise paramiko.AuthenticationException("a key was accepted, but more is wanted")
        # Some servers know us by other means; the others answer with the ways that they accept.
        transport.auth_none(self.user)

    def _keys(self) -> Iterator[tuple[str, Any]]:
        """As OpenSSH orders them: the agent's that are also named, the agent's others, files."""
        named = {blob: path for path in self._target.identities if (blob := _public_blob(path))}
        offered: set[bytes] = set()
        in_agent = self._agent_keys()
        ours = [key for key in in_agent if key.asbytes() in named]
        others = [] if self._target.identities_only else [key for key in in_agent if key.asbytes() not in named]
        for key in [*ours, *others]:
            offered.add(key.asbytes())
            yield f"{getattr(key, 'comment', '') or key.get_name()} (agent)", key
        for path in self._target.identities:
            if not path.endswith(".pub") and _public_blob(path) not in offered and os.path.isfile(path):
                key = self._load(path)
                if key is not None:
                    yield path, key

    def _load(self, path: str) -> Any:
        import paramiko

        try:
            return paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            self.encrypted.append(path)
        except Exception:  # paramiko, cryptography and bcrypt each have words of their own for what they cannot read
            debug_log.LOGGER.debug("the key %s", path, exc_info=True)
            self.unreadable.append(path)
        return None

    def _agent_keys(self) -> list[Any]:
        if not self._target.agent:
            return []
        from paramiko.agent import AgentSSH
        from paramiko.ssh_exception import SSHException

        self._connection = connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_AGENT_TIMEOUT_S)
        agent: Any = AgentSSH()
        try:
            connection.connect(self._target.agent)
            agent._connect(connection)  # paramiko.Agent does the same, but knows no IdentityAgent
        except (OSError, SSHException):
            self.agent_status = f"the agent at {self._target.agent} does not answer"
            return []
        keys = list(agent.get_keys())
        self.agent_status = f"the agent has {len(keys)} key{'' if len(keys) == 1 else 's'}"
        return keys


def _public_blob(path: str) -> bytes | None:
    """The public key beside a private one."""
    try:
        with open(path if path.endswith(".pub") else f"{path}.pub", "rb") as source:
            return base64.b64decode(source.read(1 << 16).split()[1], validate=True)
    except (OSError, IndexError, ValueError):
        return None
