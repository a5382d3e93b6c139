"""The GitHub of the tests of `--url`."""

from tests.logs.github.conftest import alone, api, servers, storage

__all__ = ["alone", "api", "servers", "storage"]
