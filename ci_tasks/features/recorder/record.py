"""A test of the person's own checkout → its recording: run in the sandbox where that is allowed, else only read."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import open_repository, resolve_rev
from ci_tasks.features.recorder import records, sandbox, syntax
from ci_tasks.features.recorder.records import AssertionSite, Frame, LaunchCall, Recording, Stop

# What CI's container sets for a test; the row's own variables come on top. docker passes proxies on.
_ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_ENVIRONMENT |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
_SECRET = "<secret "  # stands in a variable for a value that is not known here
Helpers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class LaunchRecorder:
    """Records the tests of one tree. `helpers` are a suite's launchers with their parameters, `read` gives the text of
    a file of the tree, and `directory` is where it lies, None where nothing of it may be executed."""

    helpers: Helpers
    read: Callable[[str], str | None]
    directory: Path | None = None

    def record(self, test: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Recording:
        """What `python TEST ARGS` launches with the row's `env`; of a file that is not there, an empty recording."""
        source = self.read(test)
        if source is None:
            return Recording(problem="the checkout has no such file")
        from_syntax = syntax.read_source(source, test, self.helpers)
        if self.directory is None or from_syntax.problem:
            return from_syntax
        public = {name: value for name, value in (env or {}).items() if _SECRET not in value}
        settings = {"test": test, "args": [*args], "helpers": {**self.helpers}, "env": {**_ENVIRONMENT, **public}}
        lines, problem = sandbox.run(self.directory.resolve(), [json.dumps(settings)])
        return _recording_of(lines, problem, from_syntax, self.helpers)


@contextmanager
def open_recorder(
    checkout: Path,
    read: Callable[[str], str | None],
    helpers: Helpers,
    *,
    rev: str | None,
    static: bool,
    say: Callable[[str], None],
) -> Iterator[LaunchRecorder]:
    """A recorder of the person's own checkout, or of a revision of it. Says whether it executes anything."""
    for kind in (Recording, LaunchCall, AssertionSite, Frame, Stop):
        fields(kind)  # makes the class, before several threads do
    if static or sandbox.unavailable_reason():
        why = "--static" if static else f"no sandbox here: {sandbox.unavailable_reason()}"
        say(f"tests are read, not executed ({why}): only what their syntax trees show is used")
        yield LaunchRecorder(helpers, read)
        return
    at = f" at {rev}" if rev else ""
    say(f"executing this checkout's tests{at} under stubs, in a sandbox without network (--static: only read them)")
    with tempfile.TemporaryDirectory(prefix="ci-tasks-revision-") as exported:
        if rev:
            archive = open_repository(checkout).git.run("archive", "--format=tar", resolve_rev(checkout, rev))
            subprocess.run(["tar", "-xf", "-", "-C", exported], input=archive, check=True)
        yield LaunchRecorder(helpers, read, Path(exported) if rev else checkout)


def _recording_of(lines: str, problem: str, read: Recording, helpers: Helpers) -> Recording:
    """The recording of what the process wrote; `read` is what the syntax tree shows of the same file."""
    calls: list[LaunchCall] = []
    assertions: list[AssertionSite] = []
    files: dict[str, str] = {}
    stops: list[Stop] = []
    constants, entry, ended = dict(read.constants), read.entry, False
    for line in lines.splitlines():
        try:
            data: dict[str, Any] = json.loads(line)
            kind = data.pop("kind")
            if kind == "call":
                calls.append(_call(data, helpers))
            elif kind == "assert":
                assertions.append(AssertionSite(**data, after=len(calls)))
            elif kind == "file":
                files[data["path"]] = data["text"]
            elif kind == "stop":
                stops.append(Stop(**data))
            elif kind == "pytest":
                entry = records.PYTEST
            else:
                constants.update(data["constants"])
                ended = True
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # a line that the end of the process cut, or that the test wrote
    if not ended:
        stops.append(Stop(problem or "it ended itself"))
    if entry == records.NONE and any(call.function in helpers or call.commands for call in calls):
        entry = records.MAIN
    reached = {(site.file, site.line) for site in assertions}
    assertions += [replace(site, after=None) for site in read.assertions if (site.file, site.line) not in reached]
    found = replace(read, calls=tuple(calls), assertions=tuple(assertions), files=files, constants=constants)
    return replace(found, stops=tuple(stops), entry=entry, origin=records.RECORDED)


def _call(data: dict[str, Any], helpers: Helpers) -> LaunchCall:
    """A call as it was written down; a helper's arguments by name."""
    call = LaunchCall(**{**data, "stack": tuple(Frame(*frame) for frame in data["stack"])})
    named = dict(zip(helpers.get(call.function, ()), call.args, strict=False))
    return replace(call, args=call.args[len(named) :], kwargs={**named, **call.kwargs}) if named else call
