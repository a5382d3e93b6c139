"""Files that CI's checkout would have with other bytes: what is tested are the bytes on disk, or those of the commit.

Filters (Git LFS), line ends and encodings are settings of a repository, or attributes. Nothing here applies them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ci_tasks.agent.trees.repositories import form_of, make_repository
from ci_tasks.checkout.git import Git
from ci_tasks.records import Conversion

MAX_FILES = 10  # shown of each reason
_CONVERTING = ("filter", "working-tree-encoding", "ident", "eol")
LFS = "Git LFS: CI's checkout has pointers, or the content with `lfs: true`"
LINE_ENDS = "line ends: CI's checkout has LF"


def find_conversions(store: Path, tree: str, head: str, written: Collection[bytes]) -> tuple[Conversion, ...]:
    """Of the files of `tree`, which is in the git directory `store`. `written`: `head` does not have them so."""
    reasons: dict[bytes, str] = {}
    git = Git(store)
    attributes = _attributes(git, tree)
    for path, found in attributes.items():
        if path in written and "filter" in found:
            name = found["filter"]
            reasons[path] = LFS if name == "lfs" else f"the filter {name}: CI's checkout does not have it"
        elif path not in written and (names := found.keys() - {"filter"}):
            shown = ", ".join(f"{name}={found[name]}" for name in sorted(names))
            reasons[path] = f"CI's checkout converts them: {shown}"
    if written:
        compared = "--numstat", "--no-renames", "--ignore-cr-at-eol", head, tree
        edited = git.run("diff-tree", "-r", "-z", *compared).split(b"\0")
        for path in set(written) - {line.split(b"\t", 2)[2] for line in edited if line}:
            if "eol" not in attributes.get(path, {}):
                reasons[path] = LINE_ENDS
    return _by_reason(reasons)


def _attributes(git: Git, tree: str) -> Mapping[bytes, Mapping[str, str]]:
    """Those that may convert a file, by path: of the tree's own files alone, as in CI's checkout."""
    entries = git.run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]
    own = [entry for entry in entries if entry.endswith(b".gitattributes")]
    if not own:
        return {}
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        make_repository(scratch, form_of(tree))
        Path(scratch, "info/attributes").unlink()
        plain = Git(Path(scratch), env={"GIT_OBJECT_DIRECTORY": f"{git.env['GIT_DIR']}/objects"})
        plain.run("update-index", "-z", "--index-info", input=b"".join(entry + b"\0" for entry in own))
        names = b"\0".join(entry.split(b"\t", 1)[1] for entry in entries)
        fields = plain.run("check-attr", "--cached", "-z", "--stdin", *_CONVERTING, input=names).split(b"\0")
    attributes: dict[bytes, dict[str, str]] = {}
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        if value not in (b"unspecified", b"unset", b"lf"):  # a blob with LF stays as it is
            attributes.setdefault(path, {})[name.decode()] = value.decode(errors="backslashreplace")
    return attributes


def _by_reason(reasons: Mapping[bytes, str]) -> tuple[Conversion, ...]:
    paths: dict[str, list[str]] = {}
    for path, why in sorted(reasons.items()):
        paths.setdefault(why, []).append(path.decode("utf-8", "backslashreplace"))
    return tuple(Conversion(why, len(files), tuple(files[:MAX_FILES])) for why, files in paths.items())


def in_directory(path: str, conversions: Iterable[Conversion]) -> tuple[Conversion, ...]:
    """The conversions of the repository at `path`, by paths from the directory around it."""
    return tuple(
        Conversion(found.why, found.count, tuple(f"{path}/{file}" for file in found.files)) for found in conversions
    )
