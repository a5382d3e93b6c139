"""git directories of ours, made without a git process: own configuration, and attributes that convert nothing."""

from __future__ import annotations

import os
import re

from ..files import replace_file

SHA1, SHA256 = "sha1", "sha256"
# Outranks every other file with attributes: a file is its blob, byte for byte, and no filter ever runs.
AS_ON_DISK = b"* -text !eol !filter !ident !working-tree-encoding\n"
ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def form_of(object_id: str) -> str:
    """The form of a repository's object ids (sha1 or sha256), by one of them."""
    return SHA256 if len(object_id) == 64 else SHA1


def make_repository(git_dir: str, form: str = "sha1", bare: bool = True) -> bool:
    """Create or repair the repository `git_dir`. Returns False, and changes nothing, where its object ids have another
    form."""
    for name in ("objects/pack", "objects/info", "refs/heads", "info"):
        os.makedirs(os.path.join(git_dir, name), exist_ok=True)
    config = repository_config(form, bare)
    present = _read(os.path.join(git_dir, "config"))
    if present != config:
        if present in (repository_config("sha1", bare), repository_config("sha256", bare)):
            return False
        replace_file(os.path.join(git_dir, "config"), config)
    attributes = os.path.join(git_dir, "info/attributes")
    if _read(attributes) != AS_ON_DISK:
        replace_file(attributes, AS_ON_DISK)
    head = os.path.join(git_dir, "HEAD")
    if not _read(head):
        replace_file(head, b"ref: refs/heads/ci-tasks\n")
    return True


def repository_config(form: str, bare: bool) -> bytes:
    version, more = ("1", "[extensions]\n\tobjectformat = sha256\n") if form == "sha256" else ("0", "")
    core = "[core]\n\trepositoryformatversion = %s\n\tbare = %s\n" % (version, str(bare).lower())
    return (core + more + "[gc]\n\tauto = 0\n").encode("ascii")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return b""


def quoted(path: str) -> str:
    """A path as git's lists of object directories want it."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        path = path.replace(plain, escaped)
    return '"%s"' % path
