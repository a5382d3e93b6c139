"""A test of the person's checkout → what it launches: read from its syntax tree, or recorded in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.recorder import records, sandbox, syntax
from ci_tasks.features.recorder.records import LaunchCall, Recording

# What CI's container sets for a test; the row's own variables come on top. docker passes proxies on.
_ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_ENVIRONMENT |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
_SECRET = "<secret "  # stands in a variable for a value that is not known here
Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class LaunchRecorder:
    """Records the tests of one tree. `helpers` are a suite's launchers with their parameters, `read` gives the text of
    a file of the tree, and `directory` is where it lies, None if nothing of it may be executed."""

    helpers: Mapping[str, Sequence[str]]
    read: Read
    directory: Path | None = None

    def record(self, test: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Recording:
        """What `python TEST ARGS` launches with the row's `env`. A file that pytest runs is only read."""
        source = self.read(test)
        if source is None:
            return Recording(stops=("the checkout has no such file",))
        shown = syntax.read_source(source, test, self.helpers)
        if self.directory is None or shown.stops or shown.entry == records.PYTEST:
            return shown
        public = {name: value for name, value in (env or {}).items() if _SECRET not in value}
        settings = {"test": test, "args": [*args], "helpers": {**self.helpers}, "env": {**_ENVIRONMENT, **public}}
        lines, problem = sandbox.run(self.directory.resolve(), [json.dumps(settings)])
        calls, stops = self._written(lines.splitlines(), problem)
        launches = any(call.function in self.helpers or call.commands for call in calls)
        entry = records.MAIN if launches else shown.entry
        return replace(shown, calls=tuple(calls), stops=tuple(stops), entry=entry, origin=records.RECORDED)

    def _written(self, lines: Sequence[str], problem: str) -> tuple[list[LaunchCall], list[str]]:
        """What the process wrote: its calls, and why it stopped. `problem` is how it ended, "" for by itself."""
        calls: list[LaunchCall] = []
        stops: list[str] = []
        ended = False
        for line in lines:
            try:
                kind, data = json.loads(line)
                if kind == "call":
                    calls.append(self._call(**data))
                elif kind == "stop":
                    stops.append(str(data))
                ended |= kind == "end"
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # a line that the end of the process cut, or that the test wrote
        return calls, stops if ended else [*stops, problem or "it ended itself"]

    def _call(self, **data: object) -> LaunchCall:
        """A call as it was written down; a helper's arguments by name."""
        call = LaunchCall(**data)  # type: ignore[arg-type]
        named = dict(zip(self.helpers.get(call.function, ()), call.args, strict=False))
        return replace(call, args=call.args[len(named) :], kwargs={**named, **call.kwargs})


def open_recorder(
    checkout: Path,
    read: Read,
    helpers: Mapping[str, Sequence[str]],
    *,
    rev: str | None,
    execute: bool,
    say: Callable[[str], object],
) -> LaunchRecorder:
    """A recorder of the person's own checkout; it only reads unless it is to `execute`, which it says. Raises
    UsageError if there is no sandbox for that, or a revision is asked for."""
    if not execute:
        return LaunchRecorder(helpers, read)
    if rev:
        hint = f"`git worktree add /tmp/{rev} {rev}`, and --repo /tmp/{rev}; or leave --record out"
        raise UsageError("--record executes the working tree, not a revision", hint=hint)
    if why := sandbox.unavailable_reason():
        raise UsageError(f"--record needs Linux namespaces, and there are none here: {why}", hint="leave --record out")
    say("executing this checkout's tests under stubs, in a sandbox without network")
    return LaunchRecorder(helpers, read, checkout)
