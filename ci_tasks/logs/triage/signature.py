"""A failure's identity in two levels, each a few words and a hash.

The kind is the exception, the message without what varies (numbers, nan, addresses, ids, sample texts, volatile parts
of paths), and the file of the innermost call of the code under test. The signature has the evidence beside it: what
`records.FailureEvidence` holds, and the directory that the file lies in. It is equal for two runs of one failure. A
renamed function is the same failure where the statement that failed is the same; a number of a line never counts.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence

from ci_tasks.records import FailureEvidence

_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_REQUEST = re.compile(r"(?i)(request[ -]id: ?)[\w=;-]+")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_HOST = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\[?(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\]?(?::\d+)?"
    r"|\[[0-9a-fA-F:]*::[0-9a-fA-F:]*\](?::\d+)?"
)
_HOST_VALUE = re.compile(r"(?<=\bhost=')[^']+(?=')")
_NUMBERS_BY_NUMBER = re.compile(r"\{#: #(?:, #: #)*\}")
_URL_HOST = re.compile(r"(?<=://)[^/\s'\"<>()]+")
# A name with a domain or a number, before a port; `actor.py:1300` is a place in a file.
_HOST_PORT = re.compile(
    r"(?<![\w/.-])(?:localhost|(?=[\w-]*[.-])[A-Za-z][\w-]*(?:\.[\w-]+)*(?<!\.py)(?<!\.cpp)(?<!\.cu)(?<!\.h)):\d{4,5}\b"
)
_DEVELOPMENT = re.compile(r"\.dev\d+(?:\+g[0-9a-f]+)?(?:\.d\d{8})?")
_PATH = re.compile(r"(?:/[\w.@+~=-]+){2,}/?")
_HEX = re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b")
_NUMBER = re.compile(r"(?<![A-Za-z_\d])[-+]?\d(?:[\d.,]*\d)?(?:e[-+]?\d+)?")
_UNIT = re.compile(r"(?<=#)(?: ?[KMGTP]i?B| bytes| B)\b")
_NAME = re.compile(
    r"\braysubmit_\w+|\bsession_\d[\w-]*"
    r"|\b(?=\w*\d)(?:tmp|session|job|task|actor|worker|node|pid|rank|port|core)[-_]?\w+",
    re.I,
)
_COUNTED = re.compile(
    r"(?i:(rank|gpu|step|iter|iteration|epoch|rollout|request|req|sample|batch|shard|attempt)[-_]?)\d+"
    r"|(?<![A-Za-z])([TDPEC]P)\d+(?![A-Za-z\d])|(?<=_)\d{5,}"
)
_QUOTED = r"""(?:'[^'{}]*'|"[^"{}]*")"""
_SET = re.compile(rf"\{{{_QUOTED}(?:, {_QUOTED})+\}}")
_DICT = re.compile(rf"\{{{_QUOTED}: [^{{}},]+(?:, {_QUOTED}: [^{{}},]+)+\}}")
_TEXT = re.compile(r"""(?P<quote>['"])(?=(?:\\.|(?!(?P=quote)).)*(?:\s\S+){2})(?:\\.|(?!(?P=quote)).){12,}(?P=quote)""")
_SAMPLE = re.compile(r"(?i)\b(prompt|text|response|completion|sample|answer|question|output)(\s?[=:]\s?)[^,;)\]}]+")
_LIST = re.compile(r"[\[(]#(?:,? #)*,?[\])]")
_NOT_FINITE = re.compile(r"(?i)(?<![\w])[-+]?(?:nan|inf(?:inity)?)(?![\w])")
_TENSOR = re.compile(r"tensor\(([^()]*?)(?:, (?:device|dtype|grad_fn)=[^()]*)?\)")
_SPACE = re.compile(r"\s+")
_THIRD_PARTY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen|<string>|<stdin>|importlib|/ray/_private|\.pyenv/"
)
SCRATCH = re.compile(r"(?i)^(?:tmp.*|temp|pytest-.*|session_.*|.*[0-9a-f]{8,}.*|\.{1,2}|~)$")
"""A directory that has another name on another machine, or in another run."""
ROOTS = frozenset(["root", "home", "tmp", "var", "mnt", "data", "opt", "usr", "workspace", "work", "srv", "shared"])
ROOTS |= {"scratch", "resolve", "blob", "main"}
"""Directories below which trees lie."""
_SOURCES = frozenset(["src", "code", "git", "repos", "projects", "dev"])  # in a home, with checkouts below
# What ends where a tree begins: installed packages, our workspaces, Ray's copy of a tree, a checkout on CI's machines.
_TREE = re.compile(
    r"^.*/(?:(?:site|dist)-packages|lib/python\d[\d.]*|\d+/workspace|_ray_pkg_\w+|(?:_*w|_?work)/([^/]+)/\1)/"
)
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_LITERAL = re.compile(r"""["'][^"']{3,}["']|\d\.\d""")
_COMMON_WORD = re.compile(
    r"assert|raise|return|not|and|None|True|False|self|from|results?|expected|actual|got|output|out|ret|value|response"
    r"|err(?:or)?|msg|message|exc|[eE]xception|(?:Runtime|Value|Assertion|Key)Error"
)
_LEAST_WORDS = 2
_FRAMES = 3
_SHOWN = 80


