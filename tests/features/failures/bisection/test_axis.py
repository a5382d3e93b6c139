"""What a point of each axis runs, and how it is called."""

from __future__ import annotations

from ci_tasks.checkout.commits import Commit, CommitHistory
from ci_tasks.features.failures.bisection.axis import along_commits, along_images, along_tree

A, B, HERE = (
    Commit(sha * 40, parents, "somebody", "2026-01-01", f"subject {sha}")
    for sha, parents in (("a", ()), ("b", ("a" * 40,)), ("c", ()))
)
HISTORY = CommitHistory(A, (B,))


def test_a_commit_of_the_checkout_runs_as_it_is() -> None:
    search = along_commits(HISTORY)
    assert [(point.sha, point.overlay, point.key) for point in search.points] == [
        (A.sha, "", A.sha),
        (B.sha, "", B.sha),
    ]
    assert search.noun == "commit"


def test_a_commit_of_an_overlay_runs_with_one_commit_of_the_checkout() -> None:
    search = along_tree(HERE, "overlay:sglang", HISTORY)
    assert [(point.sha, point.overlay, point.key) for point in search.points] == [
        (HERE.sha, A.sha, A.sha),
        (HERE.sha, B.sha, B.sha),
    ]
    assert (search.axis, search.noun, search.points[1].subject) == ("overlay:sglang", "commit", "subject b")


def test_an_image_runs_with_one_commit_of_the_checkout() -> None:
    search = along_images(HERE, ["x@sha256:1", "x@sha256:2"])
    assert [(point.sha, point.image, point.overlay) for point in search.points] == [
        (HERE.sha, "x@sha256:1", ""),
        (HERE.sha, "x@sha256:2", ""),
    ]
    assert search.noun == "image"
