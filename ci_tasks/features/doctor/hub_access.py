"""Whether a host reaches the Hugging Face hub, or what stands in for it. A token is neither needed nor sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, unknown, warning
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers
from ci_tasks.hosts.queries import parse_json_object, python_query

TOPIC = "hub"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
# An error that is no OSError may repeat an address with the password in it, so only its type is shown.
_SCRIPT = """
import json, os, sys, urllib.error, urllib.parse, urllib.request
parts = urllib.parse.urlsplit(sys.argv[1] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
result = {"endpoint": endpoint, "proxy": parts.scheme in urllib.request.getproxies()}
try:
    request = urllib.request.Request(endpoint + "/api/models?limit=1", headers={"User-Agent": "ci-tasks doctor"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        result["code"] = answer.getcode()
except urllib.error.HTTPError as error:
    result["code"] = error.code
    result["retry"] = error.headers.get("Retry-After")
except OSError as error:
    result["error"] = str(getattr(error, "reason", error)) or type(error).__name__
except Exception as error:
    result["error"] = type(error).__name__
print(json.dumps(result))
"""


def facts(host: HostSpec) -> list[HostFact]:
    if host.simulate:
        return []  # the sample downloads nothing
    if host.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return [HostFact({}, lambda _: [ok(TOPIC, "not checked: HF_HUB_OFFLINE is set in hosts.yaml")])]
    has_token = any(name in _TOKENS for name in host.secrets)
    question = python_query(_SCRIPT, _without_login(host.env.get("HF_ENDPOINT", "")))
    return [HostFact({"hub": question}, lambda answers: _read(answers, has_token))]


def _read(answers: QueryAnswers, has_token: bool) -> list[CheckResult]:
    response = parse_json_object(answers["hub"])
    if not response:
        return [unknown(TOPIC, answers["hub"].last_line)]
    name = str(response.get("endpoint")) + (", through a proxy" if response.get("proxy") else "")
    if response.get("error"):
        return [fault(TOPIC, f"{name}: {response['error']}", _unreachable(str(response["error"])))]
    return [_check_status(name, response, has_token)]


def _check_status(name: str, response: Mapping[str, Any], has_token: bool) -> CheckResult:
    code = response.get("code")
    token = "the token of the host's secrets is not tried here" if has_token else "HF_TOKEN is not among its secrets"
    if code in (401, 403):
        step = f"check that the token may read there; {token}" if has_token else "add HF_TOKEN to the host's secrets"
        return warning(TOPIC, f"{name} requires a login ({code}); {token}", step)
    if code == 407:
        return fault(TOPIC, f"{name}, which requires a login (407)", "set HTTPS_PROXY with its login on the host")
    if code == 429:
        wait = f"wait {response['retry']} s" if str(response.get("retry") or "").isdigit() else "wait some minutes"
        step = wait if has_token else f"{wait}, or add HF_TOKEN to the host's secrets: its limits are wider"
        return warning(TOPIC, f"{name} refuses for now: too many requests from this address (429)", step)
    if isinstance(code, int) and code >= 500:
        return warning(TOPIC, f"{name} is in trouble ({code})", "see https://status.huggingface.co, try later")
    return ok(TOPIC, f"{name} answers")


def _unreachable(error: str) -> str:
    low = error.lower()
    if "certificate" in low:
        return "install the certificate of the proxy between, if there is one, on the host, or set its clock right"
    if "name or service" in low or "name resolution" in low:
        return "check the host's DNS, or set HTTPS_PROXY; HF_ENDPOINT in the host's env names a mirror"
    return "open the way out, or set HTTPS_PROXY; HF_ENDPOINT in env names a mirror, HF_HUB_OFFLINE says to do without"


def _without_login(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
