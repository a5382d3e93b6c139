"""The images between two tags of one repository, by date: what a registry says through the distribution API (v2).

It only reads. Credentials are those that `docker login` has left: in its config.json, or with a credential helper.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, UsageError

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_DEFAULT, _DEFAULT_API = "docker.io", "registry-1.docker.io"  # what docker itself means by a name without a host
_DEFAULT_LOGIN = "https://index.docker.io/v1/"  # the name under which `docker login` keeps its credentials
_TIMEOUT = 30.0  # seconds for an answer
_AT_ONCE = 8
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)$")
_LIST = "`--images` takes a list of images instead"


@dataclass(frozen=True)
class DatedImage:
    """An image as a container program takes it, `image`, with the tag that named it and when it was made."""

    image: str
    tag: str
    created: datetime

    @property
    def note(self) -> str:
        return f"{self.tag}, {self.created:%Y-%m-%d %H:%M}"


def images_between(good: str, bad: str) -> list[DatedImage]:
    """The images of the repository of `good` and `bad` from the one to the other, oldest first, each digest once.

    Raises UsageError where the two are no such ends, Blocked where the registry does not answer.
    """
    (name, first), (other, last) = _parse(good), _parse(bad)
    if name != other:
        raise UsageError(f"--good and --bad are tags of two repositories, {name} and {other}", hint=_LIST)
    registry = _Registry(name)
    ends = [registry.image(tag) for tag in (first, last)]
    if missing := [given for given, end in zip((good, bad), ends, strict=True) if end is None]:
        raise UsageError(f"the registry has no image {missing[0]} with a date", hint=_LIST)
    old, new = (end for end in ends if end is not None)
    if old.created >= new.created:
        raise UsageError(f"--good {first} ({old.note}) is not older than --bad {last} ({new.note})", hint=_LIST)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        images = [image for image in pool.map(registry.image, registry.tags()) if image is not None]
    inner = sorted((i for i in images if old.created < i.created < new.created), key=lambda i: (i.created, i.tag))
    by_digest = {image.image: image for image in reversed((old, *inner, new))}  # of its tags, the first
    return sorted(by_digest.values(), key=lambda image: image.created)


def _parse(reference: str) -> tuple[str, str]:
    """Repository with its host, and tag."""
    name, colon, tag = reference.rpartition(":")
    if "@" in reference or not colon or "/" in tag:
        raise UsageError(f"{reference} is no NAME:TAG", hint=f"without a date there is no order; {_LIST}")
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name, tag
    return f"{_DEFAULT}/{name if slash else f'library/{name}'}", tag


@dataclass
class _Registry:
    name: str
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.host, _, self.repository = self.name.partition("/")
        api = _DEFAULT_API if self.host == _DEFAULT else self.host
        is_here = self.host.partition(":")[0] in ("localhost", "127.0.0.1")  # as docker has it, without TLS
        self.base = f"{'http' if is_here else 'https'}://{api}/v2/{self.repository}/"

    def tags(self) -> list[str]:
        names: list[str] = []
        url = urljoin(self.base, "tags/list")
        while url:
            answer = self._get(url)
            names += json.loads(answer.content).get("tags") or []
            following = answer.links.get("next", {}).get("url", "")
            url = urljoin(url, following) if following else ""
        return names

    def image(self, tag: str) -> DatedImage | None:
        """None where it is not there, or has no date."""
        answer = self._get(urljoin(self.base, f"manifests/{tag}"), missing_ok=True)
        if answer.status_code == requests.codes.not_found:
            return None
        digest = "sha256:" + hashlib.sha256(answer.content).hexdigest()
        manifest = json.loads(answer.content)
        if platforms := manifest.get("manifests"):
            chosen = next((p for p in platforms if p.get("platform", {}).get("os") == "linux"), platforms[0])
            manifest = json.loads(self._get(urljoin(self.base, f"manifests/{chosen['digest']}")).content)
        if not (config := manifest.get("config")):
            return None
        created = _date(json.loads(self._get(urljoin(self.base, f"blobs/{config['digest']}")).content))
        return DatedImage(f"{self.name}@{digest}", tag, created) if created else None

    def _get(self, url: str, *, missing_ok: bool = False) -> requests.Response:
        try:
            answer = self._request(url)
            if answer.status_code == requests.codes.unauthorized:
                self.token = self._login(answer.headers.get("WWW-Authenticate", ""))
                answer = self._request(url)
        except requests.RequestException as error:
            raise Blocked(f"registry {self.host}: {type(error).__name__}", hint=_LIST) from None
        if answer.ok or (missing_ok and answer.status_code == requests.codes.not_found):
            return answer
        hint = f"`docker login {self.host}` in this shell; {_LIST}" if answer.status_code in (401, 403) else _LIST
        raise Blocked(f"registry {self.host} answers {answer.status_code} for {self.repository}", hint=hint)

    def _request(self, url: str) -> requests.Response:
        headers = {"Accept": _MANIFESTS, **({"Authorization": self.token} if self.token else {})}
        return requests.get(url, headers=headers, timeout=_TIMEOUT)

    def _login(self, challenge: str) -> str:
        """What the registry wants to see: the credentials, or a token for them."""
        basic = _credentials(self.host)
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() != "bearer":
            return basic
        parts: dict[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = parts.pop("realm", "")
        if not realm.startswith("https://") and not self.base.startswith("http://"):
            return ""  # credentials do not leave without TLS
        headers = {"Authorization": basic} if basic else {}
        answer = requests.get(realm, params=parts, headers=headers, timeout=_TIMEOUT)
        content = json.loads(answer.content) if answer.ok else {}
        return f"Bearer {content.get('token') or content.get('access_token')}" if content else ""


def _credentials(host: str) -> str:
    """The value of an Authorization header; "" where docker has none for this registry."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return ""
    names = (_DEFAULT_LOGIN,) if host == _DEFAULT else (host, f"https://{host}")
    return next(filter(None, (_stored(config, name) for name in names)), "")


def _stored(config: dict[str, Any], name: str) -> str:
    helper = config.get("credHelpers", {}).get(name) or config.get("credsStore", "")
    stored = _ask_helper(helper, name) if helper else config.get("auths", {}).get(name, {}).get("auth", "")
    try:
        base64.b64decode(stored, validate=True)
    except ValueError:
        return ""
    return f"Basic {stored}" if stored else ""


def _ask_helper(helper: str, name: str) -> str:
    """By the protocol of docker-credential-helpers: the registry's name on stdin, a JSON object on stdout."""
    if not re.fullmatch(r"[\w.-]+", helper):
        return ""
    argv = [f"docker-credential-{helper}", "get"]
    try:
        done = subprocess.run(argv, input=name.encode(), capture_output=True, timeout=_TIMEOUT, check=True)
        answer = json.loads(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return ""
    # This name marks a refresh token of OAuth2, which no basic authentication takes.
    return "" if user == "<token>" else base64.b64encode(f"{user}:{secret}".encode()).decode()


def _date(config: dict[str, Any]) -> datetime | None:
    """When the image was made; none where a reproducible build says 1970."""
    matched = _DATE.match(str(config.get("created", "")))
    if not matched:
        return None
    created = datetime.fromisoformat(matched[1] + matched[2].replace("Z", "+00:00"))
    return created if created.timestamp() > 0 else None
