"""What a `docker run` mounts from its host, in the words of `-v` and `--mount`, and where that lies here. Pure."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping, Sequence

from .docker_argv import DockerArgvError, DockerRun, Option

_SOURCE_KEYS = ("source", "src")
_DESTINATION_KEYS = ("target", "dst", "destination")


def bind_sources(run: DockerRun) -> list[str]:
    """The host paths that the run mounts. A `-v` source that is no path is a named volume."""
    sources = [mounted(item)[0] for item in run.options if item.name in ("volume", "mount")]
    return [source for source in sources if source.startswith(("/", "."))]


def moved(source: str, mounts: Mapping[str, str]) -> str | None:
    """`source` under the longest rule that holds it; a rule holds its own path and what lies below, never `/mnt/x2`."""
    if not source.startswith("/"):
        return None
    path = _normal(source)
    rules = sorted(((_normal(ci), here) for ci, here in mounts.items()), key=lambda rule: -len(rule[0]))
    for ci, here in rules:
        if path == ci:
            return here
        below = ci.rstrip("/") + "/"
        if path.startswith(below):
            return posixpath.join(here, path[len(below) :])
    return None


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # normpath keeps a leading `//`


def mounted(item: Option) -> tuple[str, str]:
    """Source and destination of a `-v` or a bind `--mount`; two empty texts where nothing of the host is mounted."""
    value = item.value or ""
    if item.name == "volume":
        parts = value.split(":")
        return (parts[0], parts[1]) if len(parts) > 1 else ("", "")
    if item.name != "mount":
        return "", ""
    fields = dict(key_value(field) for field in csv_fields(value))
    if fields.get("type", "").lower() != "bind":
        return "", ""
    return _first(fields, _SOURCE_KEYS), _first(fields, _DESTINATION_KEYS)


def with_source(item: Option, source: str) -> Option:
    if item.name == "volume":
        return item.with_value(source + ":" + (item.value or "").partition(":")[2])
    fields = [
        f"{field.partition('=')[0]}={source}" if key_value(field)[0] in _SOURCE_KEYS else field
        for field in csv_fields(item.value or "")
    ]
    return item.with_value(_csv_text(fields))


def _first(fields: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((fields[key] for key in keys if key in fields), "")


def key_value(field: str) -> tuple[str, str]:
    key, _, value = field.partition("=")
    return key.lower(), value


def csv_fields(text: str) -> list[str]:
    """`--mount` and `--gpus` are one record of CSV, so that a path may hold a comma."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error as error:
        raise DockerArgvError(f"{text!r} is not the comma-separated text that docker needs: {error}") from None


def _csv_text(fields: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(fields)  # quotes what holds any character of the terminator
    return out.getvalue()[:-2]
