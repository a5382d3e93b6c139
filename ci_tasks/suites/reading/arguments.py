"""argparse on the row's arguments: the real one, given only what is known, and never leaving the process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ci_tasks.suites.reading.objects import Imported, Namespace

_ACTIONS = {"store", "store_true", "store_false", "append", "count", "store_const"}
_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
_KEPT = ("default", "const", "nargs", "dest")


class NotUnderstood(Exception):
    """The row's arguments do not fit what the test declares, or it declares what is not known here."""


class _Quiet(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise NotUnderstood(message)


class Parser:
    """What `ArgumentParser()` gives in a test. Groups of arguments are the parser itself."""

    def __init__(self) -> None:
        self._parser = _Quiet(add_help=False, allow_abbrev=True)
        self._flaw: str | None = None

    def add_argument(self, names: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Declare one. What cannot be declared makes the parse fail later, and not the reading."""
        action = keywords.get("action", "store")
        if action == "version" or action == "help":
            return
        kept = {name: keywords[name] for name in _KEPT if name in keywords}
        if action == "store" and (kind := self._kind(keywords.get("type"))) is not None:
            kept["type"] = kind
        try:
            if action not in _ACTIONS:
                raise NotUnderstood(f"action {action!r}")
            self._parser.add_argument(*names, action=action, **kept)
        except (TypeError, ValueError, argparse.ArgumentError, NotUnderstood) as error:
            self._flaw = str(error)

    def parse(self, args: Sequence[str], *, known: bool) -> Namespace:
        """The attributes that `parse_args` gives. Raises NotUnderstood."""
        if self._flaw:
            raise NotUnderstood(self._flaw)
        try:
            if known:
                return Namespace(vars(self._parser.parse_known_args(list(args))[0]))
            return Namespace(vars(self._parser.parse_args(list(args))))
        except (argparse.ArgumentError, TypeError, ValueError) as error:
            raise NotUnderstood(str(error)) from None

    @staticmethod
    def _kind(given: Any) -> Any:
        name = given.target.removeprefix("builtins.") if isinstance(given, Imported) else ""
        return _TYPES.get(name)
