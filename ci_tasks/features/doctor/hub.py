"""Whether a host reaches the Hugging Face hub, or what stands in for it. A token is neither needed nor sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import Check, fault, ok, remedy, unknown, warning
from ci_tasks.hosts.queries import parse_json_object, python_query

TOPIC = "hub"
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
_REMEDIES = (
    ("certificate", "install the certificate of the proxy between on the host, or set its clock right"),
    ("name or service|name resolution", "check the host's DNS, or set HTTPS_PROXY; HF_ENDPOINT names a mirror"),
    ("HTTP Error 40[13]", "add HF_TOKEN to the host's secrets, or check what it may read: it is not tried here"),
    ("HTTP Error (429|5)", "wait some minutes; limits are wider with HF_TOKEN among the host's secrets"),
)  # fmt: skip
_OTHERWISE = "open the way out, or set HTTPS_PROXY; HF_ENDPOINT in `env` names a mirror, HF_HUB_OFFLINE does without"
# An error that is no OSError may repeat an address with the password in it, so only its type is shown.
_SCRIPT = """
import json, os, sys, urllib.parse, urllib.request
parts = urllib.parse.urlsplit(sys.argv[1] or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
error = ""
try:
    request = urllib.request.Request(endpoint + "/api/models?limit=1", headers={"User-Agent": "ci-tasks doctor"})
    urllib.request.urlopen(request, timeout=5).close()
except OSError as problem:
    error = str(problem) or type(problem).__name__
except Exception as problem:
    error = type(problem).__name__
by = ", through a proxy" if parts.scheme in urllib.request.getproxies() else ""
print(json.dumps({"name": endpoint + by, "error": error}))
"""


def hub(host: HostSpec) -> Check:
    if host.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        yield {}
        return [ok(TOPIC, "not checked: HF_HUB_OFFLINE is set in hosts.yaml")]
    parts = urlsplit(host.env.get("HF_ENDPOINT", ""))
    endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a login
    answers = yield {TOPIC: python_query(_SCRIPT, endpoint)}
    response = parse_json_object(answers[TOPIC])
    if not response:
        return [unknown(TOPIC, answers[TOPIC].last_line)]
    name, error = response.get("name"), str(response.get("error")).removeprefix("<urlopen error ").rstrip(">")
    if not error:
        return [ok(TOPIC, f"{name} answers")]
    result = warning if "HTTP Error" in error and "407" not in error else fault
    return [result(TOPIC, f"{name}: {error}", remedy(error, _REMEDIES, _OTHERWISE))]
