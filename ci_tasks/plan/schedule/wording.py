"""Why a row starts where it does, or waits: one plain sentence each. Times are guesses, and said like guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci_tasks.plan.schedule.values import Machine, Task


def about(seconds: float) -> str:
    """A length of time as one would say it of a guess."""
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 100 * 60 else f"about {seconds / 3600:.1f} h"


def count(number: int, what: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def never(task: Task, machines: Sequence[Machine]) -> str:
    """Of a row that no host can start as they stand: too wide, restricted to hosts that are not there, or down."""
    allowed = [machine for machine in machines if task.hosts is None or machine.name in task.hosts]
    if not allowed:
        return f"no host is left for it; it may run on: {', '.join(task.hosts or ()) or 'any'}"
    able = [machine for machine in allowed if machine.gpus >= task.gpus]
    if not able:
        largest = max(allowed, key=lambda machine: machine.gpus)
        most = f"the largest host it may use, {largest.name}, has {largest.gpus}"
        return f"it needs {count(task.gpus, 'GPU')}, and {most}"
    down = [machine.name for machine in able if not machine.up]
    if down:
        return f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down, and no other host can take it"
    return f"{', '.join(machine.name for machine in able)} may run no rows at all"


def begins(task: Task, machine: Machine, free: int, dearer: bool) -> str:
    """Of a row that starts on a host that had `free` GPUs; `dearer` whether more would have to be got to another."""
    room = f"{machine.name} has {free} of {count(machine.gpus, 'GPU')} free, and it needs {task.gpus}"
    if not task.gpus:
        room = f"{machine.name} has a place, and it needs no GPU"
    lacks = [] if machine.has_code else ["code"]
    if task.image is not None and task.image not in machine.images:
        lacks.append("image")
    if lacks:
        return f"{room}; the {' and the '.join(lacks)} must get there first"
    return f"{room}; what it runs is there already" if dearer else room


def passes(other: Task, seconds: float) -> str:
    """Of a row that starts before one that comes before it."""
    return f"{other.name} is not delayed by it, and has its {count(other.gpus, 'GPU')} in {about(seconds)}"


def queues(task: Task, machine: Machine) -> str:
    """Of a row that waits on the host, and not here."""
    held = f"others hold {machine.held} of {count(machine.gpus, 'GPU')} of {machine.name}, and no row of ours has any"
    return f"{held}: it waits there for its {task.gpus}"


def excluded(other: Task, machine: Machine, names: Iterable[str], seconds: float) -> str:
    """Of a row that cannot share its host with one that runs there."""
    return f"it cannot run beside {other.name} on {machine.name} ({', '.join(names)}); its turn is in {about(seconds)}"


def full(machine: Machine, seconds: float) -> str:
    """Of a row for which there are GPUs, and no place."""
    return f"{machine.name} runs {count(machine.slots, 'row')} at once; its turn is in {about(seconds)}"


def short(task: Task, machine: Machine, free: int, seconds: float) -> str:
    """Of a row for which there are not enough GPUs."""
    held = f", with {machine.held} held by others" if machine.held else ""
    wanted = f"it needs {count(task.gpus, 'GPU')}, and {machine.name} has {free} free{held}"
    return f"{wanted}; its turn is in {about(seconds)}"


def behind(other: Task, machine: Machine, seconds: float) -> str:
    """Of a row that would fit and would delay another."""
    return f"it would delay {other.name}, which is next on {machine.name}; its turn is in {about(seconds)}"


def yields(other: Task, machine: Machine) -> str:
    """Of a row that would fit and delay nobody, as far as one can know."""
    return f"{other.name} has waited much longer for GPUs of {machine.name}, so nothing passes it any more"


def later(rows: int) -> str:
    """Of a row that waits for no one row, or that nobody has planned for yet."""
    return f"{count(rows, 'row')} of those that wait, wider or longer ones mostly, come first"
