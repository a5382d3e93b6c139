"""A test of the person's checkout → what it launches: read from its syntax tree, or recorded in the sandbox."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import open_repository, resolve_rev
from ci_tasks.errors import UsageError
from ci_tasks.features.recorder import records, sandbox, syntax
from ci_tasks.features.recorder.records import Frame, LaunchCall, Recording, Stop

# What CI's container sets for a test; the row's own variables come on top. docker passes proxies on.
_ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_ENVIRONMENT |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
_SECRET = "<secret "  # stands in a variable for a value that is not known here
Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class LaunchRecorder:
    """Records the tests of one tree. `helpers` are a suite's launchers with their parameters, `read` gives the text of
    a file of the tree, and `directory` is where it lies, None where nothing of it may be executed."""

    helpers: Mapping[str, Sequence[str]]
    read: Read
    directory: Path | None = None

    def record(self, test: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Recording:
        """What `python TEST ARGS` launches with the row's `env`."""
        source = self.read(test)
        if source is None:
            return Recording(stops=(Stop("the checkout has no such file"),))
        shown = syntax.read_source(source, test, self.helpers)
        if self.directory is None or shown.stops:
            return shown
        public = {name: value for name, value in (env or {}).items() if _SECRET not in value}
        settings = {"test": test, "args": [*args], "helpers": {**self.helpers}, "env": {**_ENVIRONMENT, **public}}
        return self._recording_of(*sandbox.run(self.directory.resolve(), [json.dumps(settings)]), shown)

    def _recording_of(self, lines: str, problem: str, shown: Recording) -> Recording:
        """The recording of what the process wrote; `shown` is what the syntax tree shows of the same file."""
        calls: list[LaunchCall] = []
        files: dict[str, str] = {}
        stops: list[Stop] = []
        constants, entry, ended = dict(shown.constants), shown.entry, False
        for line in lines.splitlines():
            try:
                kind, data = json.loads(line)
                if kind == "call":
                    calls.append(self._call(**data))
                elif kind == "file":
                    files[data["path"]] = data["text"]
                elif kind == "stop":
                    stops.append(Stop(**data))
                elif kind == "pytest":
                    entry = records.PYTEST
                else:
                    constants.update(data)
                    ended = True
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # a line that the end of the process cut, or that the test wrote
        if not ended:
            stops.append(Stop(problem or "it ended itself"))
        if entry == records.NONE and any(call.function in self.helpers or call.commands for call in calls):
            entry = records.MAIN
        found = replace(shown, calls=tuple(calls), files=files, constants=constants, stops=tuple(stops))
        return replace(found, entry=entry, origin=records.RECORDED)

    def _call(self, stack: Sequence[tuple[str, str, int]], **data: object) -> LaunchCall:
        """A call as it was written down; a helper's arguments by name."""
        call = LaunchCall(stack=tuple(Frame(*frame) for frame in stack), **data)  # type: ignore[arg-type]
        named = dict(zip(self.helpers.get(call.function, ()), call.args, strict=False))
        return replace(call, args=call.args[len(named) :], kwargs={**named, **call.kwargs})


@contextmanager
def open_recorder(
    checkout: Path,
    read: Read,
    helpers: Mapping[str, Sequence[str]],
    *,
    rev: str | None,
    execute: bool,
    say: Callable[[str], object],
) -> Iterator[LaunchRecorder]:
    """A recorder of the person's own checkout, or of a revision of it; it only reads unless it is to `execute`, which
    it says. Raises UsageError where there is no sandbox for that."""
    if not execute:
        yield LaunchRecorder(helpers, read)
        return
    if why := sandbox.unavailable_reason():
        raise UsageError(f"--record needs Linux namespaces, and there are none here: {why}", hint="leave --record out")
    say(f"executing this checkout's tests{f' at {rev}' if rev else ''} under stubs, in a sandbox without network")
    with tempfile.TemporaryDirectory(prefix="ci-tasks-revision-") as exported:
        if rev:
            archive = open_repository(checkout).git.run("archive", "--format=tar", resolve_rev(checkout, rev))
            subprocess.run(["tar", "-xf", "-", "-C", exported], input=archive, check=True)
        yield LaunchRecorder(helpers, read, Path(exported) if rev else checkout)
