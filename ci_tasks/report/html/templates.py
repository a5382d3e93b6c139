"""Pages from templates: one file each, that asks for nothing. What a job or a person wrote is escaped wherever it is
printed, and the policy in a page's head runs no script and no style but our own, by their digests."""

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

_SHARED = "report/html"  # base.html.j2, macros.html.j2, page.css and page.js serve every page
# They would show what stands beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Assets:
    """What base.html.j2 puts into a page: its policy, style and scripts."""

    policy: str
    style: Markup
    scripts: tuple[Markup, ...]


def template(name: str) -> jinja2.Template:
    return environment(_SHARED).get_template(name)


@functools.cache
def environment(folder: str) -> jinja2.Environment:
    """The templates in a folder of the package, and the shared ones."""
    names = {name: f"{place}/{name}" for place in (_SHARED, folder) for name in resources.names(place)}
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: resources.text(names[name]) if name in names else None),
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


def assets(*scripts: str) -> Assets:
    """`scripts` are files of the package, in the order in which they run."""
    style = asset("page.css")
    texts = [asset("page.js"), *map(resources.text, scripts)]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, texts))}; worker-src blob:; img-src data:;"
        f" style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    return Assets(policy, Markup(style), tuple(map(Markup, texts)))


def asset(name: str) -> str:
    return resources.text(f"{_SHARED}/{name}")


def _digest(text: str) -> str:
    """How a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _shown(value: Any) -> Any:
    """Markup is our own; all else is text."""
    if isinstance(value, (Markup, jinja2.Undefined)):
        return value
    return "" if value is None else harmless(str(value))


def harmless(text: str) -> str:
    """Text without characters that move or hide what stands beside them."""
    return _HIDING.sub("�", printable(text))
