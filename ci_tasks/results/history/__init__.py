"""What all runs of this home say together: which there were, how long rows take, how long they wait, which are flaky.

The answers come from HOME/history.db. It is only an index: the truth is each run's record.json, and whatever becomes of
the database, no run notices.
"""

from ci_tasks.errors import Blocked

try:
    import sqlite3  # noqa: F401
except ImportError as error:
    raise Blocked(
        "this Python was built without SQLite, so there is no history of runs",
        hint="build it again where SQLite's header files are (Debian: libsqlite3-dev), or take the system's Python",
    ) from error
