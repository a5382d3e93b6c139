"""rules.yaml as values, compiled: which rule a line has, and what a traceback's frames say of its cause."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.causes import UNKNOWN
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

ROOT, SYMPTOM, WRAPPER, NOISE, SUCCESS, PROGRESS = "root", "symptom", "wrapper", "noise", "success", "progress"
RAISED, LOGGED = "raised", "logged"
FILE = "logs/triage/rules.yaml"
_NOT_READ = ("match", "learnt", "examples", "not")  # keys that are for people and tests, or for all rules together


@dataclass(frozen=True)
class Rule:
    """One entry of rules.yaml; its head explains the fields. `order` is its place there. `match` is compiled only in
    entries of `frames`, which say whose code raises."""

    name: str
    rank: str
    reason: str
    verdict: str
    order: int
    cause: str = ""
    unless: Any = None
    frames: Any = None
    match: Any = None
    only: str = ""

    def holds(self, text: str, frames: str, raised: bool) -> bool:
        """Whether the rule counts for a line that it matches."""
        if (self.only and (self.only == RAISED) != raised) or (self.unless is not None and self.unless.search(text)):
            return False
        return self.frames is None or bool(self.frames.search(frames))

    @property
    def blame(self) -> tuple[str, str]:
        """(cause, verdict) of a line that has the rule."""
        return self.cause or UNKNOWN, self.verdict or BLOCKED


NO_RULE = Rule("", "none", "", FAILED, order=-1)
"""What a line has that no rule knows."""


@dataclass(frozen=True)
class Rules:
    """All of them. `words` is the expression for lines that are worth a look, `died` finds the end of a process;
    `explanations` says what a cause means if the quoted line's rule does not."""

    words: bytes
    died: Any
    rules: Sequence[Rule]
    places: Sequence[Rule]
    matcher: Any
    explanations: Mapping[str, str]

    def of(self, text: str, frames: str = "", raised: bool = True) -> Rule:
        """The first rule that matches `text` and holds; NO_RULE if none does. `raised` says that it is an exception, or
        was logged as an error."""
        matching = sorted(self.matcher.Match(text.encode("utf-8", "replace")) or ())
        holding = (self.rules[number] for number in matching if self.rules[number].holds(text, frames, raised))
        return next(holding, NO_RULE)

    def place(self, text: str, frames: Sequence[str]) -> Rule | None:
        """What the frames of an exception, innermost last, say of its cause."""
        matching = (place for place in self.places if place.match is None or place.match.search(text))
        return next((place for place in matching if any(map(place.frames.search, frames))), None)


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

    def expressions(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
        return {key: re2.compile(entry[key], options) for key in keys if key in entry}

    rules, places = [], []
    for order, entry in enumerate(data["rules"]):
        known = {key: value for key, value in entry.items() if key not in _NOT_READ}
        is_reason = entry["rank"] in (ROOT, SYMPTOM, WRAPPER)
        verdict = entry.get("verdict", verdicts.get(entry.get("cause", ""), FAILED)) if is_reason else ""
        try:
            read = {**known, **expressions(entry, "unless", "frames")}
            rules.append(Rule(**{**read, "verdict": verdict, "order": order}))
            matcher.Add(entry["match"])
        except (re2.error, KeyError, TypeError) as error:
            raise ValueError(f"rule {entry.get('name', f'number {order + 1}')}: {error}") from error
    for entry in data["frames"]:
        cause = entry["cause"]
        of_code = expressions(entry, "frames", "match")
        places.append(Rule("", ROOT, "", verdicts.get(cause, FAILED), -1, cause, **of_code))
    matcher.Compile()
    # YAML folds lines with a space, which is none of the words'.
    words, died = (re.sub(r"\|\s+", "|", data.get(name, "$^")) for name in ("words", "died"))
    explanations = data.get("explanations", {})
    return Rules(f"(?i:{words})".encode(), re2.compile(died, options), rules, places, matcher, explanations)
