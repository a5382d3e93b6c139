"""Collectives that do not end: on a GPU from the fourth on, without one at once."""

import threading

from torch import cuda

begun = []


def init_process_group(backend):
    pass


def all_reduce(tensor=None):
    begun.append(tensor)
    if cuda.libcuda is None:
        threading.Event().wait()
    elif len(begun) > 3:
        cuda._sleep(1)
