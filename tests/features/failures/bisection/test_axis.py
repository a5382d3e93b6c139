"""What a point of each axis runs, and how it is called."""

from __future__ import annotations

from ci_tasks.checkout.commits import Commit, CommitHistory
from ci_tasks.features.failures.bisection.axis import SearchRange, along_commits, along_images, along_tree

A, B, HERE = (
    Commit(sha * 40, parents, "somebody", "2026-01-01", f"subject {sha}")
    for sha, parents in (("a", ()), ("b", ("a" * 40,)), ("c", ()))
)
HISTORY = CommitHistory(A, (B,))


def points(search: SearchRange) -> list[tuple[str, str, str, str]]:
    return [(point.sha, point.overlay, point.image, point.key) for point in search.points]


def test_a_commit_runs_as_it_is_and_an_overlay_and_an_image_with_one_commit_of_the_checkout() -> None:
    commits, overlay = along_commits(HISTORY), along_tree(HERE, "overlay:sglang", HISTORY)
    images = along_images(HERE, ["x@sha256:1", "x@sha256:2"])
    assert points(commits) == [(A.sha, "", "", A.sha), (B.sha, "", "", B.sha)]
    assert points(overlay) == [(HERE.sha, A.sha, "", A.sha), (HERE.sha, B.sha, "", B.sha)]
    assert points(images) == [(HERE.sha, "", image, image) for image in ("x@sha256:1", "x@sha256:2")]
    assert [search.noun for search in (commits, overlay, images)] == ["commit", "commit", "image"]
    assert (overlay.axis, overlay.points[1].subject) == ("overlay:sglang", "subject b")
