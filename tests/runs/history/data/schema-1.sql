-- A history as the first step of migrations.py left it.
CREATE TABLE runs (
    batch TEXT NOT NULL, number INTEGER NOT NULL, stamp TEXT NOT NULL, planned INTEGER NOT NULL, at REAL NOT NULL,
    id TEXT, label TEXT, row TEXT, host TEXT, status TEXT NOT NULL, final INTEGER NOT NULL, reason TEXT, cause TEXT,
    exit_code INTEGER, started REAL, ended REAL, seconds REAL, queued REAL, gpus INTEGER, simulated INTEGER NOT NULL,
    checkout TEXT, commit_hash TEXT, tree TEXT, seen INTEGER NOT NULL, PRIMARY KEY (batch, number)
);
CREATE INDEX runs_by_time ON runs (stamp, planned, batch, number);
CREATE INDEX runs_by_label ON runs (label, stamp, planned, batch, number);
CREATE INDEX runs_by_commit ON runs (commit_hash);
INSERT INTO runs VALUES (
    '20250101-120000-ckpt', 1, '20250101-120000', 7, 1735732800.0, '20250101-120000-ckpt.01', 'ckpt', 'an old row',
    'h100a', 'failed', 1, 'boom', 'assertion', 1, 1735732800.0, 1735732810.0, 10.0, 2.0, 8, 0, '/slime', 'abc', 'def', 0
);
PRAGMA user_version = 1;
