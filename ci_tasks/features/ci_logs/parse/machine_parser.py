"""What steps print of the machine: nvidia-smi's table, pip's packages."""

from __future__ import annotations

import re

from ci_tasks.features.ci_logs.parse.log_text import printable_text

_DRIVER = re.compile(rb"Driver Version: (\d[\d.]{1,20})")
_TABLE = re.compile(rb"\|\s{1,4}(\d{1,3})\s{1,4}(NVIDIA \S+(?: \S+){0,6})\s")
_LISTED = re.compile(rb"GPU (\d{1,3}): (.{1,100}?) \(UUID: GPU-")
_INSTALLED = b"Successfully installed "
_FROZEN = re.compile(rb"(?: [+~] )?([A-Za-z0-9][\w.-]{0,100})==(\d\S{0,60})\s*")
_HEADING = re.compile(rb"Package +Version\b.{0,100}")
_ENTRY = re.compile(rb"([A-Za-z0-9][\w.-]{0,100}) +(\d\S{0,60})(?: .{0,300})?")
_MAX_PACKAGES = 5000
WORDS = (
    rb"Driver Version: \d",
    rb"NVIDIA ",
    rb"GPU \d{1,3}: ",
    rb"Successfully installed ",
    rb"==\d",
    rb"Package +Version",
)


class MachineParser:
    """Fed with the output of steps. Of GPUs and driver the first value counts, of a package the last."""

    def __init__(self) -> None:
        self.models: dict[int, str] = {}
        self.driver = ""
        self.packages: dict[str, str] = {}
        self._listing = False

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        return self._listing

    def feed(self, text: bytes) -> None:
        if b"Driver Version: " in text and not self.driver:
            match = _DRIVER.search(text[:2000])
            self.driver = match[1].decode() if match else ""
        elif b"NVIDIA " in text or text.startswith(b"GPU "):
            match = _TABLE.match(text[:200]) or _LISTED.match(text[:200])
            if match:
                self.models.setdefault(int(match[1]), printable_text(match[2]).strip())
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
        key = re.sub(r"[-_.]+", "-", printable_text(name)).lower()  # as PEP 503 has it: pip prints both spellings
        if len(self.packages) < _MAX_PACKAGES:
            self.packages[key] = printable_text(version)
