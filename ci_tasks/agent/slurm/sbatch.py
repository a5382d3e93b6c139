"""sbatch: its command line, and the meaning of its output. Pure."""

from __future__ import annotations

from typing import List, Optional

from ..quick_dataclass import dataclass

_LIMITS = (  # a limit on what a user has submitted: temporary, and a smaller array may fit below it now
    "MaxSubmit",
    "MaxJobCount",
    "job submit limit",
    "temporarily unable to accept job",
    "Invalid job array specification",
    "job array index too large",
)
_TEMPORARY = (  # not about this submission: it may succeed in a moment, and the controller may even have it already
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
# A permanent rejection by policy mentions a "submit limit" too: "(job submit limit, user's size and/or time limits)".
_POLICY = ("user's size and/or time limits", "(job submit limit,")
_NOISE = ("Batch job submission failed: Job violates accounting/QOS policy",)


@dataclass(frozen=True)
class Submission:
    """`array` is the id that the submission got; empty where it was rejected, and then `reason` is sbatch's message,
    `is_temporary` whether to try again, and `is_too_large` whether a part of it may be accepted."""

    array: str = ""
    reason: str = ""
    is_temporary: bool = False
    is_too_large: bool = False


def sbatch_command(directory: str, name: str, count: int) -> List[str]:
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


def parse_answer(code: Optional[int], out: str, err: str) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    array = out.strip().splitlines()[-1].partition(";")[0] if out.strip() else ""
    if code == 0 and array.isdigit():
        return Submission(array)
    reason = _reason(err) or "sbatch ended with %s and no message" % ("no exit code" if code is None else code)
    text = err
    for phrase in _POLICY:
        text = text.replace(phrase, "")
    is_too_large = any(part in text for part in _LIMITS)
    is_temporary = is_too_large or any(part in err for part in _TEMPORARY)
    return Submission("", reason, is_temporary, is_too_large)


def _reason(err: str) -> str:
    """The lines that say why, without sbatch's prefix."""
    lines = [line.strip().partition("sbatch: error: ")[2] or line.strip() for line in err.splitlines() if line.strip()]
    specific = [line for line in lines if not line.startswith(_NOISE)]
    return "; ".join(dict.fromkeys((specific or lines)[-2:]))
