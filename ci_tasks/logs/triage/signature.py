"""What tells a failure from others of its kind, read from its line, its traceback and the lines around; and its
identity in two levels, each a few words and a hash. Pure.

The kind is the exception, the message without what varies (numbers, nan, addresses, ids, sample texts, volatile parts
of paths), and the file of the innermost call of the code under test. The signature has the evidence beside it: the
fields of `records.FailureEvidence`, and the directory of the file. It is equal for two runs of one failure. A renamed
function is the same failure if the statement that failed is the same; a number of a line never counts.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ci_tasks.logs.triage.candidate_reader import LAST, PLAIN, PYTEST, Candidate
from ci_tasks.logs.triage.log_prefixes import read
from ci_tasks.logs.triage.tracebacks import TracebackFrame
from ci_tasks.records import FailureEvidence, Triage

# -- a message without what varies -------------------------------------------------------------------------------------


def _last_part(match: re.Match[str]) -> str:
    """The file's own name; the directories before it are another's on another machine."""
    name = match[0].rstrip("/").rsplit("/", 1)[-1]
    return "…/" + (name if re.search(r"\.[A-Za-z]\w*$", name) else "<path>")


def _in_order(match: re.Match[str]) -> str:
    """A set of strings, which Python prints in another order in each process, or a dict that ranks or threads filled in
    the order in which they answered."""
    return "{" + ", ".join(sorted(match[0][1:-1].split(", "))) + "}"


_NAME = re.compile(
    r"(?i)\braysubmit_\w+|\bsession_\d[\w-]*"
    r"|\b(?=\w*\d)(?:tmp|session|job|task|actor|worker|node|pid|rank|port|core)[-_]?\w+"
)
_ITEM = r"""(?:'[^'{}]*'|"[^"{}]*")(?:: [^{},]+)?"""
# In this order.
_VARYING: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^\S+: line \d+: +(?:\d+ )?|\(core dumped\) ", ""),  # bash, of a script that CI and we name in other ways
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "#"),
    (r"(?i)(request[ -]id: ?)[\w=;-]+", r"\1#"),
    (r"(?<=\bhost=')[^']+(?=')|(?<=://)[^/\s'\"<>()]+", "<host>"),
    # A name with a domain or a number, before a port; `actor.py:1300` is a place in a file.
    (
        r"(?<![\w/.-])(?:localhost|(?:\d{1,3}\.){3}\d{1,3}"
        r"|(?=[\w-]*[.-])[A-Za-z][\w-]*(?:\.[\w-]+)*(?<!\.py)(?<!\.cpp)(?<!\.cu)(?<!\.h)):\d{4,5}\b",
        "<host>",
    ),
    (r"\.dev\d+(?:\+g[0-9a-f]+)?(?:\.d\d{8})?", ""),
    (r"0x[0-9a-fA-F]+", "<address>"),
    (r"(?:/[\w.@+~=-]+){2,}/?", _last_part),
    (_NAME.pattern, "<name>"),
    (
        r"(?i:(rank|gpu|step|iter|iteration|epoch|rollout|request|req|sample|batch|shard|attempt)[-_]?)\d+"
        r"|(?<![A-Za-z])([TDPEC]P)\d+(?![A-Za-z\d])|(?<=_)\d{5,}",
        r"\1\2#",
    ),
    (r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b", "#"),
    (r"(?i)(?<![\w])[-+]?(?:nan|inf(?:inity)?)(?![\w])", "#"),
    (r"(?<![A-Za-z_\d])[-+]?\d(?:[\d.,]*\d)?(?:e[-+]?\d+)?", "#"),
    (r"tensor\(([^()]*?)(?:, (?:device|dtype|grad_fn)=[^()]*)?\)", r"\1"),
    (r"[\[(]#(?:,? #)*,?[\])]", "#"),
    (r"\{#: #(?:, #: #)*\}", "#"),
    (r"(?<=#)(?: ?[KMGTP]i?B| bytes| B)\b", " B"),
    (rf"\{{{_ITEM}(?:, {_ITEM})+\}}", _in_order),
    (
        r"""(?P<quote>['"])(?=(?:\\.|(?!(?P=quote))[^\\\n])*(?:\s\S+){2})(?:\\.|(?!(?P=quote))[^\\\n]){12,}(?P=quote)""",
        "<text>",
    ),
    (r"(?i)\b(prompt|text|response|completion|sample|answer|question|output)(\s?[=:]\s?)[^,;)\]}]+", r"\1\2<text>"),
    (r"\s+", " "),
)
_COMPILED = [(re.compile(pattern), instead) for pattern, instead in _VARYING]


