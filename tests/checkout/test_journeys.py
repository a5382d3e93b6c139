"""Random repositories travel several times through random edits, with what hostile jobs leave in between.

What should arrive is said by the person's own git and the disk, not by our code. CI_TASKS_TEST_JOURNEYS=1000 makes more
of them.
"""

# mypy: disable-error-code="func-returns-value"
# The tables below are of things to do; several stand in a tuple, whose values are not read.

from __future__ import annotations

import os
import random
import stat
import subprocess
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.containers import remove_own
from ci_tasks.agent.git import MissingBase, StoreError
from ci_tasks.checkout.snapshot import Snapshot, materialize, take_snapshot, thin_pack
from ci_tasks.errors import CheckoutError
from tests.agent.trees.support import Host, receive
from tests.checkout.repositories import fingerprint

SENDS = 3
NAMES = [
    *(b"a", b"b.py", b"C", b"c", b"dir/x", b"dir/y/z", b"dir2/deep/er/f", b"new\nline", b"bad\xff\xfeutf", b"-dash"),
    *(b"sp ace ", b'quo"te', b"back\\slash", b"git~1", b"\xc3\xa9", b"e\xcc\x81", b"*glob?[x]", b":(top)x", b"x.crlf"),
    *(b"d/.gitkeep", b"x.bin", b"x.u16", b"build/out.o", b"log.txt", b"HEAD", b"!neg", b"#hash", b"dir/.h", b"x.lfs"),
]
IGNORE = ["*.o\n", "build/\n", "log.txt\n*.bin\n", "*\n!.gitignore\n!a\n", "dir/*\n!dir/x\n", ""]
ATTRIBUTES = [
    *("* text=auto\n", "*.crlf eol=crlf\n", "* filter=evil\n", "* ident\n", "*.u16 working-tree-encoding=UTF-16\n"),
    *("*.lfs filter=lfs diff=lfs -text\n", "[attr]q filter=evil\n* q\n", "* text eol=lf\n"),
]
SAFE = [
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "filter.evil.clean=cat", "filter.evil.smudge=cat"),
    *("filter.lfs.clean=cat", "core.protectNTFS=false", "protocol.file.allow=always", "user.name=p", "user.email=p@x"),
]
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")}, "GIT_CONFIG_GLOBAL": "/dev/null"}


def git(where: Path, *args: Any, **more: Any) -> bytes:
    command = ["git", *(word for flag in SAFE for word in ("-c", flag)), *map(str, args)]
    done: subprocess.CompletedProcess[bytes]
    done = subprocess.run(command, cwd=where, env=ENVIRONMENT, capture_output=True, check=False, **more)
    return done.stdout


def removed(path: Path) -> None:
    remove_own(str(path))


