"""The history's tables. They are only an index of the run directories: whatever has another version is made again."""

from __future__ import annotations

import sqlite3

VERSION = 3  # `PRAGMA user_version`; to be raised with every change below
_TABLES = (
    """
    CREATE TABLE runs (
        batch TEXT NOT NULL,         -- the directory HOME/runs/BATCH/NUMBER
        number INTEGER NOT NULL,
        stamp TEXT NOT NULL,         -- the second in the batch's name, and when its first row was planned (ns): these
        planned INTEGER NOT NULL,    -- order runs as `store` does
        at REAL NOT NULL,            -- its start, or when it was planned where it never began (seconds, epoch)
        label TEXT NOT NULL,
        row TEXT NOT NULL,
        host TEXT,
        status TEXT NOT NULL,
        final INTEGER NOT NULL,      -- whether it has a record.json
        seconds REAL,
        queued REAL,
        simulated INTEGER NOT NULL,  -- whether its GPUs were simulated
        checkout TEXT,
        commit_hash TEXT,
        tree TEXT,
        retry INTEGER NOT NULL,      -- whether it ran the last steps of another run again
        seen INTEGER NOT NULL,       -- st_mtime_ns of its directory when it was looked at; 0: look again
        record_json TEXT NOT NULL,   -- its record, without what may be long
        PRIMARY KEY (batch, number)
    )
    """,
    # What the comparison with the run directories has seen. Of a batch that is not open every row is final.
    "CREATE TABLE batches (name TEXT PRIMARY KEY, open INTEGER NOT NULL, seen INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX runs_by_time ON runs (stamp, planned, batch, number)",
    "CREATE INDEX runs_by_label ON runs (label, stamp, planned, batch, number)",
    "CREATE INDEX runs_by_commit ON runs (commit_hash)",
)


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables where they are not there, or are those of another version. Raises sqlite3.Error."""
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) != VERSION:  # another process may have done it meanwhile
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f'DROP TABLE "{name}"')
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
