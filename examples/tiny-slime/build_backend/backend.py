"""The build backend of this sample: the standard library and nothing else.

`pip install -e . --no-deps` is a step of every job. With setuptools or hatchling as the backend, pip would first
download it into an isolated environment: a network round trip per row, and no first run at all on a machine without
network. With `requires = []` and this file, pip has nothing to fetch and the step takes about a second.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEM = "tiny_slime-0.1.0"
METADATA = "Metadata-Version: 2.1\nName: tiny-slime\nVersion: 0.1.0\nLicense: Apache-2.0\nRequires-Python: >=3.10\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: tiny-slime\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sources = sorted((ROOT / "tiny_slime").rglob("*.py"))
    return _write_wheel(wheel_directory, {str(path.relative_to(ROOT)): path.read_bytes() for path in sources})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    # A .pth line puts the whole checkout on sys.path, so edits to the package show without another install.
    return _write_wheel(wheel_directory, {"tiny_slime.pth": f"{ROOT}\n".encode()})


def _write_wheel(directory, files):
    name = f"{STEM}-py3-none-any.whl"
    info = f"{STEM}.dist-info"
    files = {**files, f"{info}/METADATA": METADATA.encode(), f"{info}/WHEEL": WHEEL.encode()}
    record = "".join(_record_line(path, data) for path, data in files.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(Path(directory) / name, "w") as wheel:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(path, data)
    return name


def _record_line(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}\n"
