import pathlib
import tempfile

import pytest


@pytest.fixture
def directory():
    """Without pytest's numbered directories, whose clean-up can take longer than all the tests."""
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)
