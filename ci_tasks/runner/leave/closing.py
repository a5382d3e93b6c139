"""The end of a run, after its last process: its logs are brought out, and what it left on the host goes, or is kept.

Nothing here changes how the run ended, and nothing of it may keep the run from ending: what hangs is left behind.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .. import layout
from ..docker.containers import Container, Containers, environment
from .census import Census
from .collect import collect
from .trees import make_readable, remove_tree

COLLECTING = "collecting"  # the phase of status.json
LIMIT = 900.0  # seconds for everything: a kernel that holds a process, or a file system that is gone, never answers


class Closing:
    """Everything that is still to be done for a run when its processes are gone."""

    def __init__(self, paths: layout.RunDir, plan: Dict[str, Any]) -> None:
        self.paths, self.plan, self.began = paths, plan, time.time()
        self.containers = Containers(paths.path)
        self.census = Census(paths.path)

    def stop(self) -> None:
        """End the run's containers. They and their files stay, for their logs."""
        self.containers.stop()

    def close(self, succeeded: bool) -> Dict[str, Any]:
        """Collect, then remove or keep. Returns what status.json is to say: `kept`, and `left` with the reasons."""
        try:
            return self._close(succeeded)
        except Exception as error:  # whatever it is, the run has ended
            return {"left": ["not everything was removed: %r" % error]}

    def _close(self, succeeded: bool) -> Dict[str, Any]:
        found = self.containers.find()
        self.census.finish(found)
        image, daemon = image_of(found, self.plan), daemon_of(self.plan)
        problems = collect(self.paths, self.plan, found, self.began, failed=not succeeded)
        make_readable(self.paths.artifacts, image, *daemon)
        if self.plan.get("keep") and not succeeded:
            names = [container.name for container in found]
            return _said(problems, kept={"containers": names, "workspace": self.plan.get("workspace")})
        problems += remove_tree(os.path.join(self.paths.path, "tmp"), image, *daemon)
        return _said(problems + self.containers.remove() + remove_owned(self.paths, self.plan, image))


def remove_owned(paths: layout.RunDir, plan: Dict[str, Any], image: Optional[str]) -> List[str]:
    """Remove the directories that go with the run. Returns what is left and why."""
    left: List[str] = []
    for path in plan.get("owned") or []:
        if not os.path.isabs(path) or _holds(path, paths.path):
            left.append("%s: no directory of one run" % path)  # a plan that says so is wrong
        elif os.path.lexists(path):
            left += remove_tree(path, image, *daemon_of(plan))
    return left


def image_of(found: List[Container], plan: Dict[str, Any]) -> Optional[str]:
    """An image that is here for certain, or else the plan's."""
    image = plan.get("image")
    pinned = (plan.get("container") or {}).get("image") or {}
    return next((container.image_id for container in found if container.image_id), pinned.get(image, image))


def daemon_of(plan: Dict[str, Any]) -> Tuple[str, Dict[str, str]]:
    """Through what, and in which environment, a container is started."""
    return str((plan.get("container") or {}).get("runtime")), environment(plan)


def patiently(work: Callable[[], Any], beat: Callable[[], Any], every: float) -> Any:
    """What `work` returns, while `beat` is called every so often. None where it raises or takes for ever."""
    results: List[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    until = time.monotonic() + LIMIT
    while thread.is_alive() and time.monotonic() < until:
        thread.join(every)
        if thread.is_alive():
            beat()
    return results[0] if results else None


def _said(problems: List[str], **more: Any) -> Dict[str, Any]:
    return {**more, **({"left": problems} if problems else {})}


def _holds(directory: str, path: str) -> bool:
    top = os.path.realpath(directory).rstrip("/")
    return (os.path.realpath(path) + "/").startswith(top + "/")
