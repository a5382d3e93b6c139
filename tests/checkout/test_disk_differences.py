"""What is tested is what is on disk, or the record names file and reason: on random repositories, and by cases."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.store import TreeStore
from ci_tasks.checkout import disk_differences
from ci_tasks.checkout.clone import materialize
from ci_tasks.checkout.pack import thin_pack
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.errors import CheckoutError
from ci_tasks.records import Checkout

repositories = sys.modules["ci_tasks_tests_repositories"]
git, make_repo, commit, contents = (
    repositories.git,
    repositories.make_repo,
    repositories.commit,
    repositories.contents,
)

SEEDS = range(int(os.environ.get("CI_TASKS_TEST_REPOSITORIES", "24")))
CONTENTS = (
    b"",
    b"one\ntwo\n",
    b"one\r\ntwo\r\n",
    b"mixed\r\nline\nends\r\n",
    b"$Id$ and $Id: 0123 $\n",
    "grün\n".encode("utf-16"),
    b"\0\1\2binary\r\n",
    b"no end",
    b"version https://git-lfs.github.com/spec/v1\n",
)
NAMES = (
    *("a.txt", "b.bat", "c.bin", "d.rc", "e.log", "sub/a.txt", "sub/f.bat", "sub/deep/g.bin", "sp ace 'x\".txt"),
    *("new\nline.txt", "-n", ":(top)x", "ünï.bat", "#x", "other/h.txt", "sub/.gitignore", "link", "run.sh"),
)
RULES = (
    *("* text=auto", "*.bat text eol=crlf", "*.txt text", "*.txt eol=crlf", "* -text", "*.bin binary", "*.txt ident"),
    *("*.bin filter=lfs", "*.bin filter=upper", "*.txt filter=upper", "*.bat filter=unknown", "* text=auto eol=crlf"),
    *("*.rc text working-tree-encoding=UTF-16", "*.txt !text", "sub/** -eol", "*.bat crlf", "a* eol=lf"),
)


class RandomRepository:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random, self.path = random.Random(seed), make_repo(directory / "repo")
        self.directory = directory

    def build(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            self.random.choice((self._settings, self._filters, self._attributes))()
        for _ in range(self.random.randint(2, 8)):
            self._write()
        for kind in (self._symlink, self._submodule):
            if self.random.random() < 0.4:
                kind()
        self._quietly("add", "--all")
        self._quietly("commit", "-q", "--allow-empty", "-m", "random")
        kinds = (
            *(self._write, self._write, self._delete, self._symlink, self._executable, self._attributes, self._flag),
            *(self._flag, self._sparse, self._ignore, self._force_add, self._intent_to_add, self._stage, self._nested),
            *(self._directory_for_file, self._settings, self._info_attributes, self._rename),
        )
        for _ in range(self.random.randint(1, 8)):
            self.random.choice(kinds)()

    def _quietly(self, *args: str) -> None:
        """A change that git refuses was none."""
        subprocess.run(["git", *args], cwd=self.path, capture_output=True, check=False)

    def _tracked(self) -> list[str]:
        return [name for name in git(self.path, "ls-files", "-z").split("\0") if name]

    def _any_file(self) -> Path | None:
        names = [name for name in self._tracked() if (self.path / name).is_file() and ".git" not in name]
        return self.path / self.random.choice(names) if names else None

    def _write(self) -> None:
        file = self.path / self.random.choice(NAMES)
        if file.is_dir() or file.is_symlink() or any(above.is_file() for above in file.parents):
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.random.choice(CONTENTS) * self.random.randint(1, 2))

    def _delete(self) -> None:
        if file := self._any_file():
            file.unlink()

    def _rename(self) -> None:
        if file := self._any_file():
            file.rename(file.with_name(f"renamed-{self.random.randint(0, 9)}{file.suffix}"))

    def _symlink(self) -> None:
        link = self.path / self.random.choice(("link", "sub/link", "dangling"))
        if not os.path.lexists(link) and link.parent.is_dir():
            link.symlink_to(self.random.choice(("kept.txt", "sub", "nowhere", "../a.txt")))

    def _executable(self) -> None:
        if file := self._any_file():
            file.chmod(0o755)

    def _attributes(self) -> None:
        directory = self.path / self.random.choice(("", "", "sub"))
        directory.mkdir(exist_ok=True)
        rules = self.random.sample(RULES, self.random.randint(1, 3))
        (directory / ".gitattributes").write_text("\n".join(rules) + "\n")

    def _info_attributes(self) -> None:
        (self.path / ".git/info/attributes").write_text(self.random.choice(RULES) + "\n")

    def _settings(self) -> None:
        settings = ("core.autocrlf=true", "core.autocrlf=input", "core.eol=crlf", "core.fileMode=false")
        git(self.path, "config", *self.random.choice(settings).split("="))

    def _filters(self) -> None:
        git(self.path, "config", "filter.upper.clean", "tr a-z A-Z")
        git(self.path, "config", "filter.upper.smudge", "tr A-Z a-z")
        git(self.path, "config", "filter.lfs.clean", "sh -c 'echo pointer; cksum'")

    def _flag(self) -> None:
        if file := self._any_file():
            flag = self.random.choice(("--assume-unchanged", "--skip-worktree"))
            self._quietly("update-index", flag, "--", os.path.relpath(file, self.path))
            if self.random.random() < 0.5:
                file.unlink()
            elif self.random.random() < 0.5:
                file.write_bytes(self.random.choice(CONTENTS))

    def _sparse(self) -> None:
        cone = self.random.choice((["--no-cone", "/a*"], ["--cone", "sub"], ["--cone", "--sparse-index", "other"]))
        self._quietly("sparse-checkout", "set", *cone)

    def _ignore(self) -> None:
        (self.path / ".gitignore").write_text(self.random.choice(("*.log\n", "sub/\n", "*.bin\n!c.bin\n", "")))

    def _force_add(self) -> None:
        self._add("forced.log", "--force")

    def _intent_to_add(self) -> None:
        self._add("intended.txt", "--intent-to-add")

    def _add(self, name: str, how: str) -> None:
        if not (self.path / name).is_dir():
            (self.path / name).write_bytes(self.random.choice(CONTENTS))
            self._quietly("add", how, name)

    def _stage(self) -> None:
        self._write()
        self._quietly("add", "--all")

    def _directory_for_file(self) -> None:
        if file := self._any_file():
            file.unlink()
            file.mkdir()
            (file / "inside.txt").write_bytes(self.random.choice(CONTENTS))

    def _submodule(self) -> None:
        library = self.directory / "library"
        if not library.exists():
            make_repo(library)
            self._quietly("submodule", "--quiet", "add", str(library), "third party")
            (self.path / "third party/kept.txt").write_bytes(self.random.choice(CONTENTS))
            (self.path / "third party/.gitattributes").write_text(self.random.choice(RULES) + "\n")

    def _nested(self) -> None:
        if not (self.path / "nested").exists():
            make_repo(self.path / "nested")


def travelled(repo: Path, directory: Path) -> tuple[Checkout, Path]:
    """As on a host over SSH."""
    snapshot, host = take_snapshot(repo, directory / "client"), TreeStore(str(directory / "host.git"))
    for part in snapshot.parts:
        host.receive(thin_pack(part, []))
    workspace = directory / "there"
    host.check_out([CheckoutPart(part.path, part.commit, part.tree) for part in snapshot.parts], str(workspace))
    return snapshot.checkout, workspace


def files(root: Path, names: set[bytes] | None = None) -> dict[bytes, tuple[bytes, bool]]:
    """By name: the content, and whether it is executable; only `names` if they are given."""
    top = os.fsencode(root)
    return {
        name: (content, bool(os.lstat(os.path.join(top, name)).st_mode & 0o100))
        for name, content in contents(root).items()
        if names is None or name in names
    }


def not_ignored(repo: Path, prefix: bytes = b"") -> set[bytes]:
    """What is on disk and no ignored file, repositories inside included."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(listing, cwd=repo, capture_output=True, check=True).stdout
    names = {prefix + name for name in output.split(b"\0") if name}
    for inner in (b"third party", b"nested"):
        path = repo / os.fsdecode(inner)
        if not prefix and (path / ".git").exists():
            names = {name for name in names if not name.startswith(inner)} | not_ignored(path, inner + b"/")
    return names


