"""What a model hub says of a repository: which files it has now, how large they are, and whether we get them.

That is a dry run of huggingface_hub's own download. A hub that says how long to wait is waited for.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ci_tasks import debug_log, known_secrets
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.prefetch.repositories import DATASET, HubRepository

DEFAULT = "https://huggingface.co"
TRIES = 4  # of what may pass by itself
MOST_WAIT = 300.0  # seconds for a hub that is asked too often, in all
_RETRIED = (408, 429, 500, 502, 503, 504)
_TOKEN = "set HF_TOKEN of somebody who has access, or run `hf auth login`"
# Why a download cannot be done → the next step; {page} is the repository's.
HINTS = {
    "unauthorised": f"check the name at {{page}}; for a private repository {_TOKEN}",
    "gated": f"accept its terms at {{page}} as the owner of the token, and {_TOKEN}",
    "missing": "check the name and the revision at {page}",
    "limited": f"try again later; limits are higher with a token: {_TOKEN}",
    "offline": "check the network and HTTPS_PROXY; HF_ENDPOINT names a mirror, HF_HUB_OFFLINE must not be set",
    "trouble": "see the log, and https://status.huggingface.co; try again later",
    "full": "free some space there, or let `mounts` of hosts.yaml name a larger disk; complete files are kept",
    "denied": "the directory belongs to another user: `sudo chown` it, or let `mounts` name one of yours",
    "hostile": "do not use it; report it to its owner: {page}/discussions",
    "checksum": "try again; if it stays so, something between the host and the hub changes the data",
}
# What `hf download` and `huggingface-cli download` print, whatever their version; the first that matches counts.
_PRINTED = {
    "full": r"No space left on device|Disk quota exceeded|Errno 28\b|Not enough free disk space",
    "limited": r"\b429\b|Too Many Requests|rate limit",
    "gated": r"GatedRepo|requires approval|(?<!private or )gated repo|\b403\b|Forbidden",
    "unauthorised": r"\b401\b|Invalid (?:user )?token|RepositoryNotFound|(?:Repository|Model|Dataset).* not found",
    "missing": r"Revision not found|RevisionNotFound|File not found in|\b404\b",
    "denied": r"Permission denied|Read-only file system|Not a directory|Errno (?:13|20|30)\b",
    "checksum": r"[Cc]onsistency check failed",
    "trouble": r"[Ss]erver [Ee]rror|\b50[0234]\b",
    "offline": r"Connect(?:ion|Error|Timeout)|Name or service not known|timed out|Local ?[Ee]ntry ?[Nn]ot|Proxy",
}
# Lines whose numbers are no status: a progress bar, and a frame of a traceback.
_NO_STATUS = re.compile(r"\d%\|.*\||^File \".*\", line \d+")
_T = TypeVar("_T")


class HubError(Exception):
    """`code` is one of HINTS. No message holds a token, or an address with a signature in it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True)
class Listing:
    """The files of a repository that a test wants, with their bytes, at the commit that its revision means now.
    `closed`: why they are not given to us, which does not matter where all of them are on the host."""

    commit: str
    files: Mapping[str, int]
    needs_token: bool = False
    closed: HubError | None = None


