"""What a test launches: its calls with their arguments, and where it stopped, as far as its syntax tree shows it.

Nothing is executed. Constants of the module, names that a function assigns once, f-strings and `+` of those are
followed; nothing else is, and stands as ⟨expression⟩.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from ci_tasks.agent.quick_dataclass import dataclass

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

RECORDED, READ = "recorded", "read"  # by running the test under stubs, or from its syntax tree
MAIN, PYTEST, NONE = "main", "pytest", "none"
UNKNOWN = re.compile("⟨[^⟨⟩]*⟩")
_STARTERS = re.compile(r"subprocess\.(run|(?:check_)?call|check_output|Popen|get(?:status)?output)|os\.(system|popen)")
_OPERATORS = frozenset(";&|\n")
_LONGEST = 50_000
_NOISE = re.compile(r"[^\w.()\[\]=,]")  # what would mean something to a shell
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class LaunchCall:
    """A call of a suite's helper, of the standard library's `subprocess`, or of a package.

    `target` is the function as imported ("subprocess.run"), `place` is the innermost line of the checkout
    (`tests/test_x.py:7`), `env` what the test had set in its environment.
    """

    target: str
    args: Sequence[Value]
    kwargs: Mapping[str, Value]
    place: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def function(self) -> str:
        return self.target.rpartition(".")[2]

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command that the standard library was asked to start; [] for other calls."""
        command = self.args[0] if self.args else self.kwargs.get("args", self.kwargs.get("cmd"))
        return commands_in(command) if _STARTERS.fullmatch(self.target) else []


@dataclass(frozen=True)
class Recording:
    """What a test launches. `entry` is how `python FILE` begins it: a `__main__` block, pytest called by that block, or
    not at all. `constants` are the module's, `stops` say why it is not seen from there on, `tests` are the names of its
    test functions."""

    calls: tuple[LaunchCall, ...] = ()
    constants: Mapping[str, Value] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    entry: str = NONE
    doc: str = ""
    origin: str = READ


def by_name(call: LaunchCall, helpers: Mapping[str, Sequence[str]]) -> LaunchCall:
    """The call, a helper's arguments by name."""
    named = dict(zip(helpers.get(call.function, ()), call.args, strict=False))
    return replace(call, args=call.args[len(named) :], kwargs={**named, **call.kwargs})


def shell_split(text: str) -> list[str]:
    """The words that a shell would make of a text, as far as quotes go."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def commands_in(command: Value) -> list[list[str]]:
    """The words of each command of a line of shell (`a && b; c` has three), or of a list of words."""
    if isinstance(command, list):
        return [[str(word) for word in command]]
    if not isinstance(command, str):
        return []
    lexer = shlex.shlex(command, posix=True, punctuation_chars="".join(_OPERATORS))
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= _OPERATORS:
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError:
        return [shell_split(command)]
    return [command_words for command_words in commands if command_words]


# -- the syntax tree ---------------------------------------------------------------------------------------------------


def read_source(source: str, path: str, helpers: Mapping[str, Sequence[str]]) -> Recording:
    """The recording of a file that is not run. Raises nothing: one that is not Python stops before its first call."""
    try:
        tree = ast.parse(source)
        reader = _SyntaxReader(path, helpers, dict(_imports(tree)))
        names = _assigned(tree.body, {})
        reader.walk(tree.body, names)
        entry, launches = _entry(tree), any(call.function in helpers for call in reader.calls)
        return Recording(
            calls=tuple(reader.calls),
            constants={name: value for name, value in names.items() if "⟨" not in str(value)},
            tests=tuple(_tests(tree.body)),
            entry=MAIN if entry == NONE and launches else entry,
            doc=ast.get_docstring(tree) or "",
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Recording(stops=(f"it cannot be parsed as Python: {error}",))


class _SyntaxReader:
    """The calls of one file, in its order. `imports`: name → what it stands for."""

    def __init__(self, path: str, helpers: Mapping[str, Sequence[str]], imports: Mapping[str, str]) -> None:
        self.path, self.helpers, self.imports = path, helpers, imports
        self.calls: list[LaunchCall] = []

    def walk(self, body: Sequence[ast.AST], names: Mapping[str, Value]) -> None:
        waiting = list(body)
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, _Function):
                own = {parameter.arg for parameter in ast.walk(node.args) if isinstance(parameter, ast.arg)}
                outer = {name: value for name, value in names.items() if name not in own}
                self.walk(node.body, _assigned(node.body, outer))
                continue
            waiting[:0] = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.Call) and (target := self.target(node.func)):
                self.calls.append(self.call(node, target, names))

    def call(self, node: ast.Call, target: str, names: Mapping[str, Value]) -> LaunchCall:
        args = [_value(argument, names) for argument in node.args]
        kwargs = {keyword.arg: _value(keyword.value, names) for keyword in node.keywords if keyword.arg}
        return by_name(LaunchCall(target, args, kwargs, f"{self.path}:{node.lineno}"), self.helpers)

    def target(self, node: ast.expr) -> str:
        """The function as imported, "" if it is not imported by name."""
        name, _, rest = ast.unparse(node).partition(".")
        is_plain = re.fullmatch(r"[\w.]+", rest or name)
        return ".".join(filter(None, [self.imports[name], rest])) if is_plain and name in self.imports else ""


def _assigned(body: Sequence[ast.stmt], names: Mapping[str, Value]) -> dict[str, Value]:
    """Names that these statements assign exactly once, with what is known of their values."""
    nodes = [node for statement in body for node in _own(statement)]
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    values = {name: value for name, value in names.items() if name not in stored}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if stored.count(name) == 1:
                values[name] = _value(node.value, values)
    return values


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without the nodes of functions in it."""
    yield node
    if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Name(id) if id in names:
            return names[id]
        case ast.FormattedValue(value, format_spec=None):
            return _value(value, names)
        case ast.JoinedStr(values):
            return "".join(str(_value(part, names)) for part in values)[:_LONGEST]
        case ast.BinOp(left, ast.Add(), right):
            first, second = _value(left, names), _value(right, names)
            if isinstance(first, str) and isinstance(second, str):
                return (first + second)[:_LONGEST]
        case ast.List(items) | ast.Tuple(items):
            return [_value(item, names) for item in items]
        case ast.Constant(str() | int() | float() | None as constant):
            return constant
    return f"⟨{_NOISE.sub('', ast.unparse(node))[:80]}⟩"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each imported name, and what it stands for ("subprocess", "slime.utils.command_utils")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}".lstrip(".")


def _entry(tree: ast.Module) -> str:
    """How `python FILE` begins it: a `__main__` block, pytest called by one, or a call of `main` or of an own function
    at the end."""
    local = {node.name for node in tree.body if isinstance(node, _Function)} | {"main"}
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in (text := ast.unparse(node.test)) and "__main__" in text:
            called = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            return PYTEST if called & {"pytest.main", "unittest.main"} else MAIN
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in local:
            return MAIN
    return NONE


def _tests(body: Sequence[ast.stmt], owner: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, _Function) and node.name.startswith("test"):
            yield owner + node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node.body, f"{node.name}.")
