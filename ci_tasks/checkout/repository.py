"""The repository of a directory, its revisions and history, and a commit that it lacks.

It is found and read without its configuration: nothing that it names is executed. git works on it by a directory of
ours that has its references and borrows its objects. A directory that merely looks like a bare repository is never one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.files import content_of
from ci_tasks.agent.git import DiskFull, Git, make_repository, make_temporary_directory, quoted
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, CheckoutError, UsageError, nearest, short, some
from ci_tasks.resources import HOME_ENV

BASE = "origin/main"
_SHA256 = re.compile(rb"^\s*objectformat\s*=\s*sha256\s*$", re.IGNORECASE | re.MULTILINE)
_BORROWED = ("refs", "packed-refs", "reftable", "shallow", "info/exclude")
# The user's own settings, which a fetch needs. All other variables of git's point at the repository of a hook or alias.
_OF_USER = re.compile(r"GIT_(CONFIG_.+|SSH.*|SSL_.+|HTTP_.+|ASKPASS|PROXY_.+|ALLOW_PROTOCOL)")
_FORMAT = "%H%x1f%P%x1f%an <%ae>%x1f%aI%x1f%s"  # fields cannot be divided by what -z divides commits with
_MISSING = re.compile(r"unable to read|cannot read|bad object|bad file|missing (blob|tree|commit)|invalid object")


def hint_of_git(said: str) -> str:
    """The next step if git says that it lacks an object, or may not read a file."""
    if "Permission denied" in said:
        return "make it readable; if it is no part of the code, name it in .git/info/exclude"
    return "in a partial clone: `git fetch --refetch --no-filter`" if _MISSING.search(said) else ""


class GitError(CheckoutError):
    """git said no; the message is git's own."""


class CheckoutGit(Git):
    """`owner` has to stay as long as this is used."""

    timeout = 600.0
    own_session = False  # ^C ends it, since it writes our index; ssh may ask for a passphrase at the terminal
    owner: Repository | None = None

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
            hint = f"the disk is full: free some space, or set {HOME_ENV} to another directory for runs"
            return Blocked(str(error.args[0]), hint=hint)
        return GitError(str(error), hint=hint_of_git(str(error)))

    def unusable(self, command: str, error: Exception) -> Exception:
        """The error for a git that did not start, or did not answer in time."""
        if isinstance(error, subprocess.TimeoutExpired):
            return CheckoutError(f"git {command} in {self.directory} did not answer within {self.timeout:g} s")
        if not os.path.isdir(self.directory):
            return CheckoutError(f"there is no directory {self.directory}")
        return CheckoutError(f"git cannot be run: {error}", hint="install it (Debian: apt-get install git)")


@dataclass(frozen=True)
class Repository:
    """The repository whose work tree is `top`."""

    top: Path
    git_dir: Path
    common: Path  # what linked worktrees share

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @property
    def shallow_hint(self) -> str:
        if not (self.common / "shallow").exists():
            return ""
        return f"; it is a shallow clone: `git -C {shlex.quote(str(self.top))} fetch --unshallow` fetches the rest"

    @cached_property
    def own(self) -> Path:
        """A git directory of ours that has the repository's references, and goes with this object."""
        import shutil  # with every format of archives: commands that only look have no such directory

        own = Path(make_temporary_directory())
        weakref.finalize(self, shutil.rmtree, own, ignore_errors=True)
        make_repository(str(own), more_config="refstorage = reftable\n" * (self.common / "reftable").is_dir())
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
        """git on the files. What the repository's configuration says of ignored files counts, as data."""
        env = {"GIT_WORK_TREE": str(self.top), "GIT_INDEX_FILE": str(self.git_dir / "index")}
        excludes = self.setting("--type=path", "--get", "core.excludesFile") or user_excludes()
        git = CheckoutGit(self.own, self.top, f"core.excludesFile={excludes}", **env)
        git.owner = self
        return git

    def setting(self, *question: str) -> str:
        """What the repository's own configuration says, as data; "" if it says nothing."""
        git = CheckoutGit(os.devnull, self.top)
        return git.text_or_none("config", "--file", str((self.common / "config").absolute()), *question) or ""

    def ignores(self, path: Path) -> bool:
        return self.git.text_or_none("check-ignore", "--quiet", str(path)) is not None

    @property
    def head(self) -> tuple[str, str]:
        """The commit that is checked out, and its tree; "" before the first one."""
        commit, tree, *_ = [*self.git.text("rev-parse", "--revs-only", "HEAD", "HEAD^{tree}").split(), "", ""]
        return commit, tree


