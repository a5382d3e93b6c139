"""The checkout's requires-python against a host's Python."""

from __future__ import annotations

import pytest

from ci_tasks.planning.capacity import python_problem, requires_python


@pytest.mark.parametrize(
    ("files", "requirement"),
    [
        ({"pyproject.toml": '[project]\nname = "x"\nrequires-python = ">=3.10,<4"  # as CI\n'}, ">=3.10,<4"),
        ({"setup.cfg": "[options]\npython_requires = >=3.9\n"}, ">=3.9"),
        ({"setup.py": "setup(\n    name='x',\n    python_requires='>=3.8',\n)\n"}, ">=3.8"),
        ({"pyproject.toml": "[build-system]\n", "setup.py": "setup(python_requires=MINIMUM)"}, ""),
        ({"pyproject.toml": "# requires-python = '>=2'\n"}, ""),
        ({}, ""),
    ],
)
def test_where_a_checkout_says_which_python_it_needs(files: dict[str, str], requirement: str) -> None:
    assert requires_python(files.get) == requirement


@pytest.mark.parametrize(
    ("requirement", "version", "fits"),
    [
        (">=3.10", "3.9.2", False),
        (">=3.10", "3.10.0", True),
        (">=3.8,!=3.9.*", "3.9.7", False),
        (">=3.13", "3.14.0rc1", True),
        ("MINIMUM", "3.9.2", True),  # nobody can tell, so it is no reason to leave the host
        (">=3.10", "", True),
    ],
)
def test_a_python_that_the_checkout_excludes_is_named(requirement: str, version: str, fits: bool) -> None:
    problem = python_problem(requirement, version)
    assert (problem == "") == fits
    assert fits or problem == f"Python {requirement}, as the checkout requires (found {version})"
