"""Whether a test starts Ray, itself or through what it imports from the checkout."""

from __future__ import annotations

import pytest

from ci_tasks.planning.tested_files import starts_ray

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
