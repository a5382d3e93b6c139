"""Which files define tests, which of them run none when Python runs them, and which start Ray."""

from __future__ import annotations

import pytest

from ci_tasks.planning.tested_files import defines_tests, only_defines_tests, starts_ray

TEST = "def test_a(): assert True\n"
MAIN = "if __name__ == '__main__':\n    "
SCRIPT, REACHES, UNREACHED = (False, False), (True, False), (True, True)  # defines tests, and runs none of them

FILES = [
    ("", SCRIPT),
    ("print('trains')\n", SCRIPT),
    ("def prepare(): ...\n" + MAIN + "prepare()\n", SCRIPT),
    ("def broken(:\n" + TEST, SCRIPT),  # Python will say so
    ("\0", SCRIPT),
    ("def testing(): ...\nclass ATest: ...\nTEST = 1\n", SCRIPT),
    (TEST, UNREACHED),
    ("async " + TEST, UNREACHED),
    ("class TestA:\n    def test_b(self): ...\n", UNREACHED),
    ("import sys\nsys.path.insert(0, '.')\nlogger = getLogger(__name__)\n" + TEST, UNREACHED),
    ("def cases(): return [1]\nCASES = cases()\n" + TEST, UNREACHED),
    ("if not cuda.is_available():\n    pytest.skip('no GPU')\n" + TEST, UNREACHED),
    ("class TestModel(Module): ...\ndef test_a(): TestModel()\n", UNREACHED),
    ("def helper(): train.main()\n" + TEST, UNREACHED),
    ("if has_gpu():\n    " + TEST, UNREACHED),
    ("try: import json\nexcept ImportError: pass\nelse:\n    class TestA:\n        def test_x(self): ...\n", UNREACHED),
    (TEST + MAIN + "sys.exit(pytest.main([__file__]))\n", REACHES),
    (TEST + "if '__main__' == __name__: run_contract_tests()\n", REACHES),
    (TEST + "import unittest\nunittest.main()\n", REACHES),
    (TEST + "from x import main\nmain()\n", REACHES),
    (TEST + "ALL = [test_a]\n" + MAIN + "pytest.main([__file__])\n", REACHES),
    # Only a test runner counts tests, so one that calls its own shows what a script does.
    (TEST + MAIN + "test_a()\n", SCRIPT),
    (TEST + "test_a()\n", SCRIPT),
    (TEST + "def main(): test_a()\n" + MAIN + "main()\n", SCRIPT),
    ("class TestA: ...\n" + MAIN + "TestA().run()\n", SCRIPT),
]


@pytest.mark.parametrize(("source", "expected"), FILES, ids=[repr(source) for source, _ in FILES])
def test_a_file_defines_tests_and_python_reaches_them_or_not(source: str, expected: tuple[bool, bool]) -> None:
    assert (defines_tests(source), only_defines_tests(source)) == expected


# -- Ray ---------------------------------------------------------------------------------------------------------------


HELPER = "import os\ndef go():\n    os.system('ray start --head --port 6379')\n"
CASES = [
    # it says so itself
    ({"tests/t.py": "import ray\nray.init()\n"}, True),
    ({"tests/t.py": HELPER}, True),
    # through a module of the checkout, by any form of import
    ({"tests/t.py": "import lib.helper as U\nU.go()", "lib/helper.py": HELPER}, True),
    ({"tests/t.py": "from lib import helper", "lib/helper.py": HELPER}, True),
    ({"tests/t.py": "from lib.helper import go", "lib/helper.py": HELPER}, True),
    ({"tests/t.py": "import lib", "lib/__init__.py": HELPER}, True),
    # a neighbour of the test
    ({"tests/t.py": "import helper", "tests/helper.py": HELPER}, True),
    # inside a function too
    ({"tests/t.py": "def f():\n    import lib.helper\n", "lib/helper.py": HELPER}, True),
    # two imports away
    ({"tests/t.py": "import a", "a.py": "import b", "b.py": HELPER}, True),
    # nothing of it
    ({"tests/t.py": "import lib.helper", "lib/helper.py": "def go(): pass"}, False),
    ({"tests/t.py": "print('arrays start')"}, False),
    # circles end
    ({"tests/t.py": "import a", "a.py": "import b", "b.py": "import a"}, False),
    ({}, False),
]


@pytest.mark.parametrize(("files", "starts"), CASES)
def test_who_starts_ray(files: dict[str, str], starts: bool) -> None:
    assert starts_ray("tests/t.py", files.get) is starts
