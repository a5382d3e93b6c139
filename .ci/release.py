"""Write the version of a tag into the package, and print the notes of its release: `python .ci/release.py v1.2.3`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TAG = re.compile(r"v(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
_VERSION = re.compile(r'^__version__ = ".*"$', re.M)


def main(tag: str) -> str:
    match = _TAG.fullmatch(tag)
    if not match:
        raise SystemExit(f"{tag!r} is not a version tag, such as v1.2.3")
    package = ROOT / "ci_tasks" / "__init__.py"
    text = package.read_text(encoding="utf-8")
    package.write_text(_VERSION.sub(f'__version__ = "{match["version"]}"', text), encoding="utf-8")
    return notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), match["version"])


def notes(changelog: str, version: str) -> str:
    """The section `## 1.2.3` (a date may follow). Without notes there is no release."""
    section = re.search(rf"^## {re.escape(version)}(?=\s)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if not section or not section[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section ## {version}")
    return section[1].strip()


if __name__ == "__main__":
    print(main(sys.argv[1]))
