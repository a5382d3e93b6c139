"""Real servers for tests and benchmarks: plain context managers, without pytest. Where a program is not installed they
raise Missing; the fixtures of tests/fixtures.py skip the test then."""


class Missing(Exception):
    """What this machine lacks to start a server."""
