"""Values that are known only while a job runs, as bash: outputs and outcomes of its earlier steps, and variables that
they write to GITHUB_ENV.

run.sh keeps what steps leave in its array `_steps`, under `ID.outputs.NAME` in lower case, `ID.outcome` and
`ID.conclusion`. They are texts, so the rules of GitHub's documentation page "Evaluate expressions in workflows and
actions" for texts are all that is needed: no value is '', a text is true unless it is empty, and == minds no case. What
needs more, such as fromJSON of an output, has no form here.

In a planned text a mark stands for such a value; like a secret's it uses characters that YAML forbids.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from ci_tasks.workflow import secrets
from ci_tasks.workflow.expressions import Evaluation, Node, condition_tree, parse, split
from ci_tasks.workflow.values import Unknown, Value, is_primitive, to_string, truth

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_MARK = re.compile("\x02(\\$\\{\\{.*?\\}\\})\x03", re.DOTALL)
_TESTS = {"contains": "contains", "startsWith": "starts_with", "endsWith": "ends_with"}  # functions of run_parts.sh


class NotLateError(Exception):
    """The value cannot be had from what bash knows when the step starts."""


class Late(NamedTuple):
    """A value as bash: a command that succeeds where it is true, and the word that is its text."""

    test: str
    word: str


def text(template: str, contexts: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The template with marks for what is known later, and the bash word of each mark. Raises NotLateError,
    ExpressionError."""
    pieces, words = list[str](), dict[str, str]()
    for part in split(template):
        if not part.is_expression:
            pieces.append(part.text)
            continue
        node, evaluation = parse(part.text), Evaluation(part.text, contexts)
        value = evaluation.value(node)
        if isinstance(value, Unknown):
            source = f"${{{{ {part.text} }}}}"
            words[source] = _compiled(node, evaluation).word
            pieces.append(f"\x02{source}\x03")
        else:
            pieces.append(to_string(value))
    return "".join(pieces), words


def test(condition: str, contexts: Mapping[str, Any], status: str) -> str:
    """The command that succeeds where an `if:` holds. Raises NotLateError, ExpressionError."""
    tree = condition_tree(condition)
    assert tree is not None, "no text is no question"
    return _compiled(tree, Evaluation(condition, contexts, status)).test


def quote(text: str, words: Mapping[str, str] = {}) -> str:
    """A bash word for `text`, with each secret taken from the environment when bash comes to it, and `words` for the
    marks of what is known late."""
    parts = _MARK.split(text)
    quoted = [_with_secrets(part) if at % 2 == 0 else words[part] for at, part in enumerate(parts) if part]
    return "".join(quoted) or "''"


def _with_secrets(text: str) -> str:
    words: list[str] = []
    for literal, name in secrets.split(text):
        words += [shlex.quote(literal)] if literal else []
        words += [f'"${{{name}:-}}"'] if name else []
    return "".join(words)


def _compiled(node: Node, evaluation: Evaluation) -> Late:
    value = evaluation.value(node)
    if not isinstance(value, Unknown):
        return _literal(value)
    if not all(name.startswith(("steps.", "env.")) for name in value.names):
        raise NotLateError
    if value.named:
        return _named(value.names[0])
    if node.kind in ("&&", "||"):
        left, right = (_compiled(part, evaluation) for part in node.parts)
        first, second = (left, right) if node.kind == "||" else (right, left)
        word = f'"$(if {left.test}; then printf %s {first.word}; else printf %s {second.word}; fi)"'
        return Late(f"{{ {left.test} {node.kind} {right.test}; }}", word)
    if node.kind == "!":
        return _boolean(f"! {_compiled(node.parts[0], evaluation).test}")
    if node.kind in ("==", "!="):
        return _boolean(("! " if node.kind == "!=" else "") + _call("same", node.parts, evaluation))
    if node.kind == "call" and node.value in _TESTS:
        return _boolean(_call(_TESTS[str(node.value)], node.parts, evaluation))
    raise NotLateError


def _call(function: str, parts: tuple[Node, ...], evaluation: Evaluation) -> str:
    """A comparison of texts. One with a number, a boolean or null goes by other rules."""
    for part in parts:
        value = evaluation.value(part)
        is_boolean = function == "same" and isinstance(value, Unknown) and part.kind in ("!", "==", "!=", "call")
        if is_boolean or not isinstance(value, (str, Unknown)):
            raise NotLateError
    return f"{function} {' '.join(_compiled(part, evaluation).word for part in parts)}"


def _literal(value: Value) -> Late:
    if not is_primitive(value):
        raise NotLateError
    return Late("true" if truth(value) else "false", quote(to_string(value)))


def _boolean(command: str) -> Late:
    return Late(command, f'"$(if {command}; then echo true; else echo false; fi)"')


def _named(name: str) -> Late:
    """`steps.ID.…` and `env.NAME`."""
    context, _, key = name.partition(".")
    if context == "env" and _NAME.fullmatch(key):
        word = f'"${{{key}-}}"'
    elif context == "steps" and _KEY.fullmatch(key):
        of_step = key.rpartition(".")[2] in ("outcome", "conclusion") and key.count(".outputs.") == 0
        word = f'"${{_steps[{key.lower()}]-{"skipped" if of_step else ""}}}"'
    else:
        raise NotLateError
    return Late(f"[ -n {word} ]", word)
