"""The recorder's own fixtures."""

from tests.features.recorder.recording import launch_helpers as launch_helpers
from tests.features.recorder.recording import record as record
