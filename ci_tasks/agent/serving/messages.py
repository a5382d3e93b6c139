"""The messages between client and host: requests, responses and updates of runs. Pure."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Literal, Mapping, Optional, Tuple, Union

from ..files import check_absolute_path, check_line
from ..quick_dataclass import dataclass
from ..records import CheckoutPart, Plan, QueryAnswer, RunDescription, State, Status


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
        """Whether it is a row, not install steps."""
        return self.number.isascii() and self.number.isdecimal() and self.batch not in ("", "runs")

    @property
    def id(self) -> str:
        return "%s%s%s" % (self.batch, "." if self.is_row else "/environments/", self.number)


# -- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Receive:
    """Store one pack of objects; its bytes follow."""

    do: Literal["receive"] = "receive"


@dataclass(frozen=True)
class Create:
    """Make a run directory, and its checkout from `parts` if there are any."""

    dir: str
    plan: Plan
    script: str
    parts: Tuple[CheckoutPart, ...] = ()
    do: Literal["create"] = "create"


@dataclass(frozen=True)
class StartRun:
    """Start a run, once, or with `sbatch_script` queue it for Slurm; its status says how that went. `secrets` go into
    the environment of its agent and nowhere else."""

    dir: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    sbatch_script: str = ""
    parts: Tuple[CheckoutPart, ...] = ()
    do: Literal["start"] = "start"


@dataclass(frozen=True)
class FollowedRun:
    """A run that the host calls `key` from now on, and whose log is wanted from `offset` on."""

    key: int
    dir: str
    offset: int


@dataclass(frozen=True)
class Follow:
    """Send updates of these runs, and their logs, beside those of all that are followed already."""

    runs: Tuple[FollowedRun, ...]
    do: Literal["follow"] = "follow"


@dataclass(frozen=True)
class Cancel:
    """End a run: its job has its grace period, or none with `kill`. A run that has not started never does. Also ends
    what a run whose agent died has left."""

    dir: str
    kill: bool = False
    do: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class Collect:
    """Send the run's small files and artifacts as a bundle in parts. `secrets` are needed if its agent died before it
    could mask them."""

    dir: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    do: Literal["collect"] = "collect"


@dataclass(frozen=True)
class Clear:
    """Remove a run and everything that belongs to it. With `shared`, the last run of a batch also removes the venvs
    that its rows share."""

    dir: str
    shared: bool = True
    do: Literal["clear"] = "clear"


@dataclass(frozen=True)
class LookAtProcesses:
    """Let the agent of a run look at the run's processes, and send what it has seen as a bundle in parts. `request` is
    new with each; one that is repeated gets the same answer."""

    dir: str
    request: str
    do: Literal["look"] = "look"


@dataclass(frozen=True)
class DescribeRun:
    """Describe a run that another client started."""

    dir: str
    do: Literal["describe"] = "describe"


@dataclass(frozen=True)
class RunPrograms:
    """Run programs of the host, name → argv, at the same time and for at most `timeout` seconds, in the environment
    that jobs get with `env`."""

    commands: Mapping[str, Tuple[str, ...]]
    timeout: float
    env: Mapping[str, str] = field(default_factory=dict)
    do: Literal["programs"] = "programs"


@dataclass(frozen=True)
class ListRuns:
    do: Literal["runs"] = "runs"


@dataclass(frozen=True)
class Prune:
    """Remove objects, agents and shared environments that were not used for `days` days; with `all_environments` every
    one that is not in use."""

    days: float
    all_environments: bool = False
    do: Literal["prune"] = "prune"


_OfRuns = Union[Create, StartRun, Follow, Cancel, Collect, Clear, LookAtProcesses, DescribeRun]
Request = Union[_OfRuns, Receive, RunPrograms, ListRuns, Prune]


# -- what one frame holds --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientMessage:
    id: int
    request: Request


@dataclass(frozen=True)
class Result:
    """The fields that the request asked for: `description` of DescribeRun, `outputs` of RunPrograms, `runs` of
    ListRuns. `left` has a line for each thing that Clear or Prune could not remove, `environments` one for each shared
    environment that was removed or is in use. `done` is false if Prune found the store of objects in use."""

    left: Tuple[str, ...] = ()
    description: RunDescription = RunDescription()
    outputs: Mapping[str, QueryAnswer] = field(default_factory=dict)
    runs: Tuple[RunSummary, ...] = ()
    done: bool = False
    environments: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Response:
    """The response to request number `id`. If that failed, `error` says why to a person, `code` to the client's code;
    `traceback` is for the client's log."""

    id: int
    result: Result = Result()
    error: str = ""
    code: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Hello:
    """The first message of a host. `home` is the directory that holds everything of ours on it, `python` the path and
    version of its Python. `agent` is the SHA-256 of the agent with byte
    code that it keeps: a client that names it the next time need not send the agent, and nothing is compiled."""

    home: str
    python: Tuple[str, str]
    agent: str = ""

    def __post_init__(self) -> None:
        check_absolute_path(self.home)
        check_absolute_path(self.python[0])
        check_line(self.python[1], 100)


@dataclass(frozen=True)
class RunUpdate:
    """A new status of the run that the client follows as `key`. `over`: it is the last update; `gone`: the agent died
    before it could write the end. `problem` says why it cannot be followed, with the `code` of a refusal."""

    key: int
    status: Optional[Status] = None
    over: bool = False
    gone: bool = False
    problem: str = ""
    code: str = ""


@dataclass(frozen=True)
class HostMessage:
    """Exactly one of these."""

    hello: Optional[Hello] = None
    response: Optional[Response] = None
    update: Optional[RunUpdate] = None
