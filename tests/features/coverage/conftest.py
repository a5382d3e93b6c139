"""Tests are recorded with slime's helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ci_tasks.features.suites.slime_helpers import HELPERS
from tests.features.recorder.recording import record as record


@pytest.fixture
def launch_helpers() -> Mapping[str, Sequence[str]]:
    return HELPERS
