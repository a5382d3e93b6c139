"""Which test files do something when Python runs them."""

from __future__ import annotations

import pytest

from ci_tasks.planning.entry_point import has_entry_point

ENTRY = [
    ("", False),
    ("import sys\nsys.path.insert(0, '.')\ndef test_a(): assert True\n", False),
    ("def test_a(): ...\nif __name__ == '__main__':\n    test_a()\n", True),
    ("def test_a(): ...\nif '__main__' == __name__: pass\n", True),
    ("def run(): ...\nrun()\n", True),
    ("async def run(): ...\nasyncio.run(run())\n", True),
    ("from x import main\nmain()\n", True),
    ("import unittest\nunittest.main()\n", True),
    ("import pytest, sys\nsys.exit(pytest.main([__file__]))\n", True),
    ("def main(): ...\nraise SystemExit(main())\n", True),
    ("def run(): ...\ntry:\n    run()\nfinally:\n    pass\n", True),
    ("assert 1 == 1\n", True),
    ("def cases(): return [1]\nCASES = cases()\n", False),
    ("if not cuda.is_available():\n    pytest.skip('no GPU')\n", False),
    ("def broken(:\n", True),  # Python will say so
    ("\0", True),
]


@pytest.mark.parametrize(("source", "acts"), ENTRY, ids=[repr(source) for source, _ in ENTRY])
def test_a_file_does_something_when_it_runs_more_than_definitions(source: str, acts: bool) -> None:
    assert has_entry_point(source) is acts
