"""The page's templates. What a job or a person wrote is made harmless and escaped wherever it is printed."""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2
from markupsafe import Markup

from ci_tasks import resources
from ci_tasks.errors import printable
from ci_tasks.report.html.words import SYMBOLS, number

# They would show what stands beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: resources.text(f"report/html/{name}")),
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


def _shown(value: Any) -> Any:
    """Markup is our own; all else is text."""
    if isinstance(value, (Markup, jinja2.Undefined)):
        return value
    return "" if value is None else _HIDING.sub("�", printable(str(value)))
