"""A test of the person's own checkout → its recording: run in the sandbox where that is allowed, else only read."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import open_repository, resolve_rev
from ci_tasks.recorder import sandbox, syntax
from ci_tasks.recorder.records import MAIN, NONE, PYTEST, RECORDED, AssertionSite, Frame, LaunchCall, Recording, Stop

# What CI's container sets for a test; the row's own variables come on top.
_ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_ENVIRONMENT |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")  # docker passes them on
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
        settings = {"root": sandbox.ROOT, "test": test, "args": list(args), "helpers": dict(self.helpers)}
        settings["env"] = {**_ENVIRONMENT, **public}
        lines, problem = sandbox.run(self.directory.resolve(), [json.dumps(settings)])
        return recording_of(lines, problem, from_syntax, self.helpers)


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
    unavailable = "--static" if static else sandbox.unavailable_reason()
    if unavailable:
        why = unavailable if static else f"no sandbox here: {unavailable}"
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


def recording_of(lines: str, problem: str, from_syntax: Recording, helpers: Helpers) -> Recording:
    """The recording of what the process wrote; `known` is what the syntax tree shows of the same file."""
    calls: list[LaunchCall] = []
    assertions: list[AssertionSite] = []
    files: dict[str, str] = {}
    stops: list[Stop] = []
    constants, entry = dict(from_syntax.constants), from_syntax.entry
    ended = False
    for line in lines.splitlines():
        try:
            fields: dict[str, Any] = json.loads(line)
            kind = fields.pop("kind")
            if kind == "call":
                calls.append(_call(fields, helpers))
            elif kind == "assert":
                assertions.append(AssertionSite(**fields, after=len(calls)))
            elif kind == "file":
                files[fields["path"]] = fields["text"]
            elif kind == "stop":
                stops.append(Stop(**fields))
            elif kind == "pytest":
                entry = PYTEST
            elif kind == "end":
                constants.update(fields["constants"])
                ended = True
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # a line that the end of the process cut, or that the test wrote
    if not ended:
        stops.append(Stop(problem or "it ended itself"))
    if entry == NONE and any(call.function in helpers or call.commands for call in calls):
        entry = MAIN
    reached = {(assertion.file, assertion.line) for assertion in assertions}
    unreached = [assertion for assertion in from_syntax.assertions if (assertion.file, assertion.line) not in reached]
    return replace(
        from_syntax,
        calls=tuple(calls),
        assertions=(*assertions, *(replace(assertion, after=None) for assertion in unreached)),
        files=files,
        constants=constants,
        stops=tuple(stops),
        entry=entry,
        origin=RECORDED,
    )


def _call(fields: dict[str, Any], helpers: Helpers) -> LaunchCall:
    """A call as it was written down; a helper's arguments by name, also where its module is not in the checkout."""
    stack = tuple(Frame(*frame) for frame in fields.pop("stack"))
    call = LaunchCall(**fields, stack=stack)
    named = dict(zip(helpers.get(call.function, ()), call.args, strict=False))
    return replace(call, args=[], kwargs={**named, **call.kwargs}) if call.function in helpers else call
