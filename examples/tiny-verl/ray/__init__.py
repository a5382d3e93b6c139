"""A pretend Ray: tasks and actors are processes of their own, started with the cluster's environment, not the driver's.

What the driver's shell exports reaches a worker only through a cluster that `init` starts itself, or through
`runtime_env`. See README.md for how an existing cluster is pretended.
"""

import atexit

from ray import _cluster
from ray._process import Process
from ray._remote import RemoteClass, RemoteFunction

_connected = None


def init(address=None, runtime_env=None, **_others):
    """Connect to the cluster that there is, or start one. Raises ConnectionError where `address` asks in vain."""
    global _connected
    _connected = _cluster.connect(address, runtime_env or {})
    atexit.register(shutdown)


def is_initialized():
    return _connected is not None


def connected():
    if _connected is None:
        init()
    return _connected


def shutdown():
    for process in Process.started:
        process.end()
    Process.started.clear()
    if _connected:
        _connected.clean_up()


def remote(target):
    return RemoteClass(target) if isinstance(target, type) else RemoteFunction(target)


def get(references):
    """The result of one call, or of each in a list. Raises RayTaskError where it failed."""
    if isinstance(references, list):
        return [get(reference) for reference in references]
    return references.result()


def adopt(cluster):
    """Inside a worker: further workers are started as this one was."""
    global _connected
    _connected = cluster
    atexit.register(shutdown)