class Person:
    """A checkout and its edits."""

    def __init__(self, rng: random.Random, base: Path) -> None:
        self.rng, self.base, self.mark = rng, base, base / "EXECUTED"
        self.evil = f"touch {self.mark}; cat"
        self.kind = rng.choices(["git", "plain", "worktree", "unborn"], [10, 1, 1, 1])[0]
        self.top = self.source = base / rng.choice(["repo", "re po", "r\nq", 'r:s"t'])
        self.top.mkdir()
        if self.kind != "plain":
            git(self.top, "init", "-q")
        for _ in range(rng.randint(1, 12)):
            self.write()
        if self.kind not in ("plain", "unborn"):
            self._commit()
        if self.kind == "worktree":
            self.source = base / "linked"
            git(self.top, "worktree", "add", "-q", "--detach", self.source)

    def _commit(self) -> None:
        git(self.source, "add", "-A")
        git(self.source, "commit", "-qm", "x", "--allow-empty")

    def path(self) -> Path:
        return Path(os.fsdecode(os.path.join(os.fsencode(self.source), self.rng.choice(NAMES))))

    def content(self) -> bytes:
        text = b"".join(b"line %d\n" % self.rng.randrange(99) for _ in range(self.rng.randrange(30)))
        wide = "\ufeffwide\n".encode("utf-16")
        kinds = [text, text.replace(b"\n", b"\r\n"), self.rng.randbytes(900), b"$Id$\n" + text, wide, b""]
        return self.rng.choice(kinds)

    def write(self) -> None:
        path = self.path()
        if path.is_dir() and not path.is_symlink():
            return
        with suppress(NotADirectoryError, FileExistsError):
            for above in [*path.parents][::-1]:
                if len(str(above)) > len(str(self.source)) and (above.is_symlink() or above.is_file()):
                    above.unlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(self.content())
            path.chmod(self.rng.choice([0o644, 0o644, 0o755, 0o600, 0o664]))

    def some(self) -> Path | None:
        found = (p for p in sorted(self.source.rglob("*")) if ".git" not in p.relative_to(self.source).parts)
        files = [path for path in found if path.is_symlink() or path.is_file()]
        return self.rng.choice(files) if files else None

    def edit(self) -> str:
        """One random change. One that git refuses was none."""
        rng, some, source = self.rng, self.some(), self.source
        name = os.path.relpath(some, source) if some else "none"
        what: dict[str, Callable[[], object]] = {
            "commit": self._commit,
            "add": lambda: git(source, "add", "-A"),
            "uncache": lambda: git(source, "--literal-pathspecs", "rm", "-q", "--cached", "-f", "--", name),
            "force": lambda: git(source, "--literal-pathspecs", "add", "-f", "--", name),
            "assume": lambda: git(source, "update-index", "--assume-unchanged", "--", name),
            "skip": lambda: git(source, "update-index", "--skip-worktree", "--", name),
            "split": lambda: git(source, "update-index", "--split-index"),
            "intent": lambda: git(source, "add", "-N", "."),
            "stash": lambda: git(source, "stash"),
            "sparse": lambda: git(source, "sparse-checkout", "set", *rng.choice([["dir"], ["--no-cone", "/a"]])),
            "autocrlf": lambda: git(source, "config", "core.autocrlf", rng.choice(["true", "input", "false"])),
            "nested": self._nested,
            "submodule": self._submodule,
            "hostile": self._hostile,
            "bare": self._bare,
            "conflict": self._conflict,
            "ignore": lambda: (source / ".gitignore").write_text(rng.choice(IGNORE)),
            "exclude": lambda: (
                source / os.fsdecode(git(source, "rev-parse", "--git-path", "info/exclude")[:-1])
            ).write_text("c\n"),
            "attributes": lambda: (source / ".gitattributes").write_text(rng.choice(ATTRIBUTES)),
            "fifo": lambda: os.mkfifo(source / "pipe"),
            "link": lambda: self.path().symlink_to(rng.choice(["a", "nowhere", "..", "/etc/passwd", "dir"])),
        }
        if some:
            what |= {
                "delete": some.unlink,
                "chmod": lambda: some.chmod(some.stat().st_mode ^ 0o111),
                "same": lambda: _same(some, rng),
                "todir": lambda: (some.unlink(), some.mkdir(), (some / "inside").write_bytes(self.content())),
            }
        choice = rng.choice([*what, *["write"] * 5])
        with suppress(OSError):
            what.get(choice, self.write)()
        return choice

    def _nested(self) -> None:
        path = self.source / self.rng.choice(["nest", "dir/nest"])
        if not os.path.lexists(path):
            path.mkdir(parents=True)
            git(path, "init", "-q")
            (path / "n").write_bytes(self.content())
            if self.rng.random() < 0.5:
                git(path, "add", "-A")
                git(path, "commit", "-qm", "n")
                (path / ".gitattributes").write_text("* filter=evil\n")
                for key in ("filter.evil.clean", "core.fsmonitor"):
                    git(path, "config", key, self.evil)
        elif (path / ".git").exists():
            (path / "n").write_bytes(self.content())

    def _submodule(self) -> None:
        library = self.base / "library"
        if self.kind not in ("git", "unborn"):
            return
        if not library.exists():
            library.mkdir()
            git(library, "init", "-q")
            (library / "l").write_text("l\n")
            git(library, "add", "-A")
            git(library, "commit", "-qm", "l")
        git(self.source, "submodule", "--quiet", "add", "-f", library, "sub mod")
        if self.rng.random() < 0.3:
            git(self.source, "submodule", "--quiet", "deinit", "-f", "sub mod")

    def _hostile(self) -> None:
        for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.lfs.clean", "core.sshCommand"):
            git(self.source, "config", key, self.evil)
        for key in ("core.pager", "diff.external"):
            git(self.source, "config", key, self.evil)
        git(self.source, "config", "remote.origin.url", f"ext::sh -c 'touch {self.mark}'")
        git(self.source, "config", "remote.origin.promisor", "true")

    def _bare(self) -> None:
        if not (self.source / "looks").exists():
            git(self.source, "init", "-q", "--bare", "looks")
            git(self.source / "looks", "--git-dir=.", "config", "core.fsmonitor", self.evil)

    def _conflict(self) -> None:
        git(self.source, "checkout", "-q", "-b", f"b{self.rng.random()}")
        self.write()
        self._commit()
        git(self.source, "checkout", "-q", "-")
        self.write()
        self._commit()
        git(self.source, "merge", "-q", "@{-1}")

    def git_is_broken(self) -> bool:
        """Some gits leave an index that they cannot read, of a sparse checkout with a split index."""
        command = ["git", "-c", "core.fsmonitor=", "ls-files"]
        done = subprocess.run(command, cwd=self.source, env=ENVIRONMENT, capture_output=True, check=False)
        return done.returncode != 0 and self.kind != "plain"

    def expected(self, source: Path | None = None) -> dict[bytes, tuple[str, bool, bytes]]:
        """Of each file its kind, its x and its bytes: what git tracks or does not ignore, as it is on disk."""
        place = source or self.source
        top, found = os.fsencode(place) + b"/", dict[bytes, tuple[str, bool, bytes]]()
        if git(place, "rev-parse", "--is-inside-work-tree") == b"true\n":
            listing = ["-c", "-o", "--deduplicate"]
        else:
            git(self.base, "init", "-q", "--bare", "empty.git")
            listing = ["-o"]
        where = [] if listing != ["-o"] else [f"--git-dir={self.base}/empty.git", f"--work-tree={place}"]
        names = git(place, *where, "ls-files", *listing, "-z", "--exclude-standard", "--", ".").split(b"\0")[:-1]
        tags = git(place, *where, "ls-files", "-t", "-z", "--", ".").split(b"\0")
        skipped = {line[2:] for line in tags if line.startswith(b"S ")}
        for name in names:
            path = top + name.rstrip(b"/")
            parents = [
                top + name.rstrip(b"/")[:at] for at in range(len(name.rstrip(b"/"))) if name[at : at + 1] == b"/"
            ]
            if any(map(os.path.islink, parents)):
                continue
            if not os.path.lexists(path):
                there = [parent for parent in parents if os.path.lexists(parent)]
                if name in skipped and all(map(os.path.isdir, there)):
                    staged = git(place, "--literal-pathspecs", "ls-files", "-s", "-z", "--", os.fsdecode(name))
                    mode, oid = staged.split()[:2]
                    if mode != b"160000":
                        blob = git(place, "cat-file", "blob", oid.decode())
                        found[name] = (mode.decode()[:3], mode == b"100755", blob)
            elif os.path.isdir(path) and not os.path.islink(path):
                if os.path.exists(path + b"/.git"):
                    inside = self.expected(Path(os.fsdecode(path)))
                    found |= {name.rstrip(b"/") + b"/" + below: entry for below, entry in inside.items()}
            elif entry := _entry(path):
                found[name] = entry
        return found


