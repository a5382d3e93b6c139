"""The messages between client and host: requests with their responses, and updates of watched runs. Pure.

A request names the class of its result: `Clear` is a `RequestFor[Cleared]`. `frames` carries the messages.
"""

from __future__ import annotations

import os
import typing
from dataclasses import field
from typing import Generic, Literal, Mapping, Optional, Tuple, Type, TypeVar, Union

from ..names import check_absolute_path, check_line
from ..quick_dataclass import dataclass
from ..records import CheckoutPart, Plan, QueryAnswer, RunDescription, State, Status

R = TypeVar("R")


@dataclass(frozen=True)
class RunSummary:
    """A run that a host keeps; `planned` until it starts. What it is called follows from its directory alone."""

    dir: str
    state: State = "planned"
    alive: bool = False
    kept: bool = False
    started_at: Optional[float] = None
    ended_at: Optional[float] = None

    def __post_init__(self) -> None:
        check_absolute_path(self.dir)

    @property
    def batch_dir(self) -> str:
        above = os.path.dirname(self.dir)
        return os.path.dirname(above) if os.path.basename(above) == "environments" else above

    @property
    def batch(self) -> str:
        return os.path.basename(self.batch_dir)

    @property
    def number(self) -> str:
        return os.path.basename(self.dir)

    @property
    def is_row(self) -> bool:
        """Install steps are none."""
        return self.number.isascii() and self.number.isdecimal() and self.batch not in ("", "runs")

    @property
    def id(self) -> str:
        return "%s%s%s" % (self.batch, "." if self.is_row else "/environments/", self.number)


# -- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class Cleared:
    """`left`: a line for each thing that could not be removed, with the reason."""

    left: Tuple[str, ...] = ()
    kind: Literal["cleared"] = "cleared"


@dataclass(frozen=True)
class DescribedRun:
    description: RunDescription
    kind: Literal["description"] = "description"


@dataclass(frozen=True)
class ProgramOutputs:
    outputs: Mapping[str, QueryAnswer] = field(default_factory=dict)
    kind: Literal["programs"] = "programs"


@dataclass(frozen=True)
class RunList:
    runs: Tuple[RunSummary, ...] = ()
    kind: Literal["runs"] = "runs"


@dataclass(frozen=True)
class Pruned:
    """`done` is false where another run uses the store of objects. `environments` has a line for each shared one that
    was removed or is in use, `left` one for what could not be removed of them."""

    done: bool = False
    environments: Tuple[str, ...] = ()
    left: Tuple[str, ...] = ()
    kind: Literal["pruned"] = "pruned"


Result = Union[Done, Cleared, DescribedRun, ProgramOutputs, RunList, Pruned]


@dataclass(frozen=True)
class RequestError:
    """Why a request failed: `code` for the client's code, `message` for a person, `traceback` for the client's log."""

    code: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Response:
    """The response to request number `id`: a result or an error."""

    id: int
    result: Optional[Result] = None
    error: Optional[RequestError] = None


# -- requests --------------------------------------------------------------------------------------------------------


class RequestFor(Generic[R]):
    """A request whose result is an R."""


@dataclass(frozen=True)
class Receive(RequestFor[Done]):
    """Store one pack of objects; its bytes follow. `form` is sha1 or sha256."""

    form: str
    do: Literal["receive"] = "receive"


@dataclass(frozen=True)
class Create(RequestFor[Done]):
    """Make a run directory, and its checkout from `parts` where there are any."""

    dir: str
    plan: Plan
    script: str
    parts: Tuple[CheckoutPart, ...] = ()
    do: Literal["create"] = "create"


@dataclass(frozen=True)
class StartRun(RequestFor[Done]):
    """Start a run, once. `secrets` go into the environment of its agent and nowhere else."""

    dir: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    do: Literal["start"] = "start"