def user_excludes() -> str:
    """The file that the user's own configuration names for what every repository ignores, or the usual one."""
    git = CheckoutGit(os.devnull, "/").with_user_settings()
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return git.text_or_none("config", "--type=path", "--get", "core.excludesFile") or os.path.join(home, "git/ignore")


def find_repository(directory: Path) -> Repository | None:
    """None if the directory is not the root of one. Raises CheckoutError for a repository that cannot be read: that is
    not the same as none."""
    git_dir = directory / ".git"
    try:
        if git_dir.is_file():
            git_dir = directory / os.fsdecode(git_dir.read_bytes()).removeprefix("gitdir:").strip("\n").lstrip(" ")
            if not (git_dir / "HEAD").is_file():
                hint = "`git worktree repair` or `git submodule update --init` may repair it"
                raise CheckoutError(f"{directory}/.git names {git_dir}, which is not a git directory", hint=hint)
        common = git_dir / os.fsdecode(content_of(str(git_dir / "commondir")).removesuffix(b"\n"))
        if not (os.path.lexists(git_dir / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()):
            return None
    except OSError as error:
        raise CheckoutError(f"{git_dir} cannot be read: {error.strerror}") from None
    if _SHA256.search(content_of(str(common / "config"))):
        raise CheckoutError(f"{directory} has SHA-256 objects, which ci-tasks and GitHub do not support")
    return Repository(Path(os.path.realpath(directory)), git_dir, common)


def open_repository(directory: Path) -> Repository:
    """The repository of the directory. Raises CheckoutError without one."""
    found = find_repository(directory)
    if found is None:
        hint = "commits are needed: name the root of a clone; `git worktree add DIR` makes one of a bare repository"
        raise CheckoutError(f"{directory} is not the root of a git repository", hint=hint)
    return found


def default_base(source: Path) -> tuple[str, str]:
    """The merge base of HEAD with origin/main, or main, and the branch. Raises CheckoutError."""
    git = open_repository(source).git
    for branch in (BASE, "main", "origin/master", "master"):
        if commit := git.text_or_none("merge-base", "HEAD", branch):
            return commit, branch
    resolve_rev(source, "HEAD")  # without a commit, that is the reason
    raise CheckoutError(f"{source} has neither {BASE} nor main to compare with", hint="--base REV names the base")


def resolve_rev(source: Path, rev: str) -> str:
    """The commit that `rev` names in `source`. Raises CheckoutError."""
    repository = open_repository(source)
    if commit := commit_of(repository.git, rev):
        return commit
    names = repository.git.text_or_none("for-each-ref", "--format=%(refname:short)", "refs/remotes", "refs/heads")
    branches = (names or "").split()
    near = nearest(rev, branches)
    listed = some(sorted(branches, key=lambda name: name != near), 12) or "none"
    hint = f"branches here: {listed}{'; --base REV names another one' * (rev == BASE)}{repository.shallow_hint}"
    if not branches and not repository.head[0]:
        hint = "it has no commit yet: `git add --all && git commit` makes the first one"
    raise CheckoutError(f"{source} has no revision {rev!r}", hint=hint)


def find_commit(source: Path, rev: str) -> str | None:
    """The commit that `rev` names in `source`, if that has it, or is a repository at all."""
    repository = find_repository(source)
    return commit_of(repository.git, rev) if repository else None


def commit_of(git: CheckoutGit, rev: str) -> str | None:
    """The commit that `rev` names."""
    return None if rev.startswith("-") else git.text_or_none("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")


def submodules_of(git: CheckoutGit, rev: str) -> dict[bytes, str]:
    """The commits of the submodules of a revision or tree, by path."""
    entries = (entry.split(b"\t", 1) for entry in git.split("ls-tree", "-r", "-z", "--full-tree", rev))
    return {path: info.split()[2].decode() for info, path in entries if info.startswith(b"160000 ")}


def fetch_commit(source: Path, commit: str, store: Path, *, url: str, ref: str = "") -> Path:
    """A repository in the directory `store` that has `commit`, such as a pull request's merge, and shares the objects
    of `source`, into which no command writes. The only git that uses the network: by the user's own configuration.

    `ref` is where the server may still have it, if it does not give out bare commits. A login in `url` is left out: git
    would pass it on as an argument, which every user of the machine can read. Raises CheckoutError.
    """
    url = re.sub(r"^(https?://)[^/]*@", r"\1", url)
    own, objects = store / ".git", open_repository(source).objects
    make_repository(str(own))
    (own / "objects/info/alternates").write_text(f"{quoted(objects.resolve())}\n")
    git, problem = CheckoutGit(own, store).with_user_settings(), ""
    for refspec in ("", commit, ref):
        try:
            if refspec:
                git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", url, refspec)
        except GitError as error:
            problem = problem or str(error).splitlines()[0]
        if commit_of(git, commit):
            return store
    raise CheckoutError(f"commit {short(commit)} is not in {source}, and {url} did not give it", hint=problem)


# -- history ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit:
    """A commit. `date` is the author's, ISO 8601; `parents` are full names, in git's order."""

    sha: str
    parents: tuple[str, ...]
    author: str
    date: str
    subject: str


def parent_positions(commits: Sequence[Commit]) -> list[list[int]]:
    """The parents of all commits but the first, by position in the list: 0 is the first one and all that is older."""
    place = {commit.sha: number for number, commit in enumerate(commits)}
    return [[place.get(parent, 0) for parent in commit.parents] or [0] for commit in commits[1:]]


def commits_between(source: Path, good: str, bad: str, *, first_parent: bool = False) -> list[Commit]:
    """`good`, and the commits of `source` that `bad` contains and `good` does not, each after its parents; the last one
    is `bad`. `first_parent` follows merges along their first parent only.

    Raises CheckoutError for a revision that is not there, UsageError if `good` is not an ancestor of `bad`.
    """
    repository = open_repository(source)
    git, first, last = repository.git, resolve_rev(source, good), resolve_rev(source, bad)
    if first == last or git.text_or_none("merge-base", "--is-ancestor", first, last) is None:
        message = f"--good {good} ({first:.12}) is {'not an ancestor of ' * (first != last)}--bad {bad} ({last:.12})"
        base = git.text_or_none("merge-base", first, last) or "none"
        raise UsageError(message, hint=f"their merge base is {base:.12}{repository.shallow_hint}")
    mainline = ["--first-parent"] if first_parent else []
    commits = _log(git, "--topo-order", "--reverse", *mainline, f"{first}..{last}")
    if first_parent:
        commits = [replace(commit, parents=commit.parents[:1]) for commit in commits]
    return [*_log(git, "--max-count=1", first), *commits]


def commit_at(source: Path, rev: str) -> Commit:
    """The commit that `rev` names. Raises CheckoutError."""
    return _log(open_repository(source).git, "--max-count=1", resolve_rev(source, rev))[0]


def pinned_commit(source: Path, rev: str, path: str) -> str:
    """The commit at which `rev` has the submodule `path`. Raises CheckoutError for a revision that is not there,
    UsageError if it has no such submodule, or if that is not checked out."""
    links = submodules_of(open_repository(source).git, resolve_rev(source, rev))
    if os.fsencode(path) not in links:
        names = ", ".join(map(os.fsdecode, links)) or "none"
        raise UsageError(f"{rev} has no submodule {path!r}", hint=f"it has {names}")
    if not (source / path / ".git").exists():
        raise UsageError(f"the submodule {path} is not checked out", hint=f"git submodule update --init {path}")
    return links[os.fsencode(path)]


def _log(git: CheckoutGit, *args: str) -> list[Commit]:
    output = git.run("log", "-z", "--encoding=UTF-8", f"--format={_FORMAT}", *args, "--").decode("utf-8", "replace")
    entries = (entry.split("\x1f", 4) for entry in output.split("\0") if entry)
    return [Commit(sha, tuple(parents.split()), *rest) for sha, parents, *rest in entries]
