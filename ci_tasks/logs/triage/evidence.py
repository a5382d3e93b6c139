"""What tells a failure from others of its kind, read from its line, its traceback and the lines around; and the two
signatures that follow from it. Pure."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterable, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.triage.candidate_reader import LAST, PLAIN, Candidate
from ci_tasks.logs.triage.log_prefixes import read
from ci_tasks.logs.triage.signature import ROOTS, SCRATCH, is_of_code, kind_of, name_without_ids, signature_of, stable
from ci_tasks.logs.triage.tracebacks import TracebackFrame
from ci_tasks.records import FailureEvidence

_MOST_PARAMETERS = 20
_LONGEST_MESSAGE = 4000
_QUALIFIED = re.compile(r"(?:\w+\.)*(\w+)(?:\(.*\))?")
_TASK_ERROR = re.compile(r"RayTaskError\(([\w.]+)\)")
_STATEMENT = re.compile(r"^(?:assert|raise)\b")

_PYTEST_CODE = re.compile(r"^>\s+(\S.*)$")
_PYTEST_TEST = re.compile(r"^_{3,} (?:ERROR (?:at \w+ of|collecting) )?(\S.*?) _{3,}$")
_DEF = re.compile(r"^\s*(?:async )?def (test_\w+)\(")
_ANY_DEF = re.compile(r"^>?\s*(?:async )?def (\w+)\(")
_SECTION = re.compile(r"^(?:_ ){5,}_?$")  # pytest's line between two calls of one traceback
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py)::(\S+)")
_PLACE = re.compile(r"^(\S+\.py):(\d+):(?: in (\w+)| [A-Z]\w*|$)")

# The words of numbers that a trainer checks, as the parts of their names.
_METRIC_WORD = re.compile(
    r"kl|log_?probs?|loss|entropy|rewards?|advantages?|returns|ratio|clipfrac|grad_?norm|accuracy|acc|perplexity|ppl|lr"
    r"|throughput|tflops|mfu|score"
)
_NAME = re.compile(r"[A-Za-z_][\w/.-]*\w|[A-Za-z_]")
_TWO_WORDS = re.compile(r"(?i)\b(log|grad(?:ient)?)[ -](probs?|norm)\b")
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|inf|nan))"
_COMPARED = re.compile(rf"(?<![\w.]){_NUMBER}\s*(<=?|>=?)\s*{_NUMBER}(?![\w])", re.I)
_ABOVE = re.compile(r"(?i)\b(?:exceed\w*|above|greater than|larger than|higher than|too (?:high|large|big))\b")
_BELOW = re.compile(r"(?i)\b(?:below|less than|lower than|smaller than|too (?:low|small)|under)\b")
_UPPER = re.compile(rf"<=?\s*{_NUMBER}", re.I)
_LOWER = re.compile(rf"{_NUMBER}\s*<=?\s*[^\d\s]|>=?\s*{_NUMBER}", re.I)

_HTTP = re.compile(
    r"(?i)(?:\bHTTP(?:/[\d.]+| status| error)?|\bstatus(?:[_ ]?code)?|(?<!exit )\berror code|returned error)"
    r"['\"]?\s*(?:is|of|[:=(\[])?\s*['\"(\[]?([1-5]\d\d)\b"
    r"|\b([45]\d\d) (?:Client|Server) Error"
    r"|\b([45]\d\d) (?:Unauthorized|Forbidden|Not Found|Too Many Requests|Bad Gateway|Service Unavailable"
    r"|Internal Server Error|Gateway Time-?out|Bad Request)"
)
_EXIT = re.compile(
    r"(?i)\b(?:exit(?:ed)?(?: with)?(?: status| ?code| code)?|return ?code|exitcode|non-zero exit status)"
    r"\s*[:=(]?\s*(-?\d{1,3})\b"
)
_ENDED = ("CalledProcessError", "SubprocessError")  # exceptions that say how a program ended
_COMMAND = re.compile(r"(?s)\bCommand (.+?) (?:returned non-zero|died with)")
_SIGNAL_NUMBER = re.compile(r"(?i)\bsignal[ :=(]+(\d{1,2})\b")
_SIGNALS = {
    "SIGSEGV": re.compile(r"(?i:segmentation fault)"),
    "SIGBUS": re.compile(r"(?i:\bbus error\b)"),
    "SIGILL": re.compile(r"(?i:illegal instruction)"),
    "SIGABRT": re.compile(r"\bAborted\b"),
}
_SIGNAL_NAME = re.compile(r"\b(SIG(?:SEGV|ABRT|KILL|TERM|BUS|ILL|FPE|INT|HUP|TRAP|QUIT))\b")

_URL = re.compile(r"\bhttps?://[^/\s'\"]+(/[^\s'\"<>)\]?]*)")
_FILE = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/?(?:[\w.@+~=-]+/)+[\w.@+~=-]+")
_EXTENSION = (
    r"\.(?:jsonl?|safetensors|pth?|bin|ya?ml|txt|parquet|so|distcp|toml|sh|csv|arrow|npy|npz|pkl|lock|log|model)"
)
_BARE_FILE = re.compile(rf"['\"]([\w.@+=-]+{_EXTENSION})['\"]")
# A path that begins nowhere is one if it has an extension, or is a model's name; `train/kl` is a metric's.
_IS_PATH = re.compile(rf"^(?:~|\.{{0,2}}/)|{_EXTENSION}$|^[\w.-]*[A-Z][\w.-]*/|/[A-Z][\w.-]*$")
_SOURCES = re.compile(r"\.(?:py|sh|cpp|cc|cu|cuh|h|hpp|so[\d.]*)$")
_PARAMETER = re.compile(
    r"\b(?:\w+\.)*(?:layers?|blocks?|experts?|h)\.\d+(?:\.\w+)*|\b(?:\w+\.)+(?:weight|bias|scale)\b"
)
_LAYER = re.compile(r"(?i)\b(layer|block|expert)s?[ #=:_]+(\d+)\b")


_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_KEY = re.compile(r"^-?\d{1,4}$")
_VERSION_WORD = re.compile(r"(?i)\bversions?\b")
_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){1,3})(?![\w])")


@dataclass(frozen=True)
class FailureIdentity:
    """The fields of these names in a Triage."""

    signature: str
    kind: str
    evidence: FailureEvidence


@dataclass(frozen=True)
class _FailurePlace:
    """Where it failed. `code` is the statement."""

    path: str = ""
    line: int | None = None
    function: str = ""
    test: str = ""
    code: str = ""


def identify(chosen: Candidate, candidates: Iterable[Candidate], exit_code: int | None = None) -> FailureIdentity:
    """The identity of the failure whose line is `chosen`. `candidates` are all of the log: pytest's summary is among
    them. `exit_code` is the job's."""
    name = chosen.type or chosen.rule.name or "error"
    message = chosen.text[len(chosen.type) :].lstrip(": ") if chosen.type else chosen.text
    place = _of_traceback(chosen.calls) if chosen.calls else _of_pytest(chosen, candidates)
    raised = bool(chosen.type) or chosen.kind not in (PLAIN, LAST)
    return of_evidence(_evidence(name, message, place, None if raised else exit_code, raised))


