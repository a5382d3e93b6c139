"""TINY_VERL_FAILURE: which way to fail, one of the names in README.md. Read wherever a fault is made."""

import os

VARIABLE = "TINY_VERL_FAILURE"


def asked(name):
    return os.environ.get(VARIABLE) == name


def fill_a_disk():
    """A real error of a full disk: /dev/full takes nothing."""
    with open("/dev/full", "w") as file:
        file.write("model")
