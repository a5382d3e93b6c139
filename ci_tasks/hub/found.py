"""What the hub has of a repository that a test wants, or why it does not give it."""

from __future__ import annotations

from dataclasses import dataclass

from ci_tasks.runner.hub.folders import File
from ci_tasks.runner.hub.refused import (
    CHECKSUM,
    DENIED,
    FULL,
    GATED,
    HOSTILE,
    LIMITED,
    MISSING,
    OFFLINE,
    TROUBLE,
    UNAUTHORISED,
)

STOPPED = "stopped"
PASSING = (OFFLINE, LIMITED, TROUBLE)  # say nothing of the repository


@dataclass(frozen=True)
class Refusal:
    """Why a repository cannot be had: a code of ci_tasks.runner.hub.refused, what happened, and the next step."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class Found:
    """A repository at the commit that its revision means now, and those of its files that are wanted.

    `gated` is "" or how people are let in (auto, manual). `private` and gated ones want a token. `closed` says that
    its files are not given to us; where they all are there already, that is no harm."""

    commit: str
    files: tuple[File, ...]
    gated: str = ""
    private: bool = False
    closed: Refusal | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def wants_token(self) -> bool:
        return self.private or bool(self.gated)


def refusal(code: str, message: str, endpoint: str, id: str, kind: str, has_token: bool) -> Refusal:
    """With the next step that belongs to the code."""
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{id}"
    token = "give HF_TOKEN another token" if has_token else "set HF_TOKEN, or `hf auth login`"
    hints = {
        UNAUTHORISED: f"check the name at {page}; for a private repository {token}",
        GATED: f"accept its terms at {page} as the owner of the token" + ("" if has_token else f", and {token}"),
        MISSING: f"check the name and the revision at {page}",
        LIMITED: "try again later" + ("" if has_token else f"; limits are wider with a token: {token}"),
        OFFLINE: "check the network and HTTPS_PROXY; HF_ENDPOINT names a mirror, HF_HUB_OFFLINE must not be set",
        TROUBLE: "see https://status.huggingface.co, try later",
        FULL: "make room there, or have `mounts` of hosts.yaml name a larger disk; what is there already is kept",
        DENIED: "the directory belongs to somebody else: `sudo chown` it, or have `mounts` name one of yours",
        HOSTILE: f"do not use it; tell its owner, or the hub: {page}/discussions",
        CHECKSUM: "try again; if it stays so, something between the host and the hub changes what it sends",
        STOPPED: "the same command goes on where it stopped",
    }
    return Refusal(code, message, hints.get(code, ""))
