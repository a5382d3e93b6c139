"""sbatch: its command line, and the meaning of its output. Pure."""

from __future__ import annotations

import os
from typing import List, Optional

from .. import run_directory
from ..quick_dataclass import dataclass
from . import job_file

_TEMPORARY = (  # not about this job: it may be accepted in a while, and the controller may even have it already
    "MaxSubmit",
    "MaxJobCount",
    "job submit limit",
    "temporarily unable to accept job",
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
    """`job` is the id that Slurm gave; empty where it rejected the job, and then `reason` is sbatch's message, and
    `is_temporary` says whether to try again."""

    job: str = ""
    reason: str = ""
    is_temporary: bool = False


def sbatch_command(run_dir: str, name: str) -> List[str]:
    return [
        "sbatch",
        "--parsable",
        "--job-name=" + name,
        "--chdir=" + run_dir,
        "--output=" + os.path.join(run_dir, run_directory.SLURM_OUTPUT),
        os.path.join(run_dir, job_file.SCRIPT),
        run_dir,
    ]


def parse_answer(code: Optional[int], out: str, err: str) -> Submission:
    """sbatch prints `12`, or `12;cluster`, on a line of its own."""
    job = out.strip().splitlines()[-1].partition(";")[0] if out.strip() else ""
    if code == 0 and job.isdigit():
        return Submission(job)
    reason = _reason(err) or "sbatch ended with %s and no message" % ("no exit code" if code is None else code)
    text = err
    for phrase in _POLICY:
        text = text.replace(phrase, "")
    return Submission("", reason, any(part in text for part in _TEMPORARY))


def _reason(err: str) -> str:
    """The lines that say why, without sbatch's prefix."""
    lines = [line.strip().partition("sbatch: error: ")[2] or line.strip() for line in err.splitlines() if line.strip()]
    specific = [line for line in lines if not line.startswith(_NOISE)]
    return "; ".join(dict.fromkeys((specific or lines)[-2:]))
