"""Which lines frameworks also print in runs that pass, for a triage that has no passing run to compare with.

noise_templates.txt has them as templates, made by bench/triage_templates.py from logs of runs that passed. They are
frameworks' warnings of start-up and shut-down, never a line that a person called the reason of a failure.
"""

from __future__ import annotations

from functools import cache

from ci_tasks import resources

FILE = "features/failures/triage/noise_templates.txt"


def is_noise(masked_line: str) -> bool:
    """Whether runs that pass have the line too. It takes a template, see `line_template.masked`."""
    return masked_line in _templates()


@cache
def _templates() -> frozenset[str]:
    """Read when first asked for: most commands never triage. The header ends with the first empty line."""
    _, _, table = resources.text(FILE).partition("\n\n")
    return frozenset(table.splitlines())
