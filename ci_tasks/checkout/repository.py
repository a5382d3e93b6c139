"""The repository around a directory, found and read without its configuration: nothing that it names is executed.

A `.git` is looked for upward; a directory that merely looks like a bare repository is never one. git works on it by a
directory of ours that has its references and borrows its objects.
"""

from __future__ import annotations

import os
import re
import shlex
import weakref
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.trees.repositories import AS_ON_DISK, quoted, repository_config
from ci_tasks.checkout.git import Git, user_setting
from ci_tasks.errors import CheckoutError

_SHA256 = re.compile(r"^\s*objectformat\s*=\s*sha256\s*$", re.IGNORECASE | re.MULTILINE)
_SHARED = ("refs", "packed-refs", "reftable", "shallow", "info/exclude", "logs/refs")
_REFTABLE = b"[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefstorage = reftable\n"
_OWN = ("*_HEAD", "logs/HEAD", "info/sparse-checkout")


@dataclass(frozen=True)
class Repository:
    """The repository around `directory`, which is `prefix` in it: "" at its root, `top`."""

    directory: Path
    top: Path
    prefix: str
    git_dir: Path
    common: Path  # what linked worktrees share

    @cached_property
    def form(self) -> str:
        """The form of its object names: sha1 or sha256."""
        return "sha256" if _SHA256.search(_read(self.common / "config")) else "sha1"

    @property
    def index(self) -> Path:
        return self.git_dir / "index"

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @property
    def partial(self) -> bool:
        """Whether it was cloned with a filter: then objects may be missing that its remote has promised."""
        return any((self.objects / "pack").glob("*.promisor"))

    @cached_property
    def own(self) -> Path:
        """A git directory of ours that has the repository's references, and goes with this object."""
        # Not by `tempfile`, nor `make_repository`, which needs it: a command that only looks has to start quickly.
        own = Path(os.environ.get("TMPDIR") or "/tmp", f"ci-tasks-git-{os.getpid()}-{os.urandom(8).hex()}")
        own.mkdir(mode=0o700)
        weakref.finalize(self, _remove, own)
        for name in ("objects/info", "info", "logs"):
            (own / name).mkdir(parents=True)
        found = [(self.common / name, name) for name in _SHARED]
        found += [(file, str(file.relative_to(self.git_dir))) for name in _OWN for file in self.git_dir.glob(name)]
        for file, name in found:
            if file.exists():
                (own / name).symlink_to(file.absolute())
        for file in self.git_dir.glob("sharedindex.*"):  # git renews the time of one that it reads
            (own / file.name).write_bytes(file.read_bytes())
        config = repository_config(self.form, bare=False) + (_REFTABLE if (own / "reftable").is_dir() else b"")
        (own / "config").write_bytes(config)
        (own / "info/attributes").write_bytes(AS_ON_DISK)
        (own / "objects/info/alternates").write_bytes(os.fsencode(quoted(str(self.objects.absolute()))) + b"\n")
        (own / "HEAD").write_bytes((self.git_dir / "HEAD").read_bytes())
        return own

    @cached_property
    def git(self) -> Git:
        """git in the directory, for questions about commits."""
        return self.with_index(self.index)

    def with_index(self, index: Path, excludes: str = "") -> Git:
        """git on the files with another index."""
        env = {"GIT_WORK_TREE": str(self.top), "GIT_INDEX_FILE": str(index)}
        settings = [f"core.excludesFile={excludes}"] if excludes else []
        return Git(self.own, self.directory, env, settings=settings, partial=self.partial, owner=self)

    @cached_property
    def excludes(self) -> str:
        """The user's own ignore file, which the repository's configuration may name too."""
        question = "--type=path", "--get", "core.excludesFile"
        named = self.setting(*question) if "excludesfile" in _read(self.common / "config").lower() else ""
        return named or user_excludes()

    def setting(self, *question: str) -> str:
        """What the repository's own configuration says, as data; "" if it says nothing."""
        return self.git.text_or_none("config", "--file", str((self.common / "config").absolute()), *question) or ""

    def ignores(self, path: Path, *, tracked: bool = False) -> bool:
        """Whether it ignores the path, which it may have `tracked` nevertheless."""
        git = self.with_index(self.index, excludes=self.excludes)
        flags = ["--no-index"] if tracked else []
        return git.text_or_none("check-ignore", "--quiet", *flags, str(path)) is not None

    @cached_property
    def _heads(self) -> list[str]:
        return self.git.text("rev-parse", "--revs-only", "HEAD", "HEAD^{tree}").split() or ["", ""]

    @property
    def head(self) -> str:
        """The commit that is checked out, "" before the first one."""
        return self._heads[0]

    @property
    def head_tree(self) -> str:
        return self._heads[1]


