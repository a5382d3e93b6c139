"""What a GPU host would add to a machine that runs the CPU labels. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ci_tasks.workflow.model import Job, Row

_MOUNT = re.compile(r"\s-v\s+(/[^:\s]+):")


def gpu_host_lines(rows: Sequence[Row], jobs: Mapping[str, Job], file: str, hosts: Sequence[str]) -> list[str]:
    """The rows that it could run, what they need, and how to name it in `file`, unless `hosts` are named already;
    nothing where there are no such rows."""
    if not rows:
        return []
    labels = Counter(row.label for row in rows)
    gpus = sorted({row.gpus for row in rows if row.gpus})
    images = list(dict.fromkeys(row.image for row in rows if row.image))
    texts = [step.run or "" for job in {row.job for row in rows} for step in jobs[job].steps]
    mounts = sorted({path for text in texts for path in _MOUNT.findall(text)})
    top = [path for path in mounts if not any(path.startswith(f"{other}/") for other in mounts)]
    needs = [
        *(["docker"] if images else []),
        *([f"{gpus[0]} GPUs" if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]} GPUs"] if gpus else []),
        *([f"the image{'' if len(images) == 1 else 's'} {', '.join(images)}"] if images else []),
        *([f"CI's data ({', '.join(top)}, or `mounts`)"] if top else []),
    ]
    counts = ", ".join(f"{label} {count}" for label, count in labels.items())
    name = hosts[0] if hosts else "h100a"
    how = f"`ci-tasks doctor --host {name}` says what it lacks"
    return [
        f"A GPU host would add {len(rows)} rows: {counts}.",
        f"It needs {', '.join(needs)}." if needs else "It needs nothing more.",
        *(
            [f"{how}."]
            if hosts
            else [
                f"Name it in {file}, then {how}:",
                "  hosts:",
                f"    {name}: {{kind: ssh, address: h100a.example.com}}",
            ]
        ),
    ]
