"""The report page from templates: one file that asks for nothing. What a job or a person wrote is escaped wherever it
is printed, and the policy in the page's head runs no script and no style but our own, by their digests."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from typing import Any

import jinja2
from markupsafe import Markup

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.report.html.words import SYMBOLS, number

_FOLDER = "report/html"
# They would show what stands beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Assets:
    """What report.html.j2 puts into the page's head and end: its policy, style and script."""

    policy: str
    style: Markup
    script: Markup


def template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["symbols"] = SYMBOLS
    environment.filters["number"] = number
    return environment


def assets() -> Assets:
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; img-src data:; style-src {_digest(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    return Assets(policy, Markup(style), Markup(script))


def _asset(name: str) -> str:
    return resources.text(f"{_FOLDER}/{name}")


def _digest(text: str) -> str:
    """How a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _shown(value: Any) -> Any:
    """Markup is our own; all else is text."""
    if isinstance(value, (Markup, jinja2.Undefined)):
        return value
    return "" if value is None else _HIDING.sub("�", printable(str(value)))
