"""What leaves this machine, a page or a comment, without the checkout's path, home directories and user names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.records import RunRecord
from ci_tasks.report.table import cell

_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/([\w.-]+)|(?<![\w./])/root(?![\w.-])")
_SHORTEST = 3  # letters of a name that is hidden wherever it stands
_SHARED = {"root", "runner", "ubuntu", "user", "slime", "verl"}  # accounts that name no person, or are words of ours


class Public:
    """Hides what the records' checkouts say of this machine."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        paths = {record.checkout.path for record in records if record.checkout and len(record.checkout.path) > 1}
        longest_first = sorted(paths, key=len, reverse=True)
        self._paths = {form: path.rpartition("/")[2] for path in longest_first for form in (path, cell(path))}
        names = {match[1] for path in paths if (match := _HOME.match(path)) and match[1]} - _SHARED
        words = "|".join(re.escape(name) for name in names if len(name) >= _SHORTEST)
        self._names = re.compile(rf"(?<![\w.-])(?:{words})(?![\w.-])") if words else None

    def text(self, text: str) -> str:
        if "/" in text:
            for path, name in self._paths.items():
                text = text.replace(path, name)
            text = _HOME.sub("~", text)
        return self._names.sub("USER", text) if self._names else text
