"""Images between two tags, from a registry that speaks the distribution API on this machine and refuses all else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ci_tasks.errors import Blocked, UsageError
from ci_tasks.features.failures.bisection.registry import _credentials, images_between

LOGIN = "Basic " + base64.b64encode(b"ada:secret").decode()
# Tags in an order that is not theirs by date, of which `latest` is another name of the last one.
DATES = {"c": "2026-01-03T00:00:00.123456789Z", "a": "2026-01-01T00:00:00Z", "d": "2026-01-04T00:00:00+00:00"}
DATES |= {"b": "2026-01-02T00:00:00Z", "old": "2025-01-01T00:00:00Z", "none": "1970-01-01T00:00:00Z"}
TAGS = [*DATES, "latest", "gone"]


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Registry:
    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.by_token = self.by_index = False
        for tag, created in DATES.items():
            config = json.dumps({"created": created}).encode()
            manifest = json.dumps({"config": {"digest": digest(config)}}).encode()
            index = {"manifests": [{"digest": digest(manifest), "platform": {"os": "linux"}}], "annotations": {}}
            listed = json.dumps(index).encode()
            self.content |= {f"blobs/{digest(config)}": config, f"manifests/{digest(manifest)}": manifest}
            self.content[f"manifests/{tag}"] = listed if tag == "b" else manifest
        self.content["manifests/latest"] = self.content["manifests/d"]

    def digest_of(self, tag: str) -> str:
        return digest(self.content[f"manifests/{tag}"])

    def answer(self, path: str, login: str, host: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/token?service=here&scope=repository"):
            return (200, {}, b'{"token": "t"}') if login == LOGIN else (401, {}, b"")
        if self.by_token and login != "Bearer t":
            scope = f'Bearer realm="http://{host}/token",service="here",scope="repository:team/slime:pull"'
            return 401, {"WWW-Authenticate": scope}, b""
        name = path.removeprefix("/v2/team/slime/")
        if name == "tags/list":  # in two pages
            more = {"Link": '</v2/team/slime/tags/list?last=d>; rel="next"'}
            return 200, more, json.dumps({"tags": TAGS[:3]}).encode()
        if name == "tags/list?last=d":
            return 200, {}, json.dumps({"tags": TAGS[3:]}).encode()
        body = self.content.get(name)
        return (404, {}, b"") if body is None else (200, {}, body)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Registry, str]]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    content = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = content.answer(
                self.path, self.headers.get("Authorization", ""), self.headers["Host"]
            )
            self.send_response(status)
            for header in (*headers.items(), ("Content-Length", str(len(body)))):
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield content, f"127.0.0.1:{server.server_port}/team/slime"
    server.shutdown()
    server.server_close()


def test_images_are_those_between_the_ends_by_date_each_digest_once(registry: tuple[Registry, str]) -> None:
    content, name = registry
    found = images_between(f"{name}:a", f"{name}:d")
    assert [(each.tag, each.image) for each in found] == [
        (tag, f"{name}@{content.digest_of(tag)}") for tag in ("a", "b", "c", "d")
    ]
    assert found[2].note == "c, 2026-01-03 00:00"


def test_a_private_registry_gets_what_docker_login_left(registry: tuple[Registry, str], tmp_path: Path) -> None:
    content, name = registry
    content.by_token = True
    with pytest.raises(Blocked, match="answers 401") as refused:
        images_between(f"{name}:a", f"{name}:d")
    host = name.partition("/")[0]
    assert f"docker login {host}" in refused.value.hint
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": LOGIN.partition(" ")[2]}}}))
    assert len(images_between(f"{name}:a", f"{name}:d")) == 4


HELPER = """\
#!/bin/sh
[ "$1" = get ] && [ "$(cat)" = HOST ] || { echo "credentials not found in native keychain"; exit 1; }
echo '{"ServerURL": "HOST", "Username": "USER", "Secret": "SECRET"}'
"""


@pytest.mark.parametrize("config", ['{"credsStore": "own"}', '{"credHelpers": {"HOST": "own"}, "auths": {"HOST": {}}}'])
def test_a_credential_helper_is_asked_for_what_docker_login_left_with_it(
    registry: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    content, name = registry
    content.by_token = True
    host = name.partition("/")[0]
    user, _, secret = base64.b64decode(LOGIN.partition(" ")[2]).decode().partition(":")
    helper = tmp_path / "docker-credential-own"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "config.json").write_text(config.replace("HOST", host))
    with pytest.raises(Blocked, match="answers 401"):
        images_between(f"{name}:a", f"{name}:d")  # it is not installed
    helper.write_text(HELPER.replace("HOST", host).replace("USER", user).replace("SECRET", secret))
    helper.chmod(0o700)
    assert len(images_between(f"{name}:a", f"{name}:d")) == 4


@pytest.mark.parametrize(
    ("helper", "answer"),
    [
        ("own", "exit 1"),
        ("own", "echo no JSON"),
        ("own", "echo '[]'"),
        ("own", """echo '{"Username": "<token>", "Secret": "refresh"}'"""),
        ("../docker-credential-own", """echo '{"Username": "a", "Secret": "b"}'"""),
    ],
)
def test_an_answer_of_a_helper_that_is_no_login_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str, answer: str
) -> None:
    (tmp_path / "docker-credential-own").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "docker-credential-own").chmod(0o700)
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": helper}))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert _credentials("registry.example") == ""


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("{}:d", "{}:a", "--good d .* is not older than --bad a"),
        ("{}:a", "{}x:d", "two repositories"),
        ("{}:none", "{}:d", "no image .*:none with a date"),
        ("{}:gone", "{}:d", "no image .*:gone with a date"),
        ("{}", "{}:d", "is no NAME:TAG"),
        ("{}@sha256:0", "{}:d", "is no NAME:TAG"),
    ],
)
def test_ends_without_an_order_are_refused(registry: tuple[Registry, str], good: str, bad: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        images_between(good.format(registry[1]), bad.format(registry[1]))
