"""The repository around a directory, its revisions, and a commit that it lacks.

It is found and read without its configuration: nothing that it names is executed. git works on it by a directory of
ours that has its references and borrows its objects. A directory that merely looks like a bare repository is never one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import weakref
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.trees.git import SHA1, SHA256, AnyPath, DiskFull, Git, make_repository, quoted
from ci_tasks.errors import Blocked, CheckoutError, nearest, some
from ci_tasks.resources import HOME_ENV

BASE = "origin/main"
_SHA256 = re.compile(rb"^\s*objectformat\s*=\s*sha256\s*$", re.IGNORECASE | re.MULTILINE)
_BORROWED = ("refs", "packed-refs", "reftable", "shallow", "info/exclude")
# The user's own settings, which a fetch needs. All other variables of git's point at the repository of a hook or alias.
_OF_USER = re.compile(r"GIT_(CONFIG_.+|SSH.*|SSL_.+|HTTP_.+|ASKPASS|PROXY_.+|ALLOW_PROTOCOL)")
_MISSING = re.compile(r"unable to read|cannot read|bad object|bad file|missing (blob|tree|commit)|invalid object")


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class MissingObjects(CheckoutError):
    """A partial clone lacks objects. Nothing is fetched unasked."""

    def __init__(self, directory: AnyPath, what: str) -> None:
        super().__init__(
            f"{directory} is a partial clone that lacks files which are needed: {what}",
            hint=f"`git -C {shlex.quote(str(directory))} fetch --refetch --no-filter` brings them (git 2.36 and later)",
        )


class CheckoutGit(Git):
    """`partial`: objects may be missing. `owner` has to stay as long as this is used."""

    timeout = 600.0
    own_session = False  # ^C ends it, since it writes our index; ssh may ask for a passphrase at the terminal
    partial = False
    owner: object = None

    def with_user_settings(self) -> CheckoutGit:
        """With the user's own configuration, for what needs the network or asks for it."""
        for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "HOME", "XDG_CONFIG_HOME"):
            del self.env[name]
        kept = (name for name in os.environ if not name.startswith("GIT_") or _OF_USER.fullmatch(name))
        self.env.update((name, os.environ[name]) for name in kept)
        return self

    def null_separated(self, *args: str) -> list[str]:
        """What git prints with `-z`, as a list."""
        return [os.fsdecode(name) for name in self.split(*args)]

    def text_or_none(self, *args: str) -> str | None:
        """What git prints, or None if it fails: for questions whose answer may be no."""
        try:
            return self.text(*args)
        except GitError:
            return None

    def refused(self, command: str, complaint: bytes, code: int) -> Exception:
        """Blocked for a full disk: that is about the machine, not about the checkout."""
        error = super().refused(command, complaint, code)
        if isinstance(error, DiskFull):
            reason = f"git {command} in {self.directory}: {complaint.decode(errors='replace').strip()}"
            return Blocked(reason, hint=f"the disk is full: make room, or {HOME_ENV} names another directory for runs")
        if self.partial and _MISSING.search(str(error)):
            return MissingObjects(self.directory, str(error).splitlines()[-1])
        return GitError(str(error))

    def unusable(self, command: str, error: Exception) -> Exception:
        """The error for a git that did not start, or did not answer in time."""
        if isinstance(error, subprocess.TimeoutExpired):
            return CheckoutError(
                f"git {command} in {self.directory} did not answer within {self.timeout / 60:g} minutes",
                hint="does the disk answer, or the network that it is on? `git status` there should end in seconds",
            )
        if not os.path.isdir(self.directory):
            return CheckoutError(f"there is no directory {self.directory}")
        if not isinstance(error, FileNotFoundError):
            return error
        why = "git is not installed, and a run needs it to take exactly your working tree"
        return CheckoutError(why, hint="install it (Debian: apt-get install git)")


