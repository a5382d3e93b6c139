"""Whether a host reaches the Hugging Face hub, or what stands in for it. A token is neither needed nor sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ci_tasks.hosts.facts.fact import Answers, Fact, loaded, python
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding

TOPIC = "hub"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
# An error that is no OSError may repeat an address with the password in it, so only its kind is told.
_SCRIPT = """
import json, os, sys, urllib.error, urllib.parse, urllib.request
parts = urllib.parse.urlsplit(sys.argv[1] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
said = {"endpoint": endpoint, "proxy": parts.scheme in urllib.request.getproxies()}
try:
    request = urllib.request.Request(endpoint + "/api/models?limit=1", headers={"User-Agent": "ci-tasks doctor"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        said["code"] = answer.getcode()
except urllib.error.HTTPError as error:
    said["code"] = error.code
    said["retry"] = error.headers.get("Retry-After")
except OSError as error:
    said["error"] = str(getattr(error, "reason", error)) or type(error).__name__
except Exception as error:
    said["error"] = type(error).__name__
print(json.dumps(said))
"""


def facts(host: HostSpec) -> list[Fact]:
    if host.simulate:
        return []  # the sample downloads nothing
    if host.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return [Fact({}, lambda _: [Finding(TOPIC, OK, "not asked: HF_HUB_OFFLINE is set in hosts.yaml")])]
    has_token = any(name in _TOKENS for name in host.secrets)
    question = [*_proxies(host.env), *python(_SCRIPT, _public(host.env.get("HF_ENDPOINT", "")))]
    return [Fact({"hub": question}, lambda answers: _read(answers, has_token))]


def _read(answers: Answers, has_token: bool) -> list[Finding]:
    found = loaded(answers["hub"])
    if not found:
        return [Finding(TOPIC, UNKNOWN, answers["hub"].said)]
    name = str(found.get("endpoint")) + (", through a proxy" if found.get("proxy") else "")
    if found.get("error"):
        return [Finding(TOPIC, FAULT, f"{name}: {found['error']}", _unreachable(str(found["error"])))]
    return [_answered(name, found, has_token)]


def _answered(name: str, found: Mapping[str, Any], has_token: bool) -> Finding:
    code = found.get("code")
    token = "the token of the host's secrets is not tried here" if has_token else "HF_TOKEN is not among its secrets"
    if code in (401, 403):
        step = f"check that the token may read there; {token}" if has_token else "add HF_TOKEN to the host's secrets"
        return Finding(TOPIC, WARNING, f"{name} wants a login ({code}); {token}", step)
    if code == 407:
        return Finding(TOPIC, FAULT, f"{name}, which wants a login (407)", "set HTTPS_PROXY with its login on the host")
    if code == 429:
        wait = f"wait {found['retry']} s" if str(found.get("retry") or "").isdigit() else "wait some minutes"
        step = wait if has_token else f"{wait}, or add HF_TOKEN to the host's secrets: its limits are wider"
        return Finding(TOPIC, WARNING, f"{name} refuses for now: too many requests from this address (429)", step)
    if isinstance(code, int) and code >= 500:
        return Finding(TOPIC, WARNING, f"{name} is in trouble ({code})", "see https://status.huggingface.co, try later")
    return Finding(TOPIC, OK, f"{name} answers")


def _unreachable(error: str) -> str:
    low = error.lower()
    if "certificate" in low:
        return "install the certificate of whoever stands between (a proxy?) on the host, or set its clock right"
    if "name or service" in low or "name resolution" in low:
        return "check the host's DNS, or set HTTPS_PROXY; HF_ENDPOINT in the host's env names a mirror"
    return "open the way out, or set HTTPS_PROXY; HF_ENDPOINT in env names a mirror, HF_HUB_OFFLINE says to do without"


def _proxies(env: Mapping[str, str]) -> list[str]:
    """Words that give hosts.yaml's proxies to the question; not one with a login: an argv is for all to see."""
    given = [f"{name}={value}" for name, value in env.items() if name.lower() in _PROXIES and "@" not in value]
    return ["env", *given] if given else []


def _public(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
