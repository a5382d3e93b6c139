"""Environments that runs share: packages which install steps got from an index, stored by what asked for them.

HOME/environments/KEY-LOCK/  one environment, complete since it was renamed into its place
    environment.json         what it was made from, and its lock: the name and version of each distribution
    prefix/                  what pip installed, as in a venv: read-only, checked against prefix.manifest
    users/                   a file for each venv over it; it is in use while one of these venvs exists
A run has a venv of its own over it, where everything goes that its steps install beyond that.
"""