def stable(message: str) -> str:
    """A message without what differs from run to run."""
    text = _REQUEST.sub(r"\1#", _UUID.sub("#", message))
    text = _HOST_PORT.sub("<host>", _HOST.sub("<host>", _URL_HOST.sub("<host>", _HOST_VALUE.sub("<host>", text))))
    text = _DEVELOPMENT.sub("", text)
    text = _ADDRESS.sub("<address>", text)
    text = _PATH.sub(_last_parts, text)
    text = _NAME.sub("<name>", text)
    text = _COUNTED.sub(lambda match: f"{match[1] or match[2] or ''}#", text)
    text = _HEX.sub("#", text)
    text = _NUMBER.sub("#", _NOT_FINITE.sub("#", text))
    text = _TENSOR.sub(r"\1", text)
    text = _NUMBERS_BY_NUMBER.sub("#", _LIST.sub("#", text))
    text = _UNIT.sub(" B", text)
    text = _DICT.sub(_pairs_in_order, _SET.sub(_in_order, text))
    text = _SAMPLE.sub(r"\1\2<text>", _TEXT.sub("<text>", text))
    return _SPACE.sub(" ", text).strip()


def name_without_ids(name: str) -> str:
    """A file's or directory's name without what differs from run to run."""
    return re.sub(r"\d{5,}", "#", _NAME.sub("<name>", name))


def _in_order(match: re.Match[str]) -> str:
    """A set of strings, which Python prints in another order in each process."""
    return "{" + ", ".join(sorted(re.findall(_QUOTED, match[0]))) + "}"


def _pairs_in_order(match: re.Match[str]) -> str:
    """A dict that was filled in the order in which ranks or threads answered."""
    return "{" + ", ".join(sorted(match[0][1:-1].split(", "))) + "}"


def _last_parts(match: re.Match[str]) -> str:
    """The file's own name; the directories before it are another's on another machine."""
    name = match[0].rstrip("/").rsplit("/", 1)[-1]
    return "…/" + (name if re.search(r"\.[A-Za-z]\w*$", name) else "<path>")


def of_code(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost calls of the code under test as `file:function`, outermost first; where all are of packages, the
    innermost."""
    own = [frame for frame in frames if not _THIRD_PARTY.search(frame)] or list(frames)[-1:]
    return tuple(_short(frame) for frame in own[-_FRAMES:])


def is_of_code(frame: str) -> bool:
    """Whether a frame, `path:function`, is of the code under test and not of a package."""
    return not _THIRD_PARTY.search(frame)


def _short(frame: str) -> str:
    path, _, function = frame.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}:{function}"


def package_of(path: str) -> str:
    """The directory that a source file lies in, "" where that is the tree itself, whose name is another one elsewhere:
    `utils` of /root/slime/slime/utils/data.py, nothing of /root/slime/train.py."""
    path = path.replace("\\", "/")
    directories = [part for part in _TREE.sub("./", path).split("/")[:-1] if part]
    if path.startswith("/") and not _TREE.match(path):
        directories = directories[2:] if directories[:1] == ["home"] else directories
        directories = list(itertools.dropwhile(_is_above_trees, directories))[1:]
    return directories[-1] if directories and not SCRATCH.match(directories[-1]) else ""


def _is_above_trees(directory: str) -> bool:
    return directory in ROOTS or directory in _SOURCES or bool(SCRATCH.match(directory))


def kind_of(evidence: FailureEvidence) -> str:
    """Equal for failures that look alike."""
    return _signed(evidence, ())


def signature_of(evidence: FailureEvidence) -> str:
    """Equal for two runs of one failure."""
    where = evidence.source_line if is_specific(evidence.source_line) else evidence.function
    # A specific statement says where it is, whatever the function or the test is called by now.
    test = "" if is_specific(evidence.source_line) else evidence.test
    known = (
        where,
        evidence.source_line,
        test,
        evidence.metric,
        evidence.direction,
        *evidence.parameters,
        str(evidence.http_status or ""),
        evidence.path,
        "" if evidence.exit_code is None else str(evidence.exit_code),
        evidence.signal,
        evidence.command,
        evidence.number,
        package_of(evidence.source_path),
    )
    return _signed(evidence, known)


def is_specific(source_line: str) -> bool:
    """Whether a statement is one that stands in few places: not `raise`, `raise e` or `assert a == b`."""
    words = {word for word in _WORD.findall(source_line) if not _COMMON_WORD.fullmatch(word)}
    return len(words) >= _LEAST_WORDS or bool(words and _LITERAL.search(source_line))


def _signed(evidence: FailureEvidence, known: Sequence[str]) -> str:
    parts = (evidence.exception, evidence.message, evidence.file, *known)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
    shown = f"{evidence.exception}: {evidence.message}" if evidence.message else evidence.exception
    return f"{shown[:_SHOWN]}#{digest}"