def of_ending(name: str, exit_code: int | None = None) -> FailureIdentity:
    """The identity of a failure of which only the job's end is known."""
    return of_evidence(_evidence(name, "", _FailurePlace(), exit_code, raised=False))


def of_evidence(evidence: FailureEvidence) -> FailureIdentity:
    return FailureIdentity(signature_of(evidence), kind_of(evidence), evidence)


def _evidence(name: str, message: str, place: _FailurePlace, exit_code: int | None, raised: bool) -> FailureEvidence:
    """All that is seen of a failure. `name` is its exception's type or its rule; `message` what follows that."""
    message, exception = message[:_LONGEST_MESSAGE], exception_name(name)
    ended = not raised or exception in _ENDED
    said = _EXIT.search(message)
    exit_code = int(said[1]) if said and ended else exit_code if ended else None
    metric = metric_of(place.code, message)
    return FailureEvidence(
        exception=exception,
        message=stable(message),
        file=place.path.replace("\\", "/").rsplit("/", 1)[-1],
        function=place.function,
        test=place.test,
        source_line=place.code,
        source_path=place.path,
        line=place.line,
        metric=metric,
        direction=direction_of(place.code, message, metric),
        parameters=parameters_in(message),
        http_status=_http_status(message),
        path=path_in(message),
        exit_code=exit_code,
        signal=_signal(message, exit_code) if ended else "",
        command=command_in(message) if exception in _ENDED else "",
        number=_number(exception, message),
    )


