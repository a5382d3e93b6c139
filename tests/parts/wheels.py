"""Tiny wheels in a directory that pip takes for an index, and what pip leaves of one, in a hundredth of its time."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """`files` by their path in site-packages; `scripts` by name, as module:function."""
    info = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {it}" for it in requires),
    ]
    entries = "".join(f"{script} = {target}\n" for script, target in (scripts or {}).items())
    content = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{entries}",
    }
    record = "".join(f"{path},sha256={_hash(text)},{len(text)}\n" for path, text in content.items())
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**content, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(file, text)
    return path


def unpack_wheel(wheel: Path, packages: str, *, url: str = "") -> None:
    """Put a wheel into `packages` as pip does, from an index or the `url`. Scripts are left out."""
    with zipfile.ZipFile(wheel) as source:
        source.extractall(packages)
    (info,) = {Path(packages, name).parent for name in source.namelist() if name.endswith(".dist-info/RECORD")}
    more = {"INSTALLER": "pip\n", **({"direct_url.json": json.dumps({"url": url, "archive_info": {}})} if url else {})}
    with (info / "RECORD").open("a") as record:
        for name, text in more.items():
            (info / name).write_text(text)
            record.write(f"{info.name}/{name},sha256={_hash(text)},{len(text)}\n")


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