def stable(message: str) -> str:
    """A message without what differs from run to run."""
    for pattern, instead in _COMPILED:
        message = pattern.sub(instead, message)
    return message.strip()


# -- signatures --------------------------------------------------------------------------------------------------------

_THIRD_PARTY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen|<string>|<stdin>|importlib|/ray/_private|\.pyenv/"
)
# A directory that has another name on another machine, or in another run; those below which trees lie; and those in a
# home, with checkouts below.
_SCRATCH = re.compile(r"(?i)^(?:tmp.*|temp|pytest-.*|session_.*|.*[0-9a-f]{8,}.*|\.{1,2}|~)$")
_ROOTS = frozenset(
    ["root", "home", "tmp", "var", "mnt", "data", "opt", "usr", "workspace", "work", "srv", "shared", "scratch"]
    + ["resolve", "blob", "main"]
)
_SOURCES = frozenset(["src", "code", "git", "repos", "projects", "dev"])
# What ends where a tree begins: installed packages, our workspaces, Ray's copy of a tree, a checkout on CI's machines.
_TREE = re.compile(
    r"^.*/(?:(?:site|dist)-packages|lib/python\d[\d.]*|\d+/workspace|_ray_pkg_\w+|(?:_*w|_?work)/([^/]+)/\1)/"
)
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_COMMON_WORD = re.compile(
    r"assert|raise|return|not|and|None|True|False|self|from|results?|expected|actual|got|output|out|ret|value|response"
    r"|err(?:or)?|msg|message|exc|[eE]xception|(?:Runtime|Value|Assertion|Key)Error"
)
_LEAST_WORDS = 2
TIMEOUT = "timeout"
_FRAMES = 3
_SHOWN = 80


def with_evidence(triage: Triage, evidence: FailureEvidence) -> Triage:
    return replace(triage, evidence=evidence, signature=signature_of(evidence), kind=kind_of(evidence))


def kind_of(evidence: FailureEvidence) -> str:
    """Equal for failures that look alike."""
    return _signed(evidence, ())


def signature_of(evidence: FailureEvidence) -> str:
    """Equal for two runs of one failure."""
    # A specific statement says where it is, whatever the function or the test is called by now.
    is_named = is_specific(evidence.source_line)
    function, test = ("", "") if is_named else (evidence.function, evidence.test)
    exit_code = "" if evidence.exit_code is None else str(evidence.exit_code)
    known = (
        function, evidence.source_line, test, evidence.metric, evidence.direction, *evidence.parameters,
        str(evidence.http_status or ""), evidence.path, exit_code, evidence.signal, evidence.command, evidence.number,
        package_of(evidence.source_path),
    )  # fmt: skip
    return _signed(evidence, known)


def is_specific(source_line: str) -> bool:
    """Whether a statement occurs in few places: not `raise`, `raise e` or `assert a == b`."""
    return len({word for word in _WORD.findall(source_line) if not _COMMON_WORD.fullmatch(word)}) >= _LEAST_WORDS


def _signed(evidence: FailureEvidence, known: Sequence[str]) -> str:
    parts = (evidence.exception, evidence.message, evidence.file, *known)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
    shown = f"{evidence.exception}: {evidence.message}" if evidence.message else evidence.exception
    return f"{shown[:_SHOWN]}#{digest}"


