"""The nouns: a repository that a test downloads, a path that it expects to be there, and what could not be known."""

from __future__ import annotations

from dataclasses import field
from fnmatch import fnmatchcase

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.recorder.records import READ, RECORDED

MODEL, DATASET = "model", "dataset"
KINDS = (MODEL, DATASET)
MAIN = "main"
# How files lie in a directory: as in the repository (`--local-dir`), or as in the hub's own cache.
FILES, CACHE = "files", "cache"


@dataclass(frozen=True)
class SourceLocation:
    """Where a test asks for something: 1-based line of a file of the checkout, and the words of the call. `origin`:
    whether it was recorded, or only read from the syntax tree."""

    file: str
    line: int
    text: str
    origin: str = RECORDED

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' (read, not executed)' if self.origin == READ else ''}"


@dataclass(frozen=True)
class HubRepository:
    """A repository, or a part of it, and the directory that the test has it in, as the test names it.

    `include` and `exclude` are patterns as huggingface_hub has them (`*` also matches `/`); nothing means everything.
    """

    kind: str
    id: str
    directory: str
    layout: str = FILES
    revision: str = MAIN
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unlike for a model and a dataset of one id."""
        return f"{self.id} (dataset)" if self.kind == DATASET else self.id

    def takes(self, path: str) -> bool:
        """Whether the file `path` of the repository is one of those that the test downloads."""
        included = not self.include or any(fnmatchcase(path, _pattern(pattern)) for pattern in self.include)
        return included and not any(fnmatchcase(path, _pattern(pattern)) for pattern in self.exclude)


@dataclass
class HubRequirements:
    """All of a test's, in its order, each with the first place that says so. `expected` are paths that it takes to be
    there, and that nothing in it makes or downloads; `unknown` has (text, why) of downloads that it does not settle."""

    repositories: dict[HubRepository, SourceLocation] = field(default_factory=dict)
    expected: dict[str, SourceLocation] = field(default_factory=dict)
    unknown: dict[tuple[str, str], SourceLocation] = field(default_factory=dict)


def _pattern(text: str) -> str:
    """A directory means what is below it."""
    return f"{text}*" if text.endswith("/") else text
