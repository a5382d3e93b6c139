"""The history's tables, as numbered steps that are never changed once they were published: a new one is added below.

`PRAGMA user_version` says how many of them a database has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

Step = tuple[str, ...]

_RUNS = """
CREATE TABLE runs (
    batch TEXT NOT NULL,         -- the directory HOME/runs/BATCH/NUMBER
    number INTEGER NOT NULL,
    stamp TEXT NOT NULL,         -- the second in the batch's name, and when its first row was planned (ns): these
    planned INTEGER NOT NULL,    -- order runs as `store` does
    at REAL NOT NULL,            -- its start, or when it was planned where it never began (seconds, epoch)
    id TEXT,
    label TEXT,
    row TEXT,
    host TEXT,
    status TEXT NOT NULL,
    final INTEGER NOT NULL,      -- whether it has a record.json
    reason TEXT,
    cause TEXT,                  -- triage's
    exit_code INTEGER,
    started REAL,
    ended REAL,
    seconds REAL,
    queued REAL,
    gpus INTEGER,
    simulated INTEGER NOT NULL,  -- whether its GPUs were pretended
    checkout TEXT,
    commit_hash TEXT,
    tree TEXT,
    seen INTEGER NOT NULL,       -- st_mtime_ns of its directory when it was looked at; 0: look again
    PRIMARY KEY (batch, number)
)
"""

MIGRATIONS: tuple[Step, ...] = (
    (
        _RUNS,
        "CREATE INDEX runs_by_time ON runs (stamp, planned, batch, number)",
        "CREATE INDEX runs_by_label ON runs (label, stamp, planned, batch, number)",
        "CREATE INDEX runs_by_commit ON runs (commit_hash)",
    ),
    (
        # What the comparison with the run directories has seen. Of a batch that is not open every row is final.
        "CREATE TABLE batches (name TEXT PRIMARY KEY, open INTEGER NOT NULL, seen INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX batches_open ON batches (name) WHERE open",
        "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    ),
)


class NewerSchema(Exception):
    """The database was written by a version of ours that has steps which this one does not know."""


def migrate(connection: sqlite3.Connection, steps: tuple[Step, ...] = MIGRATIONS) -> None:
    """Take the database to the last step, each in a transaction of its own. Raises NewerSchema, sqlite3.Error; then it
    is as the last step that succeeded left it."""
    while (version := _version(connection)) < len(steps):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection) == version:  # another process may have done it meanwhile
                for statement in steps[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    if version > len(steps):
        raise NewerSchema(f"its schema is number {version}, and this version of ci-tasks knows {len(steps)}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
