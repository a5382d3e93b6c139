"""Runs one plan on the host where it lies: supervises the job, adapts its containers, keeps its log and status.

Standard library only, Python 3.8+, imports nothing else of ours: the package is zipped into the run directory and
travels with it, so a host needs no installation.
"""

# First, since it imports `dataclasses` without what takes most of that import's time.
from . import quick_dataclass as quick_dataclass
