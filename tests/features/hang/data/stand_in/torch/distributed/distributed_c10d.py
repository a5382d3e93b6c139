"""A collective that does not end."""

import threading


def all_reduce(tensor=None):
    threading.Event().wait()