def _number(exception: str, message: str) -> str:
    """What a message without its numbers does not say, though it tells two failures apart."""
    if match := _ERRNO.search(message):
        return f"errno {match[1]}"
    if exception == "KeyError" and _KEY.match(message.strip()):
        return f"key {message.strip()}"
    if _VERSION_WORD.search(message):
        return " ".join(_VERSION.findall(message))
    return ""


def exception_name(name: str) -> str:
    """An exception without its module, and without Ray's envelope: `RayTaskError(ValueError)` is a ValueError."""
    inner = _TASK_ERROR.search(name)
    match = _QUALIFIED.fullmatch(inner[1] if inner else name)
    return match[1] if match else name


def _of_traceback(calls: Sequence[TracebackFrame]) -> _FailurePlace:
    """The innermost call of the code under test; where all are of packages, the innermost."""
    own = [call for call in calls if is_of_code(f"{call.path}:{call.function}")] or calls
    call = own[-1]
    test = next((call.function for call in own if call.function.startswith("test_")), "")
    return _FailurePlace(call.path, call.line, call.function, test, one_line(call.code))


def _of_pytest(chosen: Candidate, candidates: Iterable[Candidate]) -> _FailurePlace:
    """What pytest prints around a failure: the code behind `>`, its place, and which test it is."""
    path, _, function = chosen.frames[-1].rpartition(":") if chosen.frames else ("", "", "")
    function = "" if function[:1].isupper() else function  # the exception's name, in pytest's long form
    number, code = None, ""
    above = [read(0, raw).text for raw in chosen.above.split(b"\n")[1:] if raw] or list(chosen.before)
    for at in range(len(above) - 1, -1, -1):
        if match := _PYTEST_CODE.match(above[at]):
            code, function = match[1], _enclosing(above[:at]) or function
            break
        if (match := _PLACE.match(above[at].strip())) and at + 1 < len(above):  # --tb=short
            path, number, function, code = match[1], int(match[2]), match[3] or "", above[at + 1].strip()
            break
    for shown in chosen.after if number is None else ():
        if match := _PLACE.match(read(0, shown.encode("utf-8", "replace")).text.strip()):
            path, number = match[1], int(match[2])
            break
    return _FailurePlace(path, number, function, _test_name(above, path, candidates), one_line(code))


def _enclosing(above: Sequence[str]) -> str:
    """The function whose code pytest prints just above; "" where it prints none of it."""
    for text in reversed(above):
        if match := _ANY_DEF.match(text):
            return match[1]
        if _SECTION.match(text.strip()) or _PYTEST_TEST.match(text.strip()):
            break
    return ""


def _test_name(above: Sequence[str], path: str, candidates: Iterable[Candidate]) -> str:
    """The test's name with its parameters, from its heading, from its first line, or from the summary if only one test
    of the file failed."""
    for text in reversed(above):
        if match := _PYTEST_TEST.match(text.strip()) or _DEF.match(text.removeprefix(">")):
            return match[1]
    file = path.rsplit("/", 1)[-1]
    summary = [match for one in candidates if (match := _SUMMARY.match(one.text))]
    names = {match[2] for match in summary if not path or match[1].rsplit("/", 1)[-1] == file}
    return names.pop().replace("::", ".") if len(names) == 1 else ""


def one_line(code: str) -> str:
    """A statement on one line, with single spaces and without its comment's trailing part."""
    return " ".join(code.split())[:500]


