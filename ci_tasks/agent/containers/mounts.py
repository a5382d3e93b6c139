"""The mounts of a `docker run` (`-v` and `--mount`), and where CI's directories are on this host. Pure."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping

from .docker_argv import DockerArgvError, DockerOption, DockerRun

_SOURCE_KEYS = ("source", "src")


def bind_sources(run: DockerRun) -> list[str]:
    """The host paths that the run mounts. A `-v` source that is no path is a named volume."""
    sources = [bind_mount(item)[0] for item in run.options if item.name in ("volume", "mount")]
    return [source for source in sources if source.startswith(("/", "."))]


def map_path(source: str, mounts: Mapping[str, str]) -> str | None:
    """Where CI's `source` is on this host: by the rule of the longest path that contains it; `/mnt/x` does not contain
    `/mnt/x2`. None without such a rule."""
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


def bind_mount(item: DockerOption) -> tuple[str, str]:
    """Source and destination of a `-v` or a bind `--mount`; two empty strings where nothing of the host is mounted."""
    if item.name == "volume":
        parts = (item.value or "").split(":")
        return (parts[0], parts[1]) if len(parts) > 1 else ("", "")
    fields = mount_fields(item)
    if fields.get("type", "").lower() != "bind":
        return "", ""
    return mount_source(fields), mount_destination(fields)


def mount_fields(item: DockerOption) -> dict[str, str]:
    """The keys and values of a `--mount`; none of another option."""
    return dict(key_value(field) for field in csv_fields(item.value or "")) if item.name == "mount" else {}


def mount_source(fields: Mapping[str, str]) -> str:
    return next((fields[key] for key in _SOURCE_KEYS if key in fields), "")


def mount_destination(fields: Mapping[str, str]) -> str:
    return next((fields[key] for key in ("target", "dst", "destination") if key in fields), "")


def with_source(item: DockerOption, source: str) -> DockerOption:
    if item.name == "volume":
        return item.with_value(source + ":" + (item.value or "").partition(":")[2])
    fields = [
        f"{field.partition('=')[0]}={source}" if key_value(field)[0] in _SOURCE_KEYS else field
        for field in csv_fields(item.value or "")
    ]
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(fields)  # quotes what holds any character of the terminator
    return item.with_value(out.getvalue()[:-2])


def key_value(field: str) -> tuple[str, str]:
    key, _, value = field.partition("=")
    return key.lower(), value


def csv_fields(text: str) -> list[str]:
    """`--mount` and `--gpus` are one record of CSV, so that a path may contain a comma."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error as error:
        raise DockerArgvError(f"{text!r} is not the comma-separated text that docker needs: {error}") from None
