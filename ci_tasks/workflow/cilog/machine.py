"""What steps print of the machine: the GPUs they took, nvidia-smi's table, pip's packages."""

from __future__ import annotations

import re

from ci_tasks.workflow.cilog.text import shown

_ACQUIRED = re.compile(rb"Acquired GPUs: (\d{1,4}(?:,\d{1,4}){0,255})\s*\Z")
_DRIVER = re.compile(rb"Driver Version: (\d[\d.]{1,20})")
_TABLE = re.compile(rb"\|\s{1,4}(\d{1,3})\s{1,4}(NVIDIA \S+(?: \S+){0,6})\s")
_LISTED = re.compile(rb"GPU (\d{1,3}): (.{1,100}?) \(UUID: GPU-")
_INSTALLED = b"Successfully installed "
_FROZEN = re.compile(rb"(?: [+~] )?([A-Za-z0-9][\w.-]{0,100})==(\d\S{0,60})\s*")
_HEADING = re.compile(rb"Package +Version\b.{0,100}")
_ENTRY = re.compile(rb"([A-Za-z0-9][\w.-]{0,100}) +(\d\S{0,60})(?: .{0,300})?")
_MOST_PACKAGES = 5000


class Machine:
    """Fed with the output of steps. The first word on GPUs and driver counts, the last on a package."""

    def __init__(self) -> None:
        self.gpu_ids: tuple[int, ...] = ()
        self.models: dict[int, str] = {}
        self.driver = ""
        self.packages: dict[str, str] = {}
        self._listing = False

    def feed(self, text: bytes) -> None:
        if b"Acquired GPUs: " in text and not self.gpu_ids:
            found = _ACQUIRED.search(text[:2000])
            self.gpu_ids = tuple(int(number) for number in found[1].split(b",")) if found else ()
        elif b"Driver Version: " in text and not self.driver:
            found = _DRIVER.search(text[:2000])
            self.driver = found[1].decode() if found else ""
        elif b"NVIDIA " in text or text.startswith(b"GPU "):
            found = _TABLE.match(text[:200]) or _LISTED.match(text[:200])
            if found:
                self.models.setdefault(int(found[1]), shown(found[2]).strip())
        elif text.startswith(_INSTALLED):
            for word in text[len(_INSTALLED) : 1 << 20].split():
                name, dash, version = word.rpartition(b"-")
                if dash and version[:1].isdigit():
                    self._package(name, version)
        elif b"==" in text and (frozen := _FROZEN.fullmatch(text[:300])):
            self._package(frozen[1], frozen[2])
        elif self._listing:
            entry = _ENTRY.fullmatch(text.rstrip()[:600])
            if entry:
                self._package(entry[1], entry[2])
            self._listing = entry is not None or text.startswith(b"---")
        elif text.startswith(b"Package "):
            self._listing = _HEADING.fullmatch(text.rstrip()[:300]) is not None

    def _package(self, name: bytes, version: bytes) -> None:
        key = re.sub(r"[-_.]+", "-", shown(name)).lower()  # as PEP 503 has it: pip prints both spellings
        if len(self.packages) < _MOST_PACKAGES:
            self.packages[key] = shown(version)
