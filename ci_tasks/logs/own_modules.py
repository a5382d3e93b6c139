"""Whether a module that could not be imported would be one of the checkout itself: then it is the code that lacks it,
and not an installed package in another version."""

from __future__ import annotations

import os
from collections.abc import Callable

from ci_tasks import registry

IsOwnModule = Callable[[str], bool]
"""Asked for the dotted name of a module that is missing."""

_ROOTS = ("", "src", "python")  # of a checkout, where projects have their packages


def lacking_in(checkout: str) -> IsOwnModule:
    """By a checkout on this machine: it has the package around the module, and not the module."""

    def is_own(module: str) -> bool:
        above, _, _ = module.rpartition(".")
        packages = [os.path.join(checkout, root, *above.split(".")) for root in _ROOTS if above and checkout]
        has_package = any(os.path.isdir(package) for package in packages)
        path = [os.path.join(checkout, root, *module.split(".")) for root in _ROOTS]
        return has_package and not any(os.path.isfile(f"{one}.py") or os.path.isdir(one) for one in path)

    return is_own


def of_repository(repository: str) -> IsOwnModule:
    """By the name of the repository under test (`owner/name`): its own package has that name, but for suites that say
    otherwise."""
    name = repository.rpartition("/")[2]
    named = (suite.packages[0] for suite in registry.suites() if suite.packages and suite.directory == name)
    package = next(named, name.lower().replace("-", "_"))
    return lambda module: bool(package) and module.startswith(f"{package}.")


def none(module: str) -> bool:
    """Where nothing is known of the code."""
    return False
