"""Two ranks on two GPUs that hang, each time in another way: does `hang` say why?

    python bench/hang.py [CASE…]

One JSON line a case; exit code 1 unless each reason has the words of CASES. The ranks use torch with NCCL, its
DataLoader and its kernels. Stacks are the probe's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.agent.hang import HangFacts, recorded_collectives
from ci_tasks.features.hang.analysis import analyse_hang
from tests.features.hang.planted_runs import look, planted

SETTLE_SECONDS = 8.0  # from the last step of the ranks, for kernels to start and waits to begin
# What the reason says of rank 1.
CASES = {
    "gpu_queue": "rank 1 waits in queue.get at planted.py",
    "gpu_worker": ", in read_sample",
    "gpu_kernel": "a kernel that does not end",
    "gpu_kernel_before": "a kernel that does not end",
    "gpu_locks": "rank 1 waits in with lock_b",
    "gpu_stopped": "rank 1 is stopped",
    "gpu_killed": "rank 1 is gone",
}


def measure(case: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with planted({case: 2}, directory, directory) as runs:
            time.sleep(SETTLE_SECONDS)
            began = time.monotonic()
            facts = with_collectives(look(runs, directory)[case])
        print((directory / "stderr").read_text(errors="replace")[-2000:], end="", file=sys.stderr)
    hang = analyse_hang(facts)
    is_named = CASES[case] in hang.reason
    words = {"case": case, "named": is_named, "look_s": round(time.monotonic() - began, 1)}
    said = {"said": f"{hang.outcome}, {hang.kind}: {hang.reason}", "could_not": hang.could_not}
    print(json.dumps({"benchmark": "hang", **words, **said}), flush=True)
    return is_named


def with_collectives(facts: HangFacts) -> HangFacts:
    """With what torch's flight recorder says, as the agent of a run collects it."""
    collectives, problems = recorded_collectives([process.env for process in facts.processes], 10)
    could_not = (*facts.could_not, *problems)
    return replace(facts, collectives=collectives, could_not=could_not)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")  # the flight recorder knows then which collectives started
    named = [measure(case) for case in sys.argv[1:] or CASES]
    sys.exit(0 if all(named) else 1)