class Hub:
    """One hub, with one token, which is nowhere but in its requests. `say` hears why an answer takes long."""

    def __init__(
        self,
        host_env: Mapping[str, str],
        say: Callable[[str], None],
        pause: Callable[[float], object] = threading.Event().wait,
    ) -> None:
        from huggingface_hub import HfApi, get_token, utils

        utils.disable_progress_bars()  # type: ignore[attr-defined]
        self.endpoint = (host_env.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")
        self.token = get_token()
        known_secrets.add([self.token] if self.token else [])
        self._api: Any = HfApi(endpoint=self.endpoint, token=self.token or False, library_name="ci-tasks")
        self._say, self._pause = say, pause
        self._waited = 0.0
        self._said: set[str] = set()

    @property
    def shown(self) -> str:
        """Its address without a password that it may hold."""
        parts = urlsplit(self.endpoint)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def hint(self, code: str, repository: HubRepository) -> str:
        """The next step after an error."""
        page = f"{self.shown}/{'datasets/' if repository.kind == DATASET else ''}{repository.id}"
        return HINTS[code].format(page=page)

    def find(self, repository: HubRepository) -> Listing | HubError:
        try:
            return self._find(repository)
        except HubError as error:
            return error

    def _find(self, repository: HubRepository) -> Listing:
        name, about = repository.name, {"repo_type": repository.kind}
        info = self._ask(name, lambda: self._api.repo_info(repository.id, revision=repository.revision, **about))
        commit, closed = str(info.sha), None
        patterns = {"allow_patterns": repository.include or None, "ignore_patterns": repository.exclude or None}
        try:
            files = self._ask(name, lambda: self._dry_run(repository.id, revision=commit, **about, **patterns))
        except HubError as error:
            if error.code != "gated":
                raise
            from huggingface_hub import utils

            closed = error  # the hub lists what it does not give
            options = {"recursive": True, "revision": commit, **about}
            tree = self._ask(name, lambda: list(self._api.list_repo_tree(repository.id, **options)))
            sizes = {entry.path: entry.size for entry in tree if hasattr(entry, "blob_id")}
            select: Any = utils.filter_repo_objects  # type: ignore[attr-defined]
            files = {path: sizes[path] for path in select(sizes, **patterns)}
        for path in files:
            _check(path)
        if not files:
            raise HubError("missing", f"{name} has none of the files that the test asks for")
        return Listing(commit, files, bool(getattr(info, "private", False) or getattr(info, "gated", False)), closed)

    def _dry_run(self, id: str, **options: Any) -> dict[str, int]:
        """The files that a download would bring into an empty directory."""
        from huggingface_hub import snapshot_download  # HfApi's own method has `dry_run` only in later versions

        about: dict[str, Any] = {
            "endpoint": self.endpoint,
            "token": self.token or False,
            "library_name": "ci-tasks",
            **options,
        }
        with tempfile.TemporaryDirectory(prefix="ci-tasks-hub-") as empty:
            about.update(cache_dir=f"{empty}/cache", local_dir=f"{empty}/files")
            found = snapshot_download(id, dry_run=True, **about)
        return {file.filename: file.file_size for file in found}

    def _ask(self, subject: str, request: Callable[[], _T]) -> _T:
        """Its answer, asked again as long as that may help. Raises HubError."""
        for tries in range(1, TRIES + 1):
            try:
                return request()
            except Exception as error:
                seconds, refused = self._read(error, subject, tries)
                if seconds is None or self._waited + seconds > MOST_WAIT or tries == TRIES:
                    raise refused from error
                message = f"{refused.message}; asking again in {seconds:.0f} s"
                if message not in self._said:  # of questions that wait for the same reason, one says so
                    self._said.add(message)
                    self._say(message)
                self._waited += seconds
                self._pause(seconds)
        raise AssertionError("the last try raises")

    def _read(self, error: BaseException, subject: str, tries: int) -> tuple[float | None, HubError]:
        """Seconds until it may be otherwise, None where it will not be, and what it means."""
        from huggingface_hub import errors

        if isinstance(error, (errors.DryRunError, errors.LocalEntryNotFoundError)) and error.__cause__:
            return self._read(error.__cause__, subject, tries)
        response = getattr(error, "response", None)
        status, headers = getattr(response, "status_code", 0), getattr(response, "headers", {})
        has = bool(self.token)
        rejected = "the token is not accepted" if has else "it does not exist, or needs a token"
        refused = {
            401: ("unauthorised", f"{subject}: {rejected} (401)"),
            403: ("gated", f"{subject} is gated, and {'the token has no access' if has else 'no token was sent'}"),
            404: ("missing", f"{subject} does not exist (404)"),
            407: ("offline", "the proxy requires a login (407)"),
            429: ("limited", "too many requests (429)"),
        }
        if isinstance(error, errors.OfflineModeIsEnabled):
            return None, HubError("offline", "HF_HUB_OFFLINE is set on this machine")
        if isinstance(error, errors.RevisionNotFoundError):
            return None, HubError("missing", f"{subject} has no such revision (404)")
        if isinstance(error, errors.GatedRepoError):
            return None, HubError(*refused[403])
        if status >= 400:
            pause = _wait_of(headers, tries) if status == 429 else 2.0 ** (tries - 1)
            other = ("trouble", f"the hub answered {status} for {subject}")
            return (pause if status in _RETRIED else None), HubError(*refused.get(status, other))
        if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            why = getattr(error, "strerror", "") or type(error).__name__
            return 2.0 ** (tries - 1), HubError("offline", f"{self.shown} cannot be reached: {why}")
        if isinstance(error, ValueError):
            is_name = "ilename" in str(error)  # huggingface_hub refuses a file's name that leads out of its directory
            message = f"{subject} names a file outside its directory" if is_name else f"{subject} is no valid id"
            return None, HubError("hostile" if is_name else "missing", message)
        debug_log.LOGGER.error("the hub's answer about %s", subject, exc_info=error)
        return None, HubError("trouble", f"{subject}: the hub's answer cannot be read: {type(error).__name__}")


def of_output(output: str, what: str) -> HubError:
    """What the output of a download that failed means. The program can end with 0 all the same: where it cannot reach
    the repository, it calls an incomplete directory good."""
    lines = [line.strip() for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;]*m", "", output))]
    lines = [line for line in lines if line and not _NO_STATUS.search(line)] or ["no output"]
    code = next((code for code, pattern in _PRINTED.items() if re.search(pattern, "\n".join(lines))), "trouble")
    error_line = next((line for line in reversed(lines) if re.search(r"\b\w*Error\b", line)), lines[-1])
    return HubError(code, f"{what}: {error_line}"[:500])


def _wait_of(headers: Mapping[str, str], tries: int) -> float:
    """Seconds that the hub asks for: `Retry-After`, or `RateLimit: "api";r=0;t=55`; else growing ones."""
    after, reset = headers.get("retry-after", ""), re.search(r"\bt=(\d+)", headers.get("ratelimit", ""))
    if re.fullmatch(r"\d+(\.\d+)?", after):
        return float(after)
    return float(reset[1]) + 1 if reset else 5.0 * 2.0**tries


def _check(path: str) -> None:
    """Raises HubError for a name that leads out of its directory, or that cannot be a file's."""
    odd = "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path)
    if odd or any(part in ("", ".", "..") for part in path.split("/")) or path.startswith(".cache/huggingface/"):
        raise HubError("hostile", f"the hub names a file {path!a}, which could write outside its directory")