@dataclass(frozen=True)
class Submit(RequestFor[Done]):
    """Queue a run for sbatch, once; `script` is the text of its batch script. Its status says how that went."""

    dir: str
    script: str
    parts: Tuple[CheckoutPart, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    do: Literal["submit"] = "submit"


@dataclass(frozen=True)
class Watch(RequestFor[Done]):
    """Send updates of a run under the number `key`, and its log from `offset` on."""

    dir: str
    key: int
    offset: int
    do: Literal["watch"] = "watch"


@dataclass(frozen=True)
class Cancel(RequestFor[Done]):
    """End a run: its job has its grace period, or none with `kill`. One that has not begun never begins. Also ends what
    a run whose agent died has left."""

    dir: str
    kill: bool = False
    do: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class Collect(RequestFor[Done]):
    """Send the run's small files and artifacts as a tar stream in parts. `secrets` are needed where its agent died
    before it could mask them."""

    dir: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    do: Literal["collect"] = "collect"


@dataclass(frozen=True)
class Clear(RequestFor[Cleared]):
    """Remove a run and everything that belongs to it. With `shared`, the last run of a batch also removes the venvs
    that its rows share."""

    dir: str
    shared: bool = True
    do: Literal["clear"] = "clear"


@dataclass(frozen=True)
class StoreProgram(RequestFor[Done]):
    """Keep a program for the agents of runs, under the name `prefix` and the SHA-256 of its bytes. They follow as those
    of a pack do, in zlib's form."""

    prefix: Literal["py-spy-"]
    sha256: str
    do: Literal["store-program"] = "store-program"


@dataclass(frozen=True)
class LookAtProcesses(RequestFor[Done]):
    """Let the agent of a run look at the run's processes, and send what it has seen as a stream in parts. `request` is
    new with each; one that is repeated gets the same answer."""

    dir: str
    request: str
    do: Literal["look"] = "look"


@dataclass(frozen=True)
class DescribeRun(RequestFor[DescribedRun]):
    """What run another client began."""

    dir: str
    do: Literal["describe"] = "describe"


@dataclass(frozen=True)
class RunPrograms(RequestFor[ProgramOutputs]):
    """Run programs of the host, name → argv, at the same time and for at most `timeout` seconds, in the environment
    that jobs get with `env`."""

    commands: Mapping[str, Tuple[str, ...]]
    timeout: float
    env: Mapping[str, str] = field(default_factory=dict)
    do: Literal["programs"] = "programs"


@dataclass(frozen=True)
class ListRuns(RequestFor[RunList]):
    do: Literal["runs"] = "runs"


@dataclass(frozen=True)
class Prune(RequestFor[Pruned]):
    """Remove objects, agents and shared environments that were not used for `days` days; with `all_environments` every
    one that is not in use."""

    days: float
    all_environments: bool = False
    do: Literal["prune"] = "prune"


_OfRuns = Union[Receive, Create, StartRun, Submit, Watch, Cancel, Collect, Clear]
Request = Union[_OfRuns, StoreProgram, LookAtProcesses, DescribeRun, RunPrograms, ListRuns, Prune]


def result_type(request: RequestFor[R]) -> Type[R]:
    """The class of the request's result."""
    kind: Type[R] = typing.get_args(type(request).__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return kind


# -- what one frame holds --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientMessage:
    id: int
    request: Request


@dataclass(frozen=True)
class Hello:
    """The first message of a host. `home` is the directory that holds everything of ours on it, `python` the path and
    version of its Python, `time` its clock's, in seconds since the epoch. `agent` is the SHA-256 of the agent with byte
    code that it keeps: a client that names it the next time need not send the agent, and nothing is compiled."""

    home: str
    python: Tuple[str, str]
    time: float = 0.0
    agent: str = ""

    def __post_init__(self) -> None:
        check_absolute_path(self.home)
        check_absolute_path(self.python[0])
        check_line(self.python[1], 100)


@dataclass(frozen=True)
class RunUpdate:
    """A new status of the run that the client watches as `key`. `over`: it is the last update; `gone`: the agent died
    before it could write the end. `problem` is set by the client, where it cannot decode an update."""

    key: int
    status: Optional[Status] = None
    over: bool = False
    gone: bool = False
    problem: str = ""


@dataclass(frozen=True)
class HostMessage:
    """Exactly one of these."""

    hello: Optional[Hello] = None
    response: Optional[Response] = None
    update: Optional[RunUpdate] = None
