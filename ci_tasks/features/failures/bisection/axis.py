"""What a bisection searches along: commits of the checkout, or what one commit of it runs with: images, or commits of
an overlay or a submodule. Points in order, the first one good, the last one bad.
"""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.commits import Commit, CommitHistory
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.failures.bisection.commit_graph import CommitGraph

COMMIT, IMAGE = "commit", "image"
OVERLAY, SUBMODULE = "overlay:", "submodule:"  # followed by the overlay's name, or the submodule's path
_SHORT = 12
_LIST = "`--images OLDEST,…,NEWEST`, or a file with one image in each line"


@dataclass(frozen=True)
class Point:
    """A commit to run, in the row's own image or in `image`. If `commit` is an overlay's or a submodule's, `checkout`
    is the commit of the checkout that runs with it."""

    commit: Commit
    image: str = ""
    checkout: str = ""

    @property
    def sha(self) -> str:
        """The commit of the checkout that runs."""
        return self.checkout or self.commit.sha

    @property
    def overlay(self) -> str:
        """The overlay's commit that it runs with; "" where none is searched."""
        return self.commit.sha if self.checkout else ""

    @property
    def key(self) -> str:
        """What tells it from the other points."""
        return self.image or self.commit.sha

    @property
    def short(self) -> str:
        if not self.image:
            return self.commit.sha[:_SHORT]
        name, at, digest = printable(self.image).rpartition("/")[2].partition("@")
        return f"{name}{at}{digest[: len('sha256:') + _SHORT]}"

    @property
    def subject(self) -> str:
        return self.image or self.commit.subject


@dataclass(frozen=True)
class SearchRange:
    """`points[0]` is the good end; `graph` says which point contains which."""

    axis: str
    points: tuple[Point, ...]
    graph: CommitGraph

    @property
    def noun(self) -> str:
        """What one point is called."""
        return "image" if self.axis == IMAGE else "commit"


def along_commits(history: CommitHistory) -> SearchRange:
    """The commits after the good one."""
    points = tuple(Point(commit) for commit in (history.good, *history.commits))
    return SearchRange(COMMIT, points, CommitGraph(history.positions()))


def along_images(commit: Commit, images: Sequence[str]) -> SearchRange:
    """`commit` in each of `images`, of which the first is good."""
    points = tuple(Point(commit, image) for image in images)
    return SearchRange(IMAGE, points, CommitGraph.linear(len(images) - 1))


def along_tree(commit: Commit, axis: str, history: CommitHistory) -> SearchRange:
    """`commit` with each commit of the overlay or submodule that `axis` names."""
    points = tuple(Point(each, checkout=commit.sha) for each in (history.good, *history.commits))
    return SearchRange(axis, points, CommitGraph(history.positions()))


def images_of(text: str, good: str | None = None, bad: str | None = None) -> tuple[str, ...]:
    """The images that `text` names, divided by commas or lines, from `good` to `bad`. Raises UsageError."""
    names = [name.partition(" #")[0].strip() for name in text.replace(",", "\n").splitlines()]
    images = [name for name in names if name and not name.startswith("#")]
    if twice := next((name for name in images if images.count(name) > 1), ""):
        raise UsageError(f"--images names {twice} twice", hint=_LIST)
    if len(images) < 2:
        message = f"{text} names one image, and is no file" if images == [text] else "fewer than two images"
        raise UsageError(f"--images: {message}", hint=_LIST)
    first, last = _place(images, "--good", good, 0), _place(images, "--bad", bad, len(images) - 1)
    if last <= first:
        raise UsageError(f"--good {images[first]} is not before --bad {images[last]} in --images", hint=_LIST)
    return tuple(images[first : last + 1])


def _place(images: Sequence[str], option: str, name: str | None, default: int) -> int:
    if name is None:
        return default
    if name not in images:
        raise UsageError(f"{option} {name} is not one of --images", hint=", ".join(images[:8]) or _LIST)
    return images.index(name)
