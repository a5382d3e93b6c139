"""rules.yaml as values, compiled: which rule a line has, and what a traceback's frames say of its cause."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

ROOT, SYMPTOM, WRAPPER, NOISE, SUCCESS, PROGRESS = "root", "symptom", "wrapper", "noise", "success", "progress"
RANKS = (ROOT, SYMPTOM, WRAPPER, NOISE, SUCCESS, PROGRESS)
RAISED, LOGGED = "raised", "logged"
FILE = "logs/triage/rules.yaml"


@dataclass(frozen=True)
class Rule:
    """One entry of rules.yaml; its head explains the fields. `order` is its place there."""

    name: str
    rank: str
    cause: str
    verdict: str
    reason: str
    order: int
    unless: Any = None
    frames: Any = None
    only: str = ""
    over: tuple[str, ...] = ()

    def holds(self, text: str, frames: str, raised: bool) -> bool:
        """Whether the rule counts for a line that it matches."""
        if (self.only and (self.only == RAISED) != raised) or (self.unless is not None and self.unless.search(text)):
            return False
        return self.frames is None or bool(self.frames.search(frames))


@dataclass(frozen=True)
class Place:
    """Whose code raises: an entry of rules.yaml's `frames`."""

    cause: str
    verdict: str
    frames: Any
    match: Any = None


@dataclass(frozen=True)
class Rules:
    """All of them. `keywords` finds the lines that are worth a look, `died` the end of a process; `explanations` says
    what a cause means where the quoted line's rule does not."""

    keywords: Any
    died: Any
    rules: tuple[Rule, ...]
    places: tuple[Place, ...]
    matcher: Any
    explanations: Mapping[str, str]

    def of(self, text: str, frames: str = "", raised: bool = True) -> Rule | None:
        """The first rule that matches `text` and holds; None where none does. `raised` says that it is an exception,
        or was logged as an error."""
        for number in sorted(self.matcher.Match(text.encode("utf-8", "replace")) or ()):
            rule: Rule = self.rules[number]
            if rule.holds(text, frames, raised):
                return rule
        return None

    def place(self, text: str, frames: Sequence[str]) -> Place | None:
        """What the frames of an exception, innermost last, say of its cause."""
        for place in self.places:
            if (place.match is None or place.match.search(text)) and any(
                place.frames.search(frame) for frame in frames
            ):
                return place
        return None


@functools.cache
def shipped() -> Rules:
    """The rules that ship, read once."""
    import yaml

    return compiled(yaml.load(resources.text(FILE), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def compiled(data: dict[str, Any]) -> Rules:
    """Rules of a parsed rules.yaml. Raises ValueError for one that has no meaning, naming it."""
    import re2

    folding, bytewise = re2.Options(), re2.Options()
    for options in (folding, bytewise):
        options.case_sensitive = False
        options.never_capture = True
        options.log_errors = False
        options.max_mem = 64 << 20
    bytewise.encoding = re2.Options.Encoding.LATIN1  # bytes that are no text stay searchable

    matcher = re2.Set.SearchSet(folding)

    def expression(where: str, text: Any, into: Callable[[Any], Any] = lambda text: re2.compile(text, folding)) -> Any:
        try:
            return into(text)
        except (re2.error, TypeError) as error:
            raise ValueError(f"{where}: {text!r} is no regular expression of RE2") from error

    verdicts = {"": FAILED, CANCELLED: CANCELLED, **dict.fromkeys(data.get("blocks", ()), BLOCKED)}
    rules = []
    for order, entry in enumerate(data["rules"]):
        rules.append(_rule(order, entry, expression, verdicts))
        expression(f"rule {entry['name']}", entry["match"], matcher.Add)
    matcher.Compile()
    places = tuple(_place(number, entry, expression, verdicts) for number, entry in enumerate(data["frames"], 1))
    # YAML folds lines with a space, which is none of the words'. The rest of a line is taken too: one hit a line.
    keywords, died = (re.sub(r"\|\s+", "|", data.get(name, "$^")) for name in ("words", "died"))
    return Rules(
        re2.compile(f"(?:{keywords})[^\\n]*".encode(), bytewise),
        expression("died", died),
        tuple(rules),
        places,
        matcher,
        data.get("explanations", {}),
    )


_KEYS = {
    "name",
    "rank",
    "cause",
    "verdict",
    "match",
    "unless",
    "only",
    "over",
    "frames",
    "reason",
    "learnt",
    "examples",
    "not",
}
_PLACE_KEYS = {"cause", "frames", "match"}
_VERDICTS = (FAILED, BLOCKED, CANCELLED)


def _rule(
    order: int, entry: dict[str, Any], expression: Callable[[str, Any], Any], verdicts: Mapping[str, str]
) -> Rule:
    where = f"rule {entry.get('name', f'number {order + 1}')}"
    _check_keys(where, entry, _KEYS, ("name", "rank", "match", "reason"))
    if entry["rank"] not in RANKS:
        raise ValueError(f"{where}: rank is one of {', '.join(RANKS)}")
    if entry.get("only", LOGGED) not in (RAISED, LOGGED):
        raise ValueError(f"{where}: only is {RAISED} or {LOGGED}")
    if entry.get("verdict", FAILED) not in _VERDICTS:
        raise ValueError(f"{where}: verdict is one of {', '.join(_VERDICTS)}")
    cause = entry.get("cause", "")
    tells = entry["rank"] not in (NOISE, SUCCESS, PROGRESS)
    return Rule(
        name=entry["name"],
        rank=entry["rank"],
        cause=cause,
        verdict=entry.get("verdict", verdicts.get(cause, FAILED)) if tells else "",
        reason=entry["reason"],
        order=order,
        unless=expression(where, entry["unless"]) if "unless" in entry else None,
        frames=expression(where, entry["frames"]) if "frames" in entry else None,
        only=entry.get("only", ""),
        over=tuple(entry.get("over", ())),
    )


def _place(
    number: int, entry: dict[str, Any], expression: Callable[[str, Any], Any], verdicts: Mapping[str, str]
) -> Place:
    where = f"frames, number {number}"
    _check_keys(where, entry, _PLACE_KEYS, ("cause", "frames"))
    match = expression(where, entry["match"]) if "match" in entry else None
    return Place(entry["cause"], verdicts.get(entry["cause"], FAILED), expression(where, entry["frames"]), match)


def _check_keys(where: str, entry: dict[str, Any], allowed: set[str], needed: Sequence[str]) -> None:
    if unknown := set(entry) - allowed:
        raise ValueError(f"{where}: unknown key {', '.join(sorted(unknown))}")
    if missing := [key for key in needed if key not in entry]:
        raise ValueError(f"{where}: {', '.join(missing)} is missing")
