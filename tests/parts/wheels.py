"""Tiny wheels in a directory that pip takes for an index, and what pip leaves of one, in a hundredth of its time."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


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


def write_index(directory: Path, name: str) -> None:
    """An index, whose URL is the directory's, of a package that these tests have and of all that it requires. They are
    Python alone."""
    found = metadata.distribution(name)
    files = [file for file in found.files or () if not file.parts[0].endswith((".dist-info", ".."))]
    texts = {str(file): file.read_text() for file in files if file.suffix != ".pyc"}
    scripts = {entry.name: entry.value for entry in found.entry_points.select(group="console_scripts")}
    required = [Requirement(text) for text in found.requires or ()]
    needed = [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    wheel = write_wheel(
        directory / name, name.replace("-", "_"), found.version, texts, requires=needed, scripts=scripts
    )
    (directory / name / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    for each in needed:
        if not (directory / each).exists():
            write_index(directory, each)


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
