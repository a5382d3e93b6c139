"""Which environment a worker gets: the cluster's own, updated with the job's runtime_env."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from verl.failures import asked

ROOT = Path(__file__).parents[1]
VARIABLE = "TINY_RAY_CLUSTER"
ADDRESS = "10.0.0.5:6379"
AUTO = (None, "", "auto")


class Cluster:
    def __init__(self, environment, launch, directory=None):
        self.environment, self.launch, self.directory = environment, launch, directory
        # The sample's own switches reach every process: they stand for facts of the machine, not for settings of a job.
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith("TINY_")}
        if asked("worker-import"):
            self.directory, self.environment["TINY_SITE_PACKAGES"] = installed_wheel()
        if asked("rocr"):
            self.environment |= {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}

    def clean_up(self):
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)


def connect(address, runtime_env):
    if asked("ray-init"):
        raise Exception(
            "The current node timed out during startup. This could happen because some of the raylet failed to "
            "startup or the GCS has become overloaded."
        )
    variables = {name: str(value) for name, value in runtime_env.get("env_vars", {}).items()}
    launch = shlex.split(runtime_env.get("py_executable") or sys.executable)
    wanted = address or os.environ.get("RAY_ADDRESS")
    existing = existing_cluster()
    if existing:
        if wanted not in (*AUTO, existing["address"]):
            raise ConnectionError(f"ray.init: no cluster answers at {wanted}")
        print(f"INFO worker.py:1723 -- Connecting to existing Ray cluster at address: {existing['address']}...")
        pinned = existing["env"] if existing.get("pinned") else {}
        return Cluster(survivors() | existing["env"] | variables | pinned, launch, existing.get("directory"))
    if wanted:
        raise ConnectionError(
            "Could not find any running Ray instance. Please specify the one to connect to by setting `--address` "
            "flag or `RAY_ADDRESS` environment variable."
        )
    print("INFO worker.py:1908 -- Started a local Ray instance.", flush=True)
    return Cluster(dict(os.environ) | variables, launch)


def existing_cluster():
    """The file that TINY_RAY_CLUSTER names, if there is one; or what a way to fail asks for."""
    named = os.environ.get(VARIABLE)
    if named and os.path.exists(named):
        return {"address": ADDRESS, "env": {}} | json.loads(Path(named).read_text())
    if asked("stale-ray") or asked("stale-ray-pinned"):
        directory, path = stale_checkout()
        pinned = asked("stale-ray-pinned")
        return {"address": ADDRESS, "env": {"PYTHONPATH": path}, "pinned": pinned, "directory": directory}
    return None


def survivors():
    """What a worker of someone else's cluster has in common with us: the machine."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}


def installed_wheel():
    """A site-packages with a megatron.bridge, for the workers alone: a copy of what is on our path."""
    directory = tempfile.mkdtemp(prefix="tiny-ray-")
    wheel = os.path.join(directory, "lib", "python3", "site-packages")
    for package in ("bridge", "core"):
        copy_package(package, wheel)
    return directory, wheel


def stale_checkout():
    """Another checkout of the Bridge, where the cluster was started from: a copy of the one on our path."""
    directory = tempfile.mkdtemp(prefix="tiny-ray-")
    source, megatron = (
        os.path.join(directory, "old/Megatron-Bridge", name) for name in ("src", "3rdparty/Megatron-LM")
    )
    copy_package("bridge", source)
    copy_package("core", megatron)
    return directory, os.pathsep.join([source, megatron])


def copy_package(name, destination):
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        package = os.path.join(entry, "megatron", name)
        if entry and os.path.isdir(package):
            shutil.copytree(package, os.path.join(destination, "megatron", name))
            return
