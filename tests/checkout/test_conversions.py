"""What is tested is what is on disk, byte for byte, and what CI's checkout would convert is named: on random
repositories, and by cases."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.store import TreeStore
from ci_tasks.checkout import conversions
from ci_tasks.checkout.clone import materialize
from ci_tasks.checkout.pack import thin_pack
from ci_tasks.checkout.snapshot import take_snapshot
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
        self.edit()

    def edit(self) -> None:
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
    shutil.rmtree(workspace, ignore_errors=True)
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


def left_out(repo: Path) -> set[bytes]:
    """What git was told to skip, and is not there."""
    listed = subprocess.run(["git", "ls-files", "-t", "-z"], cwd=repo, capture_output=True, check=True).stdout
    names = (line[2:] for line in listed.split(b"\0") if line.startswith(b"S "))
    return {name for name in names if not os.path.lexists(os.path.join(os.fsencode(repo), name))}


def assert_is_on_disk(repo: Path, workspace: Path) -> None:
    """But for files that a sparse checkout left out, which are as committed."""
    disk, tested = files(repo, not_ignored(repo)), files(workspace)
    absent = tested.keys() - disk.keys()
    assert {name: tested[name] for name in tested.keys() - absent} == disk
    assert absent <= left_out(repo)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_repository_is_tested_as_on_disk_and_no_filter_runs(tmp_path: Path, seed: int) -> None:
    repository = RandomRepository(seed, tmp_path)
    repository.build()
    ran = tmp_path / "ran"
    for name in ("upper", "lfs"):
        git(repository.path, "config", f"filter.{name}.clean", f"touch {ran}; cat")
    for _ in range(2):  # the second time with the index that the first one has left
        checkout, workspace = travelled(repository.path, tmp_path)
        assert_is_on_disk(repository.path, workspace)
        made = materialize(repository.path, tmp_path / "here")
        assert (made.tree, made.conversions) == (checkout.tree, checkout.conversions)
        assert files(tmp_path / "here") == files(workspace)
        repository.edit()
        ran.unlink(missing_ok=True)  # by a git of the test's own
    assert not ran.exists()


# One by one


def _lfs(repo: Path) -> None:
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    for number in range(12):
        (repo / f"{number:02}.bin").write_text("large\n")


def _lfs_pointers(repo: Path) -> None:
    _lfs(repo)
    commit(repo)


def _filter(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt filter=upper\n")
    (repo / "kept.txt").write_text("edited\n")


def _crlf_on_disk(repo: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    (repo / "kept.txt").write_bytes(b"kept\r\n")


def _crlf_and_an_edit(repo: Path) -> None:
    (repo / "kept.txt").write_bytes(b"edited\r\n")


def _crlf_when_checked_out(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt eol=crlf\n")


def _crlf_in_both(repo: Path) -> None:
    _crlf_when_checked_out(repo)
    (repo / "kept.txt").write_bytes(b"kept\r\n")


def _ident_and_encoding(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt ident\nsub/* text working-tree-encoding=UTF-16LE\n")


def _encoded_on_disk(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt text working-tree-encoding=UTF-16LE\n")
    (repo / "kept.txt").write_bytes("kept\n".encode("utf-16-le"))


def _attributes_that_convert_nothing(repo: Path) -> None:
    (repo / ".gitattributes").write_text("* text=auto eol=lf\n*.txt -filter\n")


def _executable(repo: Path) -> None:
    (repo / "kept.txt").chmod(0o755)


CONVERTED = "CI's checkout converts them"
CASES = [
    (_lfs, {conversions.LFS: (12, [f"{number:02}.bin" for number in range(10)])}),
    (_lfs_pointers, {}),
    (_filter, {"the filter upper: CI's checkout does not have it": (1, ["kept.txt"])}),
    (_crlf_on_disk, {conversions.LINE_ENDS: (1, ["kept.txt"])}),
    (_crlf_and_an_edit, {}),
    (_crlf_when_checked_out, {f"{CONVERTED}: eol=crlf": (1, ["kept.txt"])}),
    (_crlf_in_both, {}),
    (
        _ident_and_encoding,
        {
            f"{CONVERTED}: ident=set": (1, ["kept.txt"]),
            f"{CONVERTED}: working-tree-encoding=UTF-16LE": (1, ["sub/inner.txt"]),
        },
    ),
    (_encoded_on_disk, {}),
    (_attributes_that_convert_nothing, {}),
    (_executable, {}),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[change.__name__.strip("_") for change, _ in CASES])
def test_what_ci_converts_has_its_reason_and_the_first_of_its_files(
    repo: Path, tmp_path: Path, change: Callable[[Path], None], expected: dict[str, tuple[int, list[str]]]
) -> None:
    change(repo)
    checkout, workspace = travelled(repo, tmp_path)
    assert {found.why: (found.count, list(found.files)) for found in checkout.conversions} == expected
    assert_is_on_disk(repo, workspace)


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


def _tracked_and_ignored(repo: Path) -> None:
    """What a rule begins to ignore stays tracked; what nobody tracks does not travel any more."""
    (repo / ".gitignore").write_text("*.txt\n")
    (repo / "kept.txt").write_text("edited\n")


def _sparse(repo: Path) -> None:
    git(repo, "sparse-checkout", "set", "--no-cone", "/kept.txt")


def _sparse_with_a_link_for_a_directory(repo: Path) -> None:
    _sparse(repo)
    (repo / "sub").symlink_to("elsewhere")


def _sparse_with_a_file_for_a_directory(repo: Path) -> None:
    _sparse(repo)
    (repo / "sub").write_text("a file\n")


def _file_for_a_submodule(repo: Path) -> None:
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},gone")
    (repo / "gone").write_text("a file\n")


@pytest.mark.parametrize(
    "change",
    [
        _sparse_with_a_link_for_a_directory,
        _sparse_with_a_file_for_a_directory,
        _file_for_a_submodule,
        _file_mode,
        _symlinks,
        _assumed_unchanged,
        _edit_that_git_is_told_to_miss,
        _tracked_and_ignored,
        _sparse,
    ],
)
def test_a_change_that_the_users_git_would_miss_is_seen_by_a_warm_index_too(
    repo: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (repo / "untracked.txt").write_text("untracked\n")
    travelled(repo, tmp_path)
    change(repo)
    assert_is_on_disk(repo, travelled(repo, tmp_path)[1])


def test_an_index_whose_objects_are_gone_is_not_believed(repo: Path, tmp_path: Path) -> None:
    (repo / "new.txt").write_text("new\n")
    travelled(repo, tmp_path)
    for kept in (tmp_path / "client/objects").glob("??/*"):
        kept.unlink()
    assert_is_on_disk(repo, travelled(repo, tmp_path)[1])


def test_files_of_a_submodule_are_named_from_the_checkouts_root(with_submodule: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(with_submodule / "third party")
    checkout, _ = travelled(with_submodule, tmp_path)
    assert [found.files for found in checkout.conversions] == [("third party/kept.txt",)]


def test_a_revision_is_tested_as_committed(repo: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(repo)
    commit(repo)
    _crlf_in_both(repo)
    made = materialize(repo, tmp_path / "w", rev="HEAD")
    assert [found.files for found in made.conversions] == [("kept.txt",)]
    assert (tmp_path / "w/kept.txt").read_bytes() == b"kept\n"


def test_a_directory_inside_a_repository_and_one_without_git_are_looked_at_too(part: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for directory in (part, tmp_path / "plain"):
        (directory / ".gitattributes").write_text("*.txt eol=crlf\n")
        (directory / "b.txt").write_text("b\n")
        made = materialize(directory, tmp_path / "w")
        assert "b.txt" in made.conversions[0].files
