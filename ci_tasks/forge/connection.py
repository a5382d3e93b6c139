"""Faults of an HTTP connection, in words that repeat no address: signatures and logins stand in those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ci_tasks.errors import Blocked, UsageError

_DEEPEST = 12
_KNOWN = {
    "IncompleteRead": "it ended early",
    "InvalidChunkLength": "it ended early",
    "RemoteDisconnected": "the other end hung up",
    "ReadTimeoutError": "no answer in time",
    "ConnectTimeoutError": "no answer in time",
    "TimeoutError": "no answer in time",
}


class Broken(Exception):
    """A connection could not be made, or broke, which another try may mend. `progress` says that something arrived."""

    def __init__(self, reason: str, progress: bool = False) -> None:
        super().__init__(reason)
        self.progress = progress


@contextmanager
def guarded(host: str) -> Iterator[None]:
    """Raises Broken for what may mend; UsageError, Blocked for what stays."""
    from requests import exceptions
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (exceptions.InvalidProxyURL, exceptions.InvalidSchema) as error:
        socks = "SOCKS" in str(error)
        hint = "pip install 'requests[socks]', or unset it" if socks else "correct HTTPS_PROXY, or unset it"
        raise UsageError("the proxy that the environment names cannot be used", hint=hint) from None
    except (exceptions.RequestException, HTTPError) as error:
        if "certificate" in str(error).lower():
            raise Blocked(
                f"the certificate of {host} is not one that is trusted here",
                hint="REQUESTS_CA_BUNDLE names a file with that of a proxy between; or is the clock wrong?",
            ) from None
        raise Broken(f"{host}: {_reason(error)}") from None
    except OSError as error:  # REQUESTS_CA_BUNDLE names no file
        raise UsageError(str(error), hint="REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a file of certificates") from None


def _reason(error: BaseException) -> str:
    """The innermost cause: it is the most telling, and the texts around it repeat whole addresses."""
    for _ in range(_DEEPEST):
        inner = _inner(error)
        if inner is None:
            break
        error = inner
    if isinstance(error, OSError):
        return error.strerror or _KNOWN.get(type(error).__name__) or str(error)
    return _KNOWN.get(type(error).__name__, type(error).__name__)


def _inner(error: BaseException) -> BaseException | None:
    given = [*error.args, getattr(error, "reason", None), error.__cause__, error.__context__]
    return next((item for item in given if isinstance(item, BaseException)), None)