@dataclass(frozen=True)
class Repository:
    """The repository around `directory`, which is `prefix` in it: "" at its root, `top`."""

    directory: Path
    top: Path
    prefix: str
    git_dir: Path
    common: Path  # what linked worktrees share

    @cached_property
    def config(self) -> bytes:
        """Its own, as data."""
        return content_of(str(self.common / "config"))

    @property
    def form(self) -> str:
        """The format of its object ids."""
        return SHA256 if _SHA256.search(self.config) else SHA1

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @cached_property
    def own(self) -> Path:
        """A git directory of ours that has the repository's references, and goes with this object."""
        # Not by `tempfile` and `shutil`: a command that only looks has to start quickly.
        own = Path(os.environ.get("TMPDIR") or "/tmp", f"ci-tasks-git-{os.getpid()}-{os.urandom(8).hex()}")
        own.mkdir(mode=0o700)
        weakref.finalize(self, _remove, own)
        make_repository(str(own), self.form, "refstorage = reftable\n" * (self.common / "reftable").is_dir())
        os.removedirs(own / "refs/heads")
        for name in _BORROWED:
            if (self.common / name).exists():
                (own / name).symlink_to((self.common / name).absolute())
        for file in self.git_dir.glob("sharedindex.*"):  # git renews the time of one that it reads
            (own / file.name).write_bytes(file.read_bytes())
        (own / "objects/info/alternates").write_bytes(os.fsencode(quoted(self.objects.absolute())) + b"\n")
        (own / "HEAD").write_bytes((self.git_dir / "HEAD").read_bytes())
        return own

    @cached_property
    def git(self) -> CheckoutGit:
        """git in the directory, for questions about commits."""
        return self.git_in(self.directory)

    def git_in(self, directory: Path) -> CheckoutGit:
        """git on the files, from one of their directories."""
        env = {"GIT_WORK_TREE": str(self.top), "GIT_INDEX_FILE": str(self.git_dir / "index")}
        git = CheckoutGit(self.own, directory, f"core.excludesFile={self.excludes}", **env)
        # If it was cloned with a filter, objects may be missing that its remote has promised.
        git.partial, git.owner = any((self.objects / "pack").glob("*.promisor")), self
        return git

    @cached_property
    def excludes(self) -> str:
        """The user's own ignore file, which the repository's configuration may name too."""
        question = "--type=path", "--get", "core.excludesFile"
        named = self.setting(*question) if b"excludesfile" in self.config.lower() else ""
        return named or user_excludes()

    def setting(self, *question: str) -> str:
        """What the repository's own configuration says, as data; "" if it says nothing."""
        git = CheckoutGit(self.own, self.directory)
        return git.text_or_none("config", "--file", str((self.common / "config").absolute()), *question) or ""

    def ignores(self, path: Path, *flags: str) -> bool:
        """Whether it ignores the path; with `--no-index`, which it may track nevertheless."""
        return self.git.text_or_none("check-ignore", "--quiet", *flags, str(path)) is not None

    @property
    def head(self) -> tuple[str, str]:
        """The commit that is checked out, and its tree; "" before the first one."""
        commit, tree, *_ = [*self.git.text("rev-parse", "--revs-only", "HEAD", "HEAD^{tree}").split(), "", ""]
        return commit, tree


def _remove(own: Path) -> None:
    for directory, names, files in os.walk(own, topdown=False):
        for name in (*names, *files):
            with suppress(OSError):  # a directory, which is removed already
                os.unlink(os.path.join(directory, name))
        with suppress(OSError):
            os.rmdir(directory)


def user_setting(*question: str) -> str:
    """The answer of `git config` by the user's own configuration, that of no repository; "" without one."""
    return CheckoutGit(os.devnull, "/").with_user_settings().text_or_none("config", *question) or ""


