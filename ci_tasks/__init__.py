"""ci-tasks: reproduces a framework's GPU CI jobs and says what happened."""

__version__ = "0.1.0"