def _same(path: Path, rng: random.Random) -> None:
    """Other bytes in a file of the same size and time."""
    info, data = path.stat(), bytearray(path.read_bytes())
    if data and not path.is_symlink():
        data[rng.randrange(len(data))] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _entry(path: bytes) -> tuple[str, bool, bytes] | None:
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return "120", False, os.readlink(path)
    if stat.S_ISREG(info.st_mode):
        return "100", bool(info.st_mode & 0o100), Path(os.fsdecode(path)).read_bytes()
    return None


def sabotage(rng: random.Random, host: Path, work: Path, evil: str) -> list[str]:
    """What jobs, and other processes of the account, leave."""
    return [_sabotage(rng, host, work, evil) for _ in range(rng.randint(0, 5))]


def _sabotage(rng: random.Random, host: Path, work: Path, evil: str) -> str:
    inside = [path for path in sorted(work.rglob("*")) if ".git" not in path.relative_to(work).parts]
    files = [path for path in inside if path.is_file() and not path.is_symlink()]
    folders = [path for path in inside if path.is_dir() and not path.is_symlink()]
    some, folder = rng.choice(files or [work / "none"]), rng.choice([*folders, work])
    objects = host / "store.git/objects"
    what: dict[str, Callable[[], object]] = {
        "same": lambda: _same(some, rng),
        "chmod": lambda: some.chmod(rng.choice([0o777, 0o600, 0o4755, 0])),
        "hard": lambda: os.link(some, host / f"out{rng.random()}"),
        "dirlink": lambda: (folder.rename(host / f"away{rng.random()}"), folder.symlink_to(host)),
        "extra": lambda: (folder / rng.choice(["j.py", "conftest.py", ".gitattributes", ".gitignore"])).write_text("*"),
        "fifo": lambda: os.mkfifo(folder / "ff"),
        "socket": lambda: os.mknod(folder / "so", stat.S_IFSOCK | 0o644),
        "nested": lambda: git(folder, "init", "-q", "nn"),
        "config": lambda: _hostile_repository(work, evil),
        "alternates": lambda: (work / ".git/objects/info/alternates").write_text("/tmp\n"),
        "index": lambda: (work / ".git/index").write_bytes(b"x" * 99),
        "dirmode": lambda: folder.chmod(rng.choice([0o777, 0o500, 0, 0o2775, 0o3777])),
        "empty": lambda: (folder / "em/pty").mkdir(parents=True),
        "xattr": lambda: os.setxattr(rng.choice([some, folder]), "user.evil", b"1"),
        "immutable": lambda: subprocess.run(["chattr", "+i", rng.choice([some, folder])], capture_output=True),
        "symlink": lambda: (work.rename(host / f"ws{rng.random()}"), work.symlink_to(host)),
        "gone": lambda: removed(work),
        "store": lambda: removed(host / "store.git"),
        "kept": lambda: [index.write_bytes(b"x" * 200) for index in host.glob("workspaces/*/index")],
        "pack": lambda: [_flip(pack) for pack in [*objects.rglob("*.pack")][:1]],
        "no pack index": lambda: [index.unlink() for index in [*objects.rglob("*.idx")][-1:]],
        "loose": lambda: _forge(objects, git(work, "hash-object", "--no-filters", "--", some).decode().strip()),
        "swap": lambda: (some.unlink(), some.symlink_to("/etc/passwd")),
        "gitfile": lambda: (removed(work / ".git"), (work / ".git").write_text("gitdir: /tmp/nowhere\n")),
        "no .git": lambda: removed(work / ".git"),
        "mtime": lambda: os.utime(some, (1, 1)),
        "lock": lambda: [index.with_name("index.lock").touch() for index in host.glob("workspaces/*/index")],
        "case": lambda: (some.parent / some.name.swapcase()).write_text("case"),
    }
    choice = rng.choice([*what])
    with suppress(OSError, ValueError):
        what[choice]()
    return choice


