"""rules.yaml as values, compiled: which rule a line has, and what a traceback's frames say of its cause."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.causes import UNKNOWN
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

ROOT, SYMPTOM, WRAPPER, NOISE, SUCCESS, PROGRESS = "root", "symptom", "wrapper", "noise", "success", "progress"
RANKS = (ROOT, SYMPTOM, WRAPPER, NOISE, SUCCESS, PROGRESS)
RAISED, LOGGED = "raised", "logged"
FILE = "logs/triage/rules.yaml"
_KEYS = {"name", "rank", "cause", "verdict", "match", "unless", "only", "over", "frames", "reason"}
_KEYS |= {"learnt", "examples", "not"}


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

    @property
    def blame(self) -> tuple[str, str]:
        """(cause, verdict) of a line that has the rule."""
        return self.cause or UNKNOWN, self.verdict or BLOCKED


NO_RULE = Rule("", "none", "", FAILED, "", order=-1)
"""What a line has that no rule knows."""


@dataclass(frozen=True)
class Place:
    """Whose code raises: an entry of rules.yaml's `frames`."""

    cause: str
    verdict: str
    frames: Any
    match: Any = None


@dataclass(frozen=True)
class Rules:
    """All of them. `words` is the expression for lines that are worth a look, `died` finds the end of a process;
    `explanations` says what a cause means where the quoted line's rule does not."""

    words: bytes
    died: Any
    rules: tuple[Rule, ...]
    places: tuple[Place, ...]
    matcher: Any
    explanations: Mapping[str, str]

    def of(self, text: str, frames: str = "", raised: bool = True) -> Rule:
        """The first rule that matches `text` and holds; NO_RULE where none does. `raised` says that it is an exception,
        or was logged as an error."""
        for number in sorted(self.matcher.Match(text.encode("utf-8", "replace")) or ()):
            rule: Rule = self.rules[number]
            if rule.holds(text, frames, raised):
                return rule
        return NO_RULE

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

    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = 64 << 20
    matcher = re2.Set.SearchSet(options)
    verdicts = {"": FAILED, CANCELLED: CANCELLED, **dict.fromkeys(data.get("blocks", ()), BLOCKED)}

    def expression(text: str | None) -> Any:
        return None if text is None else re2.compile(text, options)

    rules, places = [], []
    for order, entry in enumerate(data["rules"]):
        try:
            rules.append(_rule(order, entry, expression, verdicts))
            matcher.Add(entry["match"])
        except (re2.error, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"rule {entry.get('name', f'number {order + 1}')}: {error}") from error
    for entry in data["frames"]:
        cause = entry["cause"]
        frames, match = expression(entry["frames"]), expression(entry.get("match"))
        places.append(Place(cause, verdicts.get(cause, FAILED), frames, match))
    matcher.Compile()
    # YAML folds lines with a space, which is none of the words'.
    words, died = (re.sub(r"\|\s+", "|", data.get(name, "$^")) for name in ("words", "died"))
    explanations = data.get("explanations", {})
    return Rules(f"(?i:{words})".encode(), expression(died), tuple(rules), tuple(places), matcher, explanations)


def _rule(
    order: int, entry: dict[str, Any], expression: Callable[[str | None], Any], verdicts: Mapping[str, str]
) -> Rule:
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"unknown key {', '.join(sorted(unknown))}")
    rank, cause = entry["rank"], entry.get("cause", "")
    verdict = entry.get("verdict", verdicts.get(cause, FAILED))
    if rank not in RANKS or verdict not in (FAILED, BLOCKED, CANCELLED):
        raise ValueError(f"rank {rank!r}, verdict {verdict!r}")
    return Rule(
        name=entry["name"],
        rank=rank,
        cause=cause,
        verdict=verdict if rank in (ROOT, SYMPTOM, WRAPPER) else "",
        reason=entry["reason"],
        order=order,
        unless=expression(entry.get("unless")),
        frames=expression(entry.get("frames")),
        only=entry.get("only", ""),
        over=tuple(entry.get("over", ())),
    )
