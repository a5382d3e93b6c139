"""`--detach`: every row is begun where it is to run, and goes on by itself. The locks on the hosts say which waits for
which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ci_tasks.flows.execute import why_blocked
from ci_tasks.flows.prepare import Ready
from ci_tasks.flows.site import Prepared
from ci_tasks.flows.view import View, running_lane
from ci_tasks.model import BLOCKED, CANCELLED
from ci_tasks.runs.record import not_begun

_GLANCE = 0.05


def let_go(ready: Ready, view: View) -> list[dict[str, Any]]:
    """Start every row of the one host and let it go on by itself. Returns the records of all rows where one of them
    could not begin, or ^C came before all had; then those that could are ended again."""
    rows = [ready.drafted[position] for position in range(len(ready.rows))]
    lacking = {position: why_blocked(row) for position, row in enumerate(rows) if row.lacks}
    begun: list[Prepared] = []
    status, others = BLOCKED, "another row of the command could not begin"
    try:
        if not lacking:
            lacking = _all_begun(rows, begun, view)
    except KeyboardInterrupt:
        status, others = CANCELLED, "cancelled before all rows had begun"
    else:
        if not lacking:
            ready.stations[0].site.leave()
            return []
    _wind_up(begun, view)
    return [not_begun(row.run, status, lacking.get(position, others)) for position, row in enumerate(rows)]


def _all_begun(rows: Sequence[Prepared], begun: list[Prepared], view: View) -> dict[int, str]:
    """Begin every row, noting it in `begun`. Returns why, of those that could not."""
    for row in rows:
        begun.append(row)
        row.site.begin(row)
    while True:
        looks = [row.site.look(row) for row in rows]
        if all(look.begun or look.never for look in looks):
            return {position: look.never[1] for position, look in enumerate(looks) if look.never}
        view.show([running_lane(row.plan.row, row.run, 0.0, row.site.look(row).note) for row in rows])
        rows[0].site.wait(_GLANCE)


def _wind_up(begun: Sequence[Prepared], view: View) -> None:
    """End what was begun, and wait until it has; a further ^C kills it, and one more leaves it."""
    view.say(f"ending what was begun ({len(begun)})")
    for kill in (False, True, True):
        for row in begun:
            row.site.end([row], kill=kill)
        try:
            while not all(look.over or look.never for look in (row.site.look(row) for row in begun)):
                begun[0].site.wait(_GLANCE)
            return
        except KeyboardInterrupt:
            continue