def _hostile_repository(work: Path, evil: str) -> None:
    for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean"):
        git(work, "config", key, evil)
    (work / ".git/hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (work / ".git/hooks" / name).write_text(f"#!/bin/sh\n{evil}\n")
        (work / ".git/hooks" / name).chmod(0o755)
    (work / ".git/info/attributes").write_text("* filter=evil ident\n")
    (work / ".git/info/exclude").write_text("*\n")


def _flip(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 255
    pack.chmod(0o644)
    pack.write_bytes(data)


def _forge(objects: Path, oid: str) -> None:
    """A blob under the name of another one."""
    (objects / oid[:2]).mkdir(exist_ok=True)
    (objects / oid[:2] / oid[2:]).write_bytes(zlib.compress(b"blob 5\0evil\n"))


def arrived(work: Path) -> tuple[dict[bytes, tuple[str, bool, bytes]], list[object]]:
    """The files, and what no fresh checkout has."""
    found, wrong, top = dict[bytes, tuple[str, bool, bytes]](), list[object](), os.fsencode(work)
    for above, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != b".git"]
        for name in names + [folder for folder in folders if os.path.islink(os.path.join(above, folder))]:
            path = os.path.join(above, name)
            info, entry = os.lstat(path), _entry(path)
            is_plain = not stat.S_ISREG(info.st_mode) or stat.S_IMODE(info.st_mode) in (0o644, 0o755)
            attributes = os.listxattr(path, follow_symlinks=False)
            if entry is None or attributes or info.st_nlink != 1 or info.st_mtime < 1e9 or not is_plain:
                wrong.append(path)
            if entry:
                found[os.path.relpath(path, top)] = entry
        if stat.S_IMODE(os.lstat(above).st_mode) != 0o755 or os.listxattr(above):
            wrong.append(above)
    return found, wrong


def send(snapshot: Snapshot, host: Host, known: list[str]) -> Path:
    """The workspace of a new run."""
    try:
        receive(host.store, thin_pack(snapshot, known))
        work = host.start(*snapshot.checkout_parts)
    except MissingBase:
        if not known:
            raise
        known.clear()
        return send(snapshot, host, known)
    known.append(snapshot.flat)
    return work


def end(host: Host, work: Path) -> None:
    with suppress(StoreError, OSError):  # then it is removed
        host.end(work)


def travel(seed: int, base: Path) -> None:
    rng = random.Random(seed)
    person, host, log, work = Person(rng, base), Host(base / "host"), list[object](), None
    known: list[str] = []
    for step in range(SENDS):
        if step:
            log.append([person.edit() for _ in range(rng.randint(0, 5))])
            if work is not None and rng.random() < 0.5:
                log.append(sabotage(rng, host.path, work, person.evil))
                end(host, work)
            elif work is not None:
                end(host, work)
                idle = host.idle[0] / "workspace" if host.idle else work
                log.append(sabotage(rng, host.path, idle, person.evil))
        if person.git_is_broken():
            return
        want, before = person.expected(), fingerprint(person.top)
        try:
            snapshot = take_snapshot(person.source, base / "client")
            work = send(snapshot, host, known)
        except (CheckoutError, StoreError):
            return
        context = (seed, person.kind, step, log)
        found, wrong = arrived(work)
        differing = [name for name in found.keys() | want.keys() if found.get(name) != want.get(name)]
        assert not differing, (differing, context)
        assert not wrong, (wrong, context)
        assert fingerprint(person.top) == before, ("the checkout changed", context)
        assert not person.mark.exists(), ("executed", context)
        head = git(work, "rev-parse", "HEAD").decode().strip()
        assert head == snapshot.parts[0].checkout.commit, (head, os.listdir(work), context)
        status = git(work, "status", "--porcelain", "--ignore-submodules=none")
        assert status == b"", (status, context)
        if step == SENDS - 1:
            made = materialize(person.source, base / "here", rev=None)
            assert arrived(base / "here")[0] == found, context
            assert made.tree == snapshot.checkout.tree, context
            assert fingerprint(person.top) == before, ("a clone changed the checkout", context)


@pytest.mark.parametrize("seed", range(int(os.environ.get("CI_TASKS_TEST_JOURNEYS", "40"))))
def test_every_send_arrives_as_on_disk_and_executes_nothing(tmp_path: Path, seed: int) -> None:
    mask = os.umask(0o022)
    try:
        travel(seed, tmp_path)
    finally:
        os.umask(mask)
        subprocess.run(["chattr", "-R", "-f", "-i", tmp_path], capture_output=True)
