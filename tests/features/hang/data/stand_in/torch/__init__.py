"""Stands for torch where it is not installed: places with its names, and a kernel of libcuda that does not end."""

from torch import cuda as cuda


def ones(*_, **__):
    pass
