"""What a run had around it, for its record: driver, GPUs, docker, images with their digests, Python and its packages.

Taken beside the job, in a thread, once a container is up, and with a low priority. What the job installs later is not
in it, so the file says when it was taken. A fact that cannot be had is left out, or has its reason beside it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional

from .. import layout
from ..docker.containers import Container, Containers, names_by_runtime, read_entries
from ..environment import job_environment

SETTLE = 2.0  # seconds that a container gets to start its own work first
GLANCE = 1.0  # seconds between two looks for new containers
RAREST = 15.0
LINGER = 5.0  # seconds that the end of a run waits for what is being asked
ASKING = 30.0  # seconds for one question
TOO_EARLY = "the container ended before its packages could be listed"
_NEVER = "0002"  # a container that did not start yet did so in the year 1
_VENV = 2.0  # seconds in which a script without a container makes its venv

# What `pip freeze` would say, with nothing but the standard library of Python 3.8.
LISTING = r"""
import sys
sys.path = [path for path in sys.path if path]  # a json.py in the checkout is none of ours
import json, os
from importlib import metadata
try:
    os.nice(19)
except Exception:
    pass
packages, direct = {}, {}
for found in metadata.distributions():
    name = found.metadata["Name"]
    if not name or name in packages:
        continue
    packages[name] = found.version
    try:
        text = found.read_text("direct_url.json")
        if text:
            direct[name] = json.loads(text)
    except Exception:
        pass
print("\n" + json.dumps({"python": sys.version.split()[0], "packages": packages, "direct": direct}))
"""


class Census:
    """Fills environment.json while the job runs."""

    def __init__(self, run_dir: str) -> None:
        self.paths = layout.RunDir(run_dir)
        self.containers = Containers(run_dir)
        self.plan = self.containers.plan
        self.facts: Dict[str, Any] = {}
        self._seen: Dict[str, Dict[str, Any]] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """A plan without container rules is no row's: nobody will ask what it ran on."""
        if "container" in self.plan:
            self._thread.start()

    def finish(self, found: List[Container]) -> None:
        """Add the images of what ended too early to be asked, and stop."""
        self._over.set()
        if not self._thread.ident:
            return
        self._thread.join(LINGER)
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()
        for container in found:
            if container.id not in self._seen:
                self._note(container, {"problem": TOO_EARLY})

    def _watch(self) -> None:
        try:
            self._host()
            if self._is_bare():
                self._bare()
            else:
                self._watch_containers()
        except Exception as error:  # a fact less is no reason to disturb a job
            self._put(problem=repr(error))

    # -- the host ----------------------------------------------------------------------------------------------------

    def _is_bare(self) -> bool:
        return (self.plan.get("container") or {}).get("runtime") == "none" or not self.plan.get("image")

    def _host(self) -> None:
        simulated = (self.plan.get("gpu_locks") or {}).get("simulated")
        if not self.plan.get("gpus") or simulated:
            return
        words = ["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader"]
        self._put(**gpu_facts(self._run(words)))

    def _bare(self) -> None:
        """The Python that the steps find: that of the shared install steps, of the script's own venv, or the host's."""
        setup, own = self.plan.get("setup"), os.path.join(self.paths.path, "tmp", "venv", "bin", "python3")
        shared = os.path.join(setup, "venv", "bin", "python3") if setup else own
        deadline = time.monotonic() + _VENV
        while time.monotonic() < deadline and not os.path.exists(shared) and not self._over.wait(0.1):
            pass
        env = {**job_environment({"host_env": self.plan.get("host_env")}, self.paths.path)}
        del env[layout.ENV_RUN_DIR]  # it is no process of the job
        python = shared if os.path.exists(shared) else shutil.which("python3", path=env.get("PATH"))
        if python:
            self._put(**self._taken(self._run([python, "-c", LISTING], env)))

    # -- containers --------------------------------------------------------------------------------------------------

    def _watch_containers(self) -> None:
        """Where docker.json names one that was not seen yet; a pull may take an hour, so the looks become rarer."""
        pause = GLANCE
        while not self._over.wait(pause):
            names = names_by_runtime(read_entries(self.paths.docker))
            if sum(map(len, names.values())) <= len(self._seen):
                pause = GLANCE
                continue
            pause = min(pause * 1.5, RAREST)
            for container in self.containers.find():
                if container.id in self._seen:
                    continue
                if container.running and not self._over.wait(SETTLE):
                    self._note(container, self._inside(container))
                elif not container.running and container.started_at > _NEVER:
                    self._note(container, {"problem": TOO_EARLY})

    def _inside(self, container: Container) -> Dict[str, Any]:
        words = ["exec", "--env", "PYTHONDONTWRITEBYTECODE=1", container.id, "python3", "-c", LISTING]
        answer = container.client.ask(*words, within=ASKING)
        if answer.code != 0:
            return {"problem": "its packages could not be listed: %s" % answer.problem}
        return self._taken(answer.out)

    def _note(self, container: Container, more: Dict[str, Any]) -> None:
        fact = {
            "name": container.name,
            "image": container.image,
            "image_id": container.image_id,
            "digests": _digests(container),
            "started_at": container.started_at,
            **more,
        }
        with self._lock:
            first = not self._seen
            self._seen[container.id] = fact
        if first:
            self._put(docker=_versions(container))
        self._put(containers=list(self._seen.values()))

    # -- the file ----------------------------------------------------------------------------------------------------

    def _taken(self, said: str) -> Dict[str, Any]:
        return {**packages(said), "taken_at": round(time.time(), 3)}

    def _put(self, **facts: Any) -> None:
        with self._lock:
            self.facts.update(facts)
            try:
                layout.write_json(self.paths.environment, self.facts)
            except OSError:
                pass  # a full disk

    def _run(self, words: List[str], env: Optional[Dict[str, str]] = None) -> str:
        """What a program of the host says, or nothing."""
        try:
            with subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
            ) as child:
                self._child = child
                try:
                    return child.communicate(timeout=ASKING)[0].decode(errors="replace")
                except subprocess.TimeoutExpired:
                    child.kill()
                    return ""
        except OSError:
            return ""


def gpu_facts(text: str) -> Dict[str, Any]:
    """Driver and GPUs from nvidia-smi's lines of index, name, driver version, memory."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    gpus = [
        {"index": int(row[0]), "name": row[1], "memory": row[3]} for row in rows if len(row) == 4 and row[0].isdigit()
    ]
    return {"driver": rows[0][2], "gpus": gpus} if gpus else {}


def packages(said: str) -> Dict[str, Any]:
    """What LISTING printed, in its last line: a site's own start-up code may print as well."""
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"problem": "python3 did not list its packages"}
    # A package that was installed by URL may have been so with a password.
    hidden = re.sub(r"//[^/@\s\"]*@", "//***@", json.dumps(found.get("direct") or {}))
    return {"python": found.get("python"), "packages": found.get("packages"), "direct": json.loads(hidden)}


def _digests(container: Container) -> List[str]:
    answer = container.client.ask("image", "inspect", "--format", "{{json .RepoDigests}}", container.image_id)
    try:
        found = json.loads(answer.out)
    except ValueError:
        return []
    return [str(digest) for digest in found] if isinstance(found, list) else []


def _versions(container: Container) -> Dict[str, Optional[str]]:
    answer = container.client.ask("version", "--format", "{{json .}}")
    try:
        found = json.loads(answer.out)
    except ValueError:
        found = {}
    return {
        side.lower(): (found.get(side) or {}).get("Version") if isinstance(found, dict) else None
        for side in ("Client", "Server")
    }
