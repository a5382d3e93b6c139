"""Which waiting rows start now on which hosts: long and wide rows first, gaps filled, none kept waiting for ever.

`values` has the words, `times` how long rows are expected to take. `timeline` knows what of one host is free when,
`layout` puts an order of rows on such lines, `search` looks for the order that ends soonest, `placing` starts what the
best plan starts now, and `wording` says why.
"""

from ci_tasks.plan.schedule.placing import place
from ci_tasks.plan.schedule.times import expected, prior
from ci_tasks.plan.schedule.values import Decision, Machine, Running, Start, Task

__all__ = ["Decision", "Machine", "Running", "Start", "Task", "expected", "place", "prior"]