def of_code(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost calls of the code under test as `file:function`, outermost first; if all are of packages, the
    innermost."""
    own = [frame for frame in frames if not _THIRD_PARTY.search(frame)] or list(frames)[-1:]
    named = (frame.rpartition(":") for frame in own[-_FRAMES:])
    return tuple(f"{path.rsplit('/', 1)[-1]}:{function}" for path, _, function in named)


def package_of(path: str) -> str:
    """The directory of a source file, "" if that is the tree itself, which has another name elsewhere: `utils` of
    /root/slime/slime/utils/data.py, nothing of /root/slime/train.py."""

    def is_above_trees(directory: str) -> bool:
        return directory in _ROOTS or directory in _SOURCES or bool(_SCRATCH.match(directory))

    directories = [part for part in _TREE.sub("./", path).split("/")[:-1] if part]
    if path.startswith("/") and not _TREE.match(path):
        directories = directories[2:] if directories[:1] == ["home"] else directories
        directories = list(itertools.dropwhile(is_above_trees, directories))[1:]
    return directories[-1] if directories and not _SCRATCH.match(directories[-1]) else ""


# -- evidence ----------------------------------------------------------------------------------------------------------

_MOST_PARAMETERS = 20
_LONGEST_MESSAGE, _LONGEST_STATEMENT = 4000, 500
_TASK_ERROR = re.compile(r"RayTaskError\(([\w.]+)\)")
_QUALIFIED = re.compile(r"(?:\w+\.)*(\w+)(?:\(.*\))?")
_PYTEST_CODE = re.compile(r"^>\s+(\S.*)$")
_PYTEST_TEST = re.compile(r"^_{3,} (?:ERROR (?:at \w+ of|collecting) )?(\S.*?) _{3,}$")
_DEF = re.compile(r"^>?\s*(?:async )?def (\w+)\(")
_SECTION = re.compile(r"^(?:_ ){5,}_?$")  # pytest's line between two calls of one traceback
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py)::(\S+)")
_PLACE = re.compile(r"^(\S+\.py):(\d+):(?: in (\w+)| [A-Z]\w*|$)")
_NUMBER = r"(?<![\w.\[])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)(?![\w\]])"
_HTTP = re.compile(
    r"(?i)(?:\bHTTP(?:/[\d.]+| status| error)?|\bstatus(?:[_ ]?code)?|(?<!exit )\berror code|returned error)"
    r"['\"]?\s*(?:is|of|[:=(\[])?\s*['\"(\[]?([45]\d\d)\b"
    r"|\b([45]\d\d) (?:(?:client|server) error|unauthorized|forbidden|not found|too many|bad |service un|internal)"
)
_EXIT = re.compile(
    r"(?i)\b(?:exit(?:ed)?(?: with)?(?: status| ?code| code)?|return ?code|exitcode|non-zero exit status)"
    r"\s*[:=(]?\s*(-?\d{1,3})\b"
)
_ENDED = ("CalledProcessError", "SubprocessError")  # exceptions that say how a program ended
_COMMAND = re.compile(r"(?s)\bCommand (.+?) (?:returned non-zero|died with)")
_SIGNAL = re.compile(r"\b(SIG(?:SEGV|ABRT|KILL|TERM|BUS|ILL|FPE|INT|HUP|TRAP|QUIT))\b|(?i:\bsignal[ :=(]+(\d{1,2})\b)")
_FILE = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/?(?:[\w.@+~=-]+/)+[\w.@+~=-]+")
# A path that begins nowhere is one if it has an extension, or is a model's name; `train/kl` is a metric's.
_IS_PATH = re.compile(
    r"^(?:~|\.{0,2}/)|^[\w.-]*[A-Z][\w.-]*/|/[A-Z][\w.-]*$"
    r"|\.(?:jsonl?|safetensors|pth?|bin|ya?ml|txt|parquet|so|distcp|toml|sh|csv|arrow|npy|npz|pkl|lock|log|model)$"
)
_SOURCE_FILE = re.compile(r"\.(?:py|sh|cpp|cc|cu|cuh|h|hpp|so[\d.]*)$")
_WEIGHTS = re.compile(r"\b(?:\w+\.)*(?:layers?|blocks?|experts?|h)\.\d+(?:\.\w+)*|\b(?:\w+\.)+(?:weight|bias|scale)\b")
_LAYER = re.compile(r"(?i)\b(layer|block|expert)s?[ #=:_]+(\d+)\b")
_ERRNO, _KEY = re.compile(r"\[Errno (-?\d+)\]"), re.compile(r"^-?\d{1,4}$")
_VERSION_WORD, _VERSION = re.compile(r"(?i)\bversions?\b"), re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){1,3})(?![\w])")


def evidence_of(chosen: Candidate, candidates: Iterable[Candidate], exit_code: int | None = None) -> FailureEvidence:
    """All that is seen of the failure whose line is `chosen`. `candidates` are all of the log: pytest's summary is
    among them. `exit_code` is the job's."""
    if chosen.rule.name == "job-timeout" and chosen.text.startswith("The "):  # GitHub's words, which are not ours
        return FailureEvidence(TIMEOUT)
    exception = exception_name(chosen.type or chosen.rule.name or "error")
    message = chosen.text[len(chosen.type) :].lstrip(": ") if chosen.type else chosen.text
    message = message[:_LONGEST_MESSAGE]
    place = _of_traceback(chosen.calls) if chosen.calls and chosen.kind != PYTEST else _of_pytest(chosen, candidates)
    raised = bool(chosen.type) or chosen.kind not in (PLAIN, LAST)
    ended = not raised or exception in _ENDED
    said = _EXIT.search(message) if ended else None
    code = int(said[1]) if said else None if raised else exit_code
    metric, direction = _crossed(place.source_line, message)
    return replace(
        place, exception=exception, message=stable(message), file=place.source_path.rsplit("/", 1)[-1], metric=metric,
        direction=direction, parameters=_parameters_in(message),
        http_status=next((int(one[1] or one[2]) for one in _HTTP.finditer(message)), None), path=_path_in(message),
        exit_code=code, signal=_signal(message, code) if ended else "",
        command=_command_in(message) if exception in _ENDED else "", number=_number(exception, message),
    )  # fmt: skip


def exception_name(name: str) -> str:
    """An exception without its module, and without Ray's envelope: `RayTaskError(ValueError)` is a ValueError."""
    inner = _TASK_ERROR.search(name)
    match = _QUALIFIED.fullmatch(inner[1] if inner else name)
    return match[1] if match else name


def _of_traceback(calls: Sequence[TracebackFrame]) -> FailureEvidence:
    """The innermost call of the code under test; if all are of packages, the innermost."""
    own = [call for call in calls if not _THIRD_PARTY.search(f"{call.path}:{call.function}")] or calls
    test = next((call.function for call in own if call.function.startswith("test_")), "")
    return _place(own[-1].path, own[-1].line, own[-1].function, test, own[-1].code)


def _place(path: str, line: int | None, function: str, test: str, code: str) -> FailureEvidence:
    statement = " ".join(code.split())[:_LONGEST_STATEMENT]
    path = path.replace("\\", "/")
    return FailureEvidence(source_path=path, line=line, function=function, test=test, source_line=statement)


def _of_pytest(chosen: Candidate, candidates: Iterable[Candidate]) -> FailureEvidence:
    """What pytest prints around a failure: the code behind `>`, its place, and which test it is."""
    path, number, function, code = "", None, "", ""
    for call in chosen.calls:  # in pytest's long form it has the exception's name
        path, number, function = call.path, call.line, "" if call.function[:1].isupper() else call.function
    above = [read(0, raw).text for raw in chosen.above.split(b"\n")[1:] if raw] or list(chosen.before)
    for at in range(len(above) - 1, -1, -1):
        if match := _PYTEST_CODE.match(above[at]):
            code, function = match[1], _enclosing(above[:at]) or function
            break
        if (match := _PLACE.match(above[at].strip())) and at + 1 < len(above):  # --tb=short
            path, number, function, code = match[1], int(match[2]), match[3] or "", above[at + 1].strip()
            break
    return _place(path, number, function, _test_name(above, path, candidates), code)


def _enclosing(above: Sequence[str]) -> str:
    """The function whose code pytest prints just above; "" if it prints none of it."""
    for text in reversed(above):
        if match := _DEF.match(text):
            return match[1]
        if _SECTION.match(text.strip()) or _PYTEST_TEST.match(text.strip()):
            break
    return ""


def _test_name(above: Sequence[str], path: str, candidates: Iterable[Candidate]) -> str:
    """The test's name with its parameters, from its heading, or from the summary if only one test of the file
    failed."""
    if match := next(filter(None, (_PYTEST_TEST.match(text.strip()) for text in reversed(above))), None):
        return match[1]
    file = path.rsplit("/", 1)[-1]
    summary = [match for one in candidates if (match := _SUMMARY.match(one.text))]
    names = {match[2] for match in summary if not path or match[1].rsplit("/", 1)[-1] == file}
    return names.pop().replace("::", ".") if len(names) == 1 else ""


def _crossed(code: str, message: str) -> tuple[str, str]:
    """A name of the asserted condition whose value the message prints beyond all its bounds, and whether it is `above`
    or `below` them; "" if there is none: nan is on no side."""
    condition = re.split(r", f['\"]", code)[0].removeprefix("assert ")
    bounds = [float(number) for number in re.findall(_NUMBER, condition)]
    if not code.startswith("assert ") or not bounds or not re.search("[<>]", condition):
        return "", ""
    for name in re.findall(r"\b[A-Za-z_]\w*", condition):
        printed = rf"\b{name}['\"]?(?:\s*[:=]|\s+is|\s)\s*(?:tensor\()?({_NUMBER}|[-+]?inf)"
        value = float(match[1]) if (match := re.search(printed, message)) else bounds[0]
        if value > max(bounds) or value < min(bounds):
            return name, "above" if value > max(bounds) else "below"
    return "", ""


def _parameters_in(message: str) -> tuple[str, ...]:
    """Names of weights and layers. A layer's number is a part of its name: that another layer is missing is not shown
    to be the same failure."""
    named = {match[0] for match in _WEIGHTS.finditer(message)}
    named |= {f"{match[1].lower()} {match[2]}" for match in _LAYER.finditer(message)}
    return tuple(sorted(named)[:_MOST_PARAMETERS])


def _path_in(message: str) -> str:
    """The last two parts of the first file, directory or model in a message, without what differs on another
    machine. Source files of a library that raised it do not count."""
    named = (one for one in _FILE.findall(message) if _IS_PATH.search(one))
    path = next((one for one in named if not _SOURCE_FILE.search(one) or "No such file" in message), "")
    parts = [part for part in path.split("/") if part]
    if len(parts) > 2 and parts[0] == "home":
        parts = parts[2:]
    kept = [part for part in parts if not _SCRATCH.match(part) and part not in _ROOTS]
    return "/".join(re.sub(r"\d{5,}", "#", _NAME.sub("<name>", part)) for part in kept[-2:])


def _command_in(message: str) -> str:
    """The first words of the command that an exception of subprocess quotes, up to its first option."""
    match = _COMMAND.search(message)
    words = re.sub(r"[\[\]',\"]", " ", match[1]).split() if match else []
    return stable(" ".join(itertools.takewhile(lambda word: not word.startswith("-"), words)))


def _signal(message: str, exit_code: int | None) -> str:
    said, code = _SIGNAL.search(message), exit_code or 0
    if said and said[1]:
        return said[1]
    number = int(said[2]) if said else -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else ""


def _number(exception: str, message: str) -> str:
    """What a message without its numbers does not say, though it tells two failures apart."""
    if match := _ERRNO.search(message):
        return f"errno {match[1]}"
    if exception == "KeyError" and _KEY.match(message.strip()):
        return f"key {message.strip()}"
    return " ".join(_VERSION.findall(message)) if _VERSION_WORD.search(message) else ""
