"""Text, numbers and tables as HTML. Everything that others wrote goes through `esc` before it stands in the page."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

from ci_tasks.errors import printable

SYMBOLS = {"passed": "✓", "failed": "✗", "vacuous": "∅", "blocked": "⊘", "cancelled": "■", "lost": "?"}
_UNKNOWN_SYMBOL = "…"
# They would show what stands beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def esc(text: object) -> str:
    """Text that may stand in an element or in a quoted attribute."""
    return html.escape(_HIDING.sub("�", printable(str(text))), quote=True)


def block(text: str) -> str:
    """Text of several lines for a `pre`."""
    return "\n".join(esc(line) for line in text.split("\n"))


def status(word: str) -> str:
    """A status as a badge: a symbol and the word, so that nothing hangs on colour alone."""
    kind = word if word in SYMBOLS else "other"
    symbol = SYMBOLS.get(word, _UNKNOWN_SYMBOL)
    return f'<span class="badge {kind}"><span aria-hidden="true">{symbol}</span> {esc(word)}</span>'


def table(caption: str, head: Sequence[str], body: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table whose cells are HTML already; the first cell of a line is its header."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{line[0]}</th>{"".join(f"<td>{cell}</td>" for cell in line[1:])}</tr>\n' for line in body
    )
    chosen = f' class="{kind}"' if kind else ""
    # A table wider than the screen scrolls by itself, by keyboard too.
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table{chosen}>'
        f"<caption>{caption}</caption>\n<thead><tr>{columns}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>\n"
    )


def details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n{content}</details>\n"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and values, which are HTML already; what has no value is left out."""
    lines = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>\n" for name, value in pairs if value)
    return f'<dl class="facts">\n{lines}</dl>\n' if lines else ""


def number(value: float) -> str:
    """A metric's value, short."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them; one where both are the same."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 12 - math.floor(math.log10(step))) for at in range(first, last + 1)]
