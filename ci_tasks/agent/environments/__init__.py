"""Environments that runs share: packages that install steps got from an index, stored by what asked for them.

HOME/environments/lock       held while an environment is taken or given up
HOME/environments/KEY-TIME/  one environment; of several with a key the newest is used
    environment.json         written last: what it holds, and how long the steps took
    prefix/                  what pip installed, as in a venv: read-only, and compared with `files` before it is used
    files                    its files, each with what the file system says of it
    users/                   a link to each venv over it; it is in use while one of these venvs exists
A run has a venv of its own over it, where everything goes that its steps install beyond that.
"""
