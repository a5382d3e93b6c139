"""PyYAML as we import it: sooner, and the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

LOAD = """
import json, re, sys
{first}
import yaml
def load(text):
    try:
        return repr(yaml.load(text, Loader=getattr(yaml, sys.argv[1])))
    except yaml.YAMLError as error:
        return f"{{type(error).__name__}}: {{error}}"
print(json.dumps([load(text) for text in json.loads(sys.argv[2])] + [type(re.compile("x")).__name__]))
"""
TEXTS = ["{a: [1, 0x1f, 1.5, .inf, yes, ~, 2026-11-01, 2026-11-01T18:30:05Z]}", "a\x07b", "- [", "\U0001f600: é"]


def loaded(first: str, loader: str) -> Any:
    words = [sys.executable, "-c", LOAD.format(first=first), loader, json.dumps(TEXTS)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("loader", ["SafeLoader", "CSafeLoader"])
def test_both_readers_read_as_ever(loader: str) -> None:
    assert loaded("from ci_tasks import quick_yaml", loader) == loaded("", loader)


def test_none_of_its_patterns_is_compiled_before_it_is_used() -> None:
    program = "import re; from ci_tasks.quick_yaml import yaml; print(type(yaml.reader.Reader.NON_PRINTABLE).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "_DeferredPattern\n"