def user_excludes() -> str:
    """The file that the user's own configuration names for what every repository ignores, or the usual one."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return user_setting("--type=path", "--get", "core.excludesFile") or os.path.join(home, "git/ignore")


def find_repository(directory: Path) -> Repository | None:
    """None without one, or if it ignores the directory (the sample of an installed package may be in an ignored .venv).
    Raises CheckoutError for a repository that cannot be read: that is not the same as none."""
    place = Path(os.path.realpath(directory))
    for top in (place, *place.parents) if ".git" not in place.parts else ():
        git_dir = top / ".git"
        try:
            if git_dir.is_file():
                git_dir = top / os.fsdecode(git_dir.read_bytes()).removeprefix("gitdir:").strip("\n").lstrip(" ")
                if not (git_dir / "HEAD").is_file():
                    hint = "`git worktree repair` or `git submodule update --init` may repair it"
                    raise CheckoutError(f"{top / '.git'} names {git_dir}, which is not a git directory", hint=hint)
            common = git_dir / os.fsdecode(content_of(str(git_dir / "commondir")).removesuffix(b"\n"))
            if not (os.path.lexists(git_dir / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()):
                continue
        except OSError as error:
            raise CheckoutError(f"{git_dir} cannot be read: {error.strerror}") from None
        prefix = "" if top == place else str(place.relative_to(top))
        found = Repository(directory, top, prefix, git_dir, common)
        tracked = not prefix or found.git.text_or_none("rev-parse", "--verify", "--quiet", f"HEAD:{prefix}")
        return found if tracked or not found.ignores(place, "--no-index") else None
    return None


def open_repository(directory: Path) -> Repository:
    """The repository around the directory. Raises CheckoutError without one."""
    found = find_repository(directory)
    if found is None:
        raise no_repository(directory)
    return found


def no_repository(directory: Path) -> CheckoutError:
    if not is_bare(directory):
        return CheckoutError(f"{directory} is not a git repository")
    hint = f"git -C {shlex.quote(str(directory))} worktree add DIR makes a checkout for --repo DIR"
    return CheckoutError(f"{directory} is a bare repository: it has no files to run", hint=hint)


def is_bare(directory: Path) -> bool:
    """Whether it looks like a bare repository. It is never used as one: a clone may have such a directory."""
    return all((directory / name).exists() for name in ("HEAD", "objects", "refs"))


def default_base(source: Path) -> tuple[str, str]:
    """The merge base of HEAD with origin/main, or main, and the branch. Raises CheckoutError."""
    git = open_repository(source).git
    for branch in (BASE, "main", "origin/master", "master"):
        if commit := git.text_or_none("merge-base", "HEAD", branch):
            return commit, branch
    raise CheckoutError(f"{source} has neither {BASE} nor main to compare with", hint="--base REV names the base")


def resolve_base(source: Path, base: str) -> str:
    """The commit that `base` names in `source`. Raises CheckoutError that lists branches which could be meant."""
    return resolve_rev(source, base, " to compare with", "pass --base REV; ")


def resolve_rev(source: Path, rev: str, purpose: str = "", advice: str = "") -> str:
    """The commit that `rev` names in `source`. Raises CheckoutError."""
    git = open_repository(source).git
    if commit := commit_of(git, rev):
        return commit
    shown = "%(if)%(symref)%(then)%(else)%(refname:short)%(end)"  # origin/HEAD is only another name
    branches = (git.text_or_none("for-each-ref", f"--format={shown}", "refs/remotes", "refs/heads") or "").split()
    near = nearest(rev, branches)
    listed = some(sorted(branches, key=lambda name: name != near), 12) or "none"
    raise CheckoutError(f"{source} has no revision {rev!r}{purpose}", hint=f"{advice}branches here: {listed}")


def find_commit(source: Path, rev: str) -> str | None:
    """The commit that `rev` names in `source`, if that has it, or is a repository at all."""
    repository = find_repository(source)
    return commit_of(repository.git, rev) if repository else None


def commit_of(git: CheckoutGit, rev: str) -> str | None:
    """The commit that `rev` names."""
    return None if rev.startswith("-") else git.text_or_none("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")


def fetch_commit(source: Path, commit: str, store: Path, *, url: str, ref: str = "") -> Path:
    """A repository in the directory `store` that has `commit`, such as a pull request's merge, and shares the objects
    of `source`, into which no command writes. The only git that uses the network: by the user's own configuration.

    `ref` is where the server may still have it, if it does not give out bare commits. Raises CheckoutError.
    """
    repository = open_repository(source)
    own = store / ".git"
    make_repository(str(own), repository.form)
    (own / "objects/info/alternates").write_text(f"{quoted(repository.objects.resolve())}\n")
    git, problem = CheckoutGit(own, store).with_user_settings(), ""
    for refspec in ("", commit, ref):
        try:
            if refspec:
                git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", url, refspec)
        except GitError as error:
            problem = problem or str(error).splitlines()[0]
        if commit_of(git, commit):
            return store
    hint = f"{problem}\n" * bool(problem) + "--rev REV names another commit, --on-my-tree runs your working tree"
    raise CheckoutError(f"commit {commit[:12]}, which CI ran, is neither in {source} nor at {url}", hint=hint)