def unlike(repo: Path, workspace: Path) -> list[str]:
    disk, tested = files(repo, not_ignored(repo)), files(workspace)
    return sorted(
        name.decode("utf-8", "backslashreplace") for name in {*disk, *tested} if disk.get(name) != tested.get(name)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_repository_is_tested_as_on_disk_or_the_difference_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(disk_differences, "MAX_FILES", 1000)
    repository = RandomRepository(seed, tmp_path)
    repository.build()
    try:
        checkout, workspace = travelled(repository.path, tmp_path)
    except CheckoutError as error:
        if "'d.rc'" not in error.message:  # git itself refuses a file that is not in its working-tree-encoding
            raise
        return
    named = sorted(file for difference in checkout.unlike_disk for file in difference.files)
    assert named == unlike(repository.path, workspace)
    made = materialize(repository.path, tmp_path / "here")
    assert (made.tree, made.unlike_disk) == (checkout.tree, checkout.unlike_disk)
    assert files(tmp_path / "here") == files(workspace)


# One by one


def _lfs(repo: Path) -> None:
    git(repo, "config", "filter.lfs.clean", "sh -c 'echo pointer; cksum'")
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    for number in range(12):
        (repo / f"{number:02}.bin").write_text("large\n")


def _filter(repo: Path) -> None:
    git(repo, "config", "filter.upper.clean", "tr a-z A-Z")
    (repo / ".git/info/attributes").write_text("kept.txt filter=upper\n")
    (repo / "kept.txt").write_text("edited\n")


def _crlf_on_disk(repo: Path) -> None:
    git(repo, "config", "core.autocrlf", "input")
    (repo / "kept.txt").write_bytes(b"edited\r\n")


def _crlf_when_checked_out(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt eol=crlf\n")


def _crlf_in_both(repo: Path) -> None:
    _crlf_when_checked_out(repo)
    (repo / "kept.txt").write_bytes(b"kept\r\n")


def _ident(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt ident\n")
    (repo / "kept.txt").write_text("$Id$\n")


def _encoding(repo: Path) -> None:
    (repo / ".git/info/attributes").write_text("kept.txt text working-tree-encoding=UTF-16LE\n")
    (repo / "kept.txt").write_bytes("edited\n".encode("utf-16-le"))


def _sparse(repo: Path) -> None:
    git(repo, "sparse-checkout", "set", "--no-cone", "/kept.txt")


def _nothing_but_skipped(repo: Path) -> None:
    git(repo, "update-index", "--skip-worktree", ".gitignore", "kept.txt", "sub/inner.txt")
    for name in (".gitignore", "kept.txt", "sub/inner.txt"):
        (repo / name).unlink()


def _file_mode(repo: Path) -> None:
    git(repo, "config", "core.fileMode", "false")
    (repo / "kept.txt").chmod(0o755)


def _symlinks(repo: Path) -> None:
    (repo / "link").symlink_to("kept.txt")
    commit(repo)
    git(repo, "config", "core.symlinks", "false")
    (repo / "link").unlink()
    (repo / "link").write_text("kept.txt")


def _assumed_unchanged(repo: Path) -> None:
    """What git was told not to look at is edited, or gone."""
    git(repo, "update-index", "--assume-unchanged", "kept.txt", "sub/inner.txt")
    (repo / "kept.txt").write_text("edited\n")
    (repo / "sub/inner.txt").unlink()


def _edit_that_git_is_told_to_miss(repo: Path) -> None:
    git(repo, "config", "core.checkStat", "minimal")
    git(repo, "config", "core.trustctime", "false")
    before = os.stat(repo / "kept.txt")
    os.utime(repo / "kept.txt", ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))
    git(repo, "add", "kept.txt")
    (repo / "edited").write_text("KEPT\n")
    os.utime(repo / "edited", ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))
    (repo / "edited").rename(repo / "kept.txt")


CASES = [
    (_lfs, {"Git LFS: their pointers are tested": (12, [f"{number:02}.bin" for number in range(10)])}),
    (_filter, {"the attribute filter=upper converts them": (1, ["kept.txt"])}),
    (_crlf_on_disk, {"git converts their line ends": (1, ["kept.txt"])}),
    (_crlf_when_checked_out, {"git converts their line ends": (1, ["kept.txt"])}),
    (_crlf_in_both, {}),
    (_ident, {"the attribute ident=set converts them": (1, ["kept.txt"])}),
    (_encoding, {"the attribute working-tree-encoding=UTF-16LE converts them": (1, ["kept.txt"])}),
    (_sparse, {"they are not on disk: a sparse checkout, or skip-worktree": (2, [".gitignore", "sub/inner.txt"])}),
    (
        _nothing_but_skipped,
        {"they are not on disk: a sparse checkout, or skip-worktree": (3, [".gitignore", "kept.txt", "sub/inner.txt"])},
    ),
    (_file_mode, {"core.fileMode: git does not look at the executable bit": (1, ["kept.txt"])}),
    (_symlinks, {"core.symlinks: git takes a file for a link": (1, ["link"])}),
    (_assumed_unchanged, {}),
    (_edit_that_git_is_told_to_miss, {}),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[change.__name__.strip("_") for change, _ in CASES])
def test_a_difference_has_its_reason_and_the_first_of_its_files(
    repo: Path, tmp_path: Path, change: Callable[[Path], None], expected: dict[str, tuple[int, list[str]]]
) -> None:
    change(repo)
    checkout, workspace = travelled(repo, tmp_path)
    assert {found.why: (found.count, list(found.files)) for found in checkout.unlike_disk} == expected
    assert len(unlike(repo, workspace)) == sum(count for count, _ in expected.values())


def test_files_of_a_submodule_are_named_from_the_checkouts_root(with_submodule: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(with_submodule / "third party")
    checkout, _ = travelled(with_submodule, tmp_path)
    assert [found.files for found in checkout.unlike_disk] == [("third party/kept.txt",)]


def test_of_a_revision_nothing_is_compared_with_the_disk(repo: Path, tmp_path: Path) -> None:
    _file_mode(repo)
    assert take_snapshot(repo, tmp_path / "client", rev="HEAD").checkout.unlike_disk == ()


def test_a_directory_inside_a_repository_and_one_without_git_are_compared_too(part: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for directory in (part, tmp_path / "plain"):
        (directory / ".gitattributes").write_text("*.txt eol=crlf\n")
        (directory / "a.txt").write_text("edited\n")
        made = materialize(directory, tmp_path / "w")
        assert "a.txt" in made.unlike_disk[0].files