def user_excludes() -> str:
    """The file that the user's own configuration names for what every repository ignores, or the usual one."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return user_setting("--type=path", "--get", "core.excludesFile") or os.path.join(home, "git/ignore")


def find_repository(directory: Path) -> Repository | None:
    """None without one, or where it ignores the directory (the sample inside an installed package is in somebody's
    ignored .venv). Raises CheckoutError for a repository that cannot be read: that is not the same as none."""
    place = Path(os.path.realpath(directory))
    if ".git" in place.parts:
        return None
    for top in (place, *place.parents):
        try:
            git_dir = _git_dir(top / ".git")
        except OSError as error:
            raise CheckoutError(f"{top / '.git'} cannot be read: {error.strerror}") from None
        if git_dir is not None:
            prefix = "" if top == place else str(place.relative_to(top))
            found = Repository(directory, top, prefix, git_dir, _common(git_dir))
            if prefix and found.ignores(place, tracked=True) and not _has_directory(found):
                return None
            return found
    return None


def open_repository(directory: Path) -> Repository:
    """The repository around the directory. Raises CheckoutError without one."""
    found = find_repository(directory)
    if found is None:
        raise no_repository(directory)
    return found


def no_repository(directory: Path) -> CheckoutError:
    if not directory.is_dir():
        return CheckoutError(f"there is no directory {directory}")
    if is_bare(directory):
        return CheckoutError(
            f"{directory} is a bare repository: it has no files to run",
            hint=f"git -C {shlex.quote(str(directory))} worktree add DIR makes a checkout for --repo DIR",
        )
    return CheckoutError(f"{directory} is not a git repository")


def is_bare(directory: Path) -> bool:
    """Whether it looks like a bare repository. It is never used as one: a clone may have such a directory."""
    return all((directory / name).exists() for name in ("HEAD", "objects", "refs"))


def _git_dir(dot_git: Path) -> Path | None:
    """The git directory that `.git` is or names."""
    if dot_git.is_file():
        named = os.fsdecode(dot_git.read_bytes()).removeprefix("gitdir:").strip("\n").lstrip(" ")
        git_dir = dot_git.parent / named
        if not (git_dir / "HEAD").is_file():
            raise CheckoutError(
                f"{dot_git} names {git_dir}, which is not a git directory",
                hint="`git worktree repair` or `git submodule update --init` may repair it",
            )
        return git_dir
    if not os.path.lexists(dot_git / "HEAD"):
        return None
    return dot_git if all((_common(dot_git) / name).is_dir() for name in ("objects", "refs")) else None


def _common(git_dir: Path) -> Path:
    """Of a linked worktree, the .git that it belongs to."""
    with suppress(FileNotFoundError):
        return git_dir / os.fsdecode((git_dir / "commondir").read_bytes().removesuffix(b"\n"))
    return git_dir


def _has_directory(repository: Repository) -> bool:
    name = f"HEAD:{repository.prefix}"
    return repository.git.text_or_none("rev-parse", "--verify", "--quiet", name) is not None


def _remove(own: Path) -> None:
    for directory, directories, files in os.walk(own, topdown=False):
        for name in [*directories, *files]:
            path = os.path.join(directory, name)
            with suppress(OSError):
                os.unlink(path) if os.path.islink(path) or name in files else os.rmdir(path)
    with suppress(OSError):
        own.rmdir()


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
