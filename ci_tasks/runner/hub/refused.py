"""Why a download cannot be done: a code for our code, and a message for a person. Pure."""

from __future__ import annotations

UNAUTHORISED = "unauthorised"  # 401: no token, or one that is not accepted
GATED = "gated"  # 403: whoever owns the token has not been let in
MISSING = "missing"  # 404: no such repository, revision or file
LIMITED = "limited"  # 429, and longer than anybody wants to wait
OFFLINE = "offline"  # nobody answers
TROUBLE = "trouble"  # the hub answers with an error of its own
FULL = "full"  # the disk is, or would be
DENIED = "denied"  # the directory cannot be written
HOSTILE = "hostile"  # a file's name leads out of its directory
CHECKSUM = "checksum"  # what came is not what the hub says it is
CODES = (UNAUTHORISED, GATED, MISSING, LIMITED, OFFLINE, TROUBLE, FULL, DENIED, HOSTILE, CHECKSUM)


class HubRefused(Exception):
    """`code` is one of CODES. No message holds a token, or an address with a signature in it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def of_status(status: int, error_code: str, what: str, has_token: bool) -> HubRefused:
    """What an answer with an error means. `error_code` is the hub's own word for it, "" where it says none."""
    if error_code == "GatedRepo" or status == 403:
        whose = "the token's owner has not been let in" if has_token else "no token was sent"
        return HubRefused(GATED, "%s is gated, and %s (%d)" % (what, whose, status))
    if status == 401:
        whose = "the token is not accepted" if has_token else "there is none of that name, or it wants a token"
        return HubRefused(UNAUTHORISED, "%s: %s (401)" % (what, whose))
    if status == 404:
        return HubRefused(MISSING, "%s: there is none (404)" % what)
    if status == 429:
        return HubRefused(LIMITED, "the hub answers no more for now: too many requests (429)")
    if status == 407:
        return HubRefused(OFFLINE, "the proxy wants a login (407)")
    return HubRefused(TROUBLE, "the hub answered %d for %s" % (status, what))
