"""Why a download cannot be done: a code, a message for a person, and the next step. Pure."""

from __future__ import annotations

import re

from ci_tasks.agent.quick_dataclass import dataclass

UNAUTHORISED = "unauthorised"  # 401: no token, or one that is not accepted
GATED = "gated"  # 403: the token's owner has no access
MISSING = "missing"  # 404: no such repository, revision or file
LIMITED = "limited"  # 429, and longer than anybody wants to wait
OFFLINE = "offline"  # nobody answers
TROUBLE = "trouble"  # the hub, or `hf download`, fails in another way
FULL = "full"  # the disk is, or would be
DENIED = "denied"  # the directory cannot be written
HOSTILE = "hostile"  # a file's name leads out of its directory
CHECKSUM = "checksum"  # what came is not what the hub says it is
TRANSIENT = (OFFLINE, LIMITED, TROUBLE)  # say nothing about the repository

# What `hf download` and `huggingface-cli download` print, whatever their version; the first that matches counts.
_PRINTED = (
    (FULL, r"No space left on device|Disk quota exceeded|Errno 28\b|Not enough free disk space"),
    (LIMITED, r"\b429\b|Too Many Requests|rate limit"),
    (GATED, r"GatedRepo|requires approval|(?<!private or )gated repo|\b403\b|Forbidden"),
    (UNAUTHORISED, r"\b401\b|Invalid (?:user )?token|RepositoryNotFound|(?:Repository|Model|Dataset).* not found"),
    (MISSING, r"Revision not found|RevisionNotFound|File not found in|\b404\b"),
    (DENIED, r"Permission denied|Read-only file system|Not a directory|Errno (?:13|20|30)\b"),
    (CHECKSUM, r"[Cc]onsistency check failed"),
    (TROUBLE, r"[Ss]erver [Ee]rror|\b50[0234]\b"),
    (OFFLINE, r"Connect(?:ion|Error|Timeout)|Name or service not known|timed out|Local entry not found|"
     r"LocalEntryNotFound|ProxyError|Max retries exceeded|\b407\b"),
)  # fmt: skip


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Lines whose numbers are no status: a progress bar, and a frame of a traceback.
_NO_STATUS = re.compile(r"\d%\|.*\||^File \".*\", line \d+")


class HubError(Exception):
    """`code` is one of the above. No message holds a token, or an address with a signature in it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path there, size in bytes and etag (sha256 of a large file, else git's blob hash)."""

    path: str
    size: int
    etag: str


@dataclass(frozen=True)
class RepoSnapshot:
    """A repository at the commit that its revision means now, and those of its files that are wanted.

    `gated` is "" or how access is given (auto, manual). `private` and gated ones need a token. `closed` says that its
    files are not given to us; where all of them are on the host already, that does not matter."""

    commit: str
    files: tuple[HubFile, ...]
    gated: str = ""
    private: bool = False
    closed: HubRefusal | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def needs_token(self) -> bool:
        return self.private or bool(self.gated)


@dataclass(frozen=True)
class HubRefusal:
    """Why a repository cannot be had. `last` is what the hub had when it last answered, if that is known."""

    code: str
    message: str
    hint: str
    last: RepoSnapshot | None = None


def of_status(status: int, error_code: str, what: str, has_token: bool) -> HubError:
    """What an answer with an error means. `error_code` is the hub's X-Error-Code, "" where it sent none."""
    if error_code == "GatedRepo" or status == 403:
        whose = "the token's owner has no access" if has_token else "no token was sent"
        return HubError(GATED, f"{what} is gated, and {whose} ({status})")
    if status == 401:
        whose = "the token is not accepted" if has_token else "it does not exist, or needs a token"
        return HubError(UNAUTHORISED, f"{what}: {whose} (401)")
    if status == 404:
        return HubError(MISSING, f"{what} does not exist (404)")
    if status == 407:
        return HubError(OFFLINE, "the proxy requires a login (407)")
    return HubError(TROUBLE, f"the hub answered {status} for {what}")


def of_output(output: str, what: str) -> HubError:
    """What the output of a download that failed means. The program can end with 0 all the same: where it cannot reach
    the repository, it calls an incomplete directory good."""
    lines = [line.strip() for line in re.split(r"[\r\n]", _COLOUR.sub("", output))]
    lines = [line for line in lines if line and not _NO_STATUS.search(line)] or ["no output"]
    code = next((code for code, pattern in _PRINTED if re.search(pattern, "\n".join(lines))), TROUBLE)
    error_line = next((line for line in reversed(lines) if re.search(r"\b\w*Error\b", line)), lines[-1])
    return HubError(code, f"{what}: {error_line}"[:500])


def refusal(error: HubError, endpoint: str, id: str, kind: str, has_token: bool) -> HubRefusal:
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{id}"
    token = "use another HF_TOKEN" if has_token else "set HF_TOKEN, or run `hf auth login`"
    hints = {
        UNAUTHORISED: f"check the name at {page}; for a private repository {token}",
        GATED: f"accept its terms at {page} as the owner of the token" + ("" if has_token else f", and {token}"),
        MISSING: f"check the name and the revision at {page}",
        LIMITED: "try again later" + ("" if has_token else f"; limits are higher with a token: {token}"),
        OFFLINE: "check the network and HTTPS_PROXY; HF_ENDPOINT names a mirror, HF_HUB_OFFLINE must not be set",
        TROUBLE: "see the log, and https://status.huggingface.co; try again later",
        FULL: "free some space there, or let `mounts` of hosts.yaml name a larger disk; complete files are kept",
        DENIED: "the directory belongs to another user: `sudo chown` it, or let `mounts` name one of yours",
        HOSTILE: f"do not use it; report it to its owner: {page}/discussions",
        CHECKSUM: "try again; if it stays so, something between the host and the hub changes the data",
    }
    return HubRefusal(error.code, error.message, hints.get(error.code, ""))
