"""sbatch: its words, and what its answer means. Pure."""

from __future__ import annotations

import dataclasses
from typing import List, Optional

from .states import UNKNOWN

_LIMITS = (  # a limit on what somebody has submitted: it passes, and a smaller array may fit below it now
    "MaxSubmit",
    "MaxJobCount",
    "job submit limit",
    "temporarily unable to accept job",
    "Invalid job array specification",
    "job array index too large",
)
_PASSING = (  # nothing of the submission's own: it may do in a moment, and the controller may even have it already
    "Socket timed out",
    "Unable to contact slurm controller",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Communication connection failure",
    "Transport endpoint",
    "Slurm backup controller",
    "Message receive failure",
    "rate limit",
    "Too many",
    "no answer from",
)
# What policy keeps out for good says "submit limit" too: "(job submit limit, user's size and/or time limits)".
_POLICY = "user's size and/or time limits"
_NOISE = ("Batch job submission failed: Job violates accounting/QOS policy",)


@dataclasses.dataclass(frozen=True)
class Answer:
    """`array` is the number that the submission got; empty where it was rejected, and then `why` is the reason, in
    sbatch's words, `passes` whether it is worth being asked again, and `smaller` whether a part of it may do."""

    array: str = ""
    why: str = ""
    passes: bool = False
    smaller: bool = False


def words(directory: str, name: str, count: int) -> List[str]:
    """Submit `directory`/batch.sh for the `count` run directories that `directory`/rows lists."""
    return [
        "sbatch",
        "--parsable",
        "--job-name=" + name,
        "--array=0-%d" % (count - 1),
        "--chdir=" + directory,
        "--output=" + directory + "/%a.out",
        directory + "/batch.sh",
        directory + "/rows",
    ]


def read(code: Optional[int], out: str, err: str) -> Answer:
    """What sbatch said: `12`, or `12;cluster`, on its own line."""
    array = out.strip().splitlines()[-1].partition(";")[0] if out.strip() else ""
    if code == 0 and array.isdigit():
        return Answer(array)
    why = _why(err) or "sbatch ended with %s and said nothing" % (UNKNOWN if code is None else code)
    smaller = any(part in err.replace(_POLICY, "").replace("(job submit limit,", "") for part in _LIMITS)
    return Answer(why=why, passes=smaller or any(part in err for part in _PASSING), smaller=smaller)


def _why(err: str) -> str:
    """The lines that say why, without sbatch's head of each."""
    lines = [line.strip().partition("sbatch: error: ")[2] or line.strip() for line in err.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_NOISE)]
    return "; ".join(dict.fromkeys((telling or lines)[-2:]))