def metric_of(source_line: str, message: str) -> str:
    """The metric that broke: the first one that the asserted condition names, else the only one in the message."""
    condition = source_line.partition(', f"')[0].partition(", f'")[0]
    named = _metrics(condition) if _STATEMENT.match(condition) else []
    if named:
        return named[0]
    in_message = list(dict.fromkeys(_metrics(message)))
    return in_message[0] if len(in_message) == 1 else ""


def _metrics(text: str) -> list[str]:
    names = []
    for match in _NAME.finditer(_TWO_WORDS.sub(lambda words: f"{words[1]}_{words[2]}", text)):
        if text[match.end() : match.end() + 1] == "(":
            continue
        last = re.split(r"[/.]", match[0].lower())[-1]
        parts = set(last.split("_")) | {last} | {"_".join(pair) for pair in itertools.pairwise(last.split("_"))}
        if any(map(_METRIC_WORD.fullmatch, parts)):
            names.append(last)
    return names


def direction_of(source_line: str, message: str, metric: str) -> str:
    """`above` or `below`, from numbers that the message compares, else from its words, else from the value that it
    prints of the metric and the bounds of the asserted condition. "" for what is no number: nan is on no side."""
    for left, _, right in _COMPARED.findall(message):
        if (side := _side(left, right)) or "nan" in (left.lower(), right.lower()):
            return side
    above, below = bool(_ABOVE.search(message)), bool(_BELOW.search(message))
    if above != below:
        return "" if re.search(r"(?i)\bnan\b", message) else "above" if above else "below"
    printed = rf"\b{re.escape(metric)}['\"]?(?:\s*[:=]|\s+is|\s)\s*(?:tensor\()?{_NUMBER}"
    value = re.search(printed, message, re.I) if metric and _STATEMENT.match(source_line) else None
    condition = source_line.partition(', f"')[0]
    upper, lower = _UPPER.search(condition), _LOWER.search(condition)
    if value and upper and _side(value[1], upper[1]) == "above":
        return "above"
    return "below" if value and lower and _side(value[1], lower[1] or lower[2]) == "below" else ""


def _side(left: str, right: str) -> str:
    a, b = float(left), float(right)
    return "above" if a > b else "below" if a < b else ""


def parameters_in(message: str) -> tuple[str, ...]:
    """Names of weights and layers. A layer's number is a part of its name: that another layer is missing is not shown
    to be the same failure."""
    named = {match[0] for match in _PARAMETER.finditer(message)}
    named |= {f"{match[1].lower()} {match[2]}" for match in _LAYER.finditer(message)}
    return tuple(sorted(named)[:_MOST_PARAMETERS])


def _http_status(message: str) -> int | None:
    match = _HTTP.search(message)
    return int(next(group for group in match.groups() if group)) if match else None


def path_in(message: str) -> str:
    """The last two parts of the first file, directory or model in a message, without what differs on another
    machine. Source files of a library that raised it do not count."""
    without = _URL.sub(" ", message)
    files = [path for path in _FILE.findall(without) if _IS_PATH.search(path)]
    found = [*_URL.findall(message), *files, *_BARE_FILE.findall(without)]
    path = next((one for one in found if not _SOURCES.search(one.rstrip("/")) or "No such file" in message), "")
    parts = [part for part in path.split("/") if part]
    if len(parts) > 2 and parts[0] == "home":
        parts = parts[2:]
    kept = [part for part in parts if not SCRATCH.match(part) and part not in ROOTS]
    return "/".join(name_without_ids(part) for part in kept[-2:])


def command_in(message: str) -> str:
    """The first words of the command that an exception of subprocess quotes, up to its first option."""
    match = _COMMAND.search(message)
    words = re.sub(r"[\[\]',\"]", " ", match[1]).split() if match else []
    return stable(" ".join(itertools.takewhile(lambda word: not word.startswith("-"), words)))


def _signal(message: str, exit_code: int | None) -> str:
    if match := _SIGNAL_NAME.search(message):
        return match[1]
    code, said = exit_code or 0, _SIGNAL_NUMBER.search(message)
    named = next((name for name, words in _SIGNALS.items() if words.search(message)), "")
    if named and not said:
        return named
    number = int(said[1]) if said else -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else ""
