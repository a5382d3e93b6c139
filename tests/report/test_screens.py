"""The screens that people see, as golden files at 60, 80 and 120 columns, without colour and in colour.

`CI_TASKS_WRITE_SCREENS=1 pytest tests/report/test_screens.py` writes them anew: read the difference before you commit
it. A golden file that is missing fails.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style

from ci_tasks.agent.codec import decode
from ci_tasks.records import PlanEntry, RowTally, RunRecord
from ci_tasks.report import jobs as listed
from ci_tasks.report import lists
from ci_tasks.report import results as ended
from ci_tasks.report.live import HostProgress, ProgressTable, RowProgress
from ci_tasks.workflow.model import Row
from tests.report import test_junit, test_markdown

DIRECTORY = Path(__file__).with_name("screens")
MODES = [f"[save-optimizer-{save}-load-optimizer-{load}]" for save in ("gpu", "cpu") for load in ("gpu", "cpu")]
CKPT = [f"qwen3_4B_ckpt{mode}" for mode in (*MODES, "[async-save]")]
MEGATRON = ["qwen2.5_0.5B_debug_rollout_then_train", "glm52_6layer_deterministic_e2e", "qwen3_4B_ppo_disaggregate"]
CPU = ["metric_report", "metric_report_dist", "plugin_path_loading_contracts"]
IMAGE = "slimerl/slime:latest"
REASONS = ["KeyError: 'rollout_max_response_len' in the arguments of the second rollout", "no GPU is free", ""]


def jobs(width: int) -> list[str]:
    def row(label: str, name: str, gpus: int, image: str | None) -> Row:
        trigger = f"run-ci-{label}" if gpus else None
        return Row(label, f"e2e-test-{label}", trigger, name, None, "", gpus, image, {}, "self-hosted", None)

    of_label = {"megatron": (MEGATRON, 8), "ckpt": (CKPT, 8), "cpu-unittest": (CPU, 0)}
    rows = [
        row(label, name, gpus, IMAGE if gpus else None) for label, (names, gpus) in of_label.items() for name in names
    ]
    return listed.jobs(rows, width)


def _record(number: int, row: str, status: str, reason: str = "") -> RunRecord:
    fields: dict[str, Any] = {
        "id": f"20260101-120000-ckpt.{number:02d}", "label": "ckpt", "row": row, "host": "h100a", "status": status,
        "reason": reason, "started_at": "2026-01-01T12:00:00+00:00", "timings": {"seconds": 725.0 + number},
        "evidence": {"kind": "pytest", "tests": 2, "failures": 0, "skipped": 0, "steps": 12},
        "deviations": [{"what": "container", "ci": IMAGE, "here": "no container", "why": "runtime of host h100a"}],
    }  # fmt: skip
    return decode(RunRecord, fields, where="a screen")


RECORDS = [
    *(_record(at, row, "failed", reason) for at, (row, reason) in enumerate(zip(CKPT, REASONS, strict=False), 1)),
    *(_record(at, row, "passed") for at, row in enumerate(CKPT[3:], 4)),
]


def results(width: int) -> list[str]:
    logs = [f"/home/me/.local/state/ci-tasks/runs/20260101-120000-ckpt/{at:02d}/log.txt" for at in range(1, 6)]
    return [*ended.table(RECORDS, logs, width), "", *ended.deviations(RECORDS, width)]


def runs(width: int) -> list[str]:
    return lists.runs(RECORDS, [lists.age(3600.0 * number) for number, _ in enumerate(RECORDS)], width)


def flakes(width: int) -> list[str]:
    tallies = [RowTally("ckpt", row, "h100a", {"passed": 11, "failed": 1}, 725.0, 3.5, True, 12) for row in CKPT]
    return lists.flakes(tallies, width)


def planned(width: int) -> list[str]:
    return lists.plans(
        [
            decode(
                PlanEntry,
                {
                    **dict.fromkeys(("id", "label", "job", "args", "runtime", "workspace", "script"), "x"),
                    "row": row, "host": "h100a", "test": None, "gpus": 8, "image": None, "env": {},
                    "secrets": ["WANDB_API_KEY"], "timeout_minutes": 1, "stall_minutes": 1, "container": None,
                    "deviations": [], "checkout": {"path": "/c", "commit": "1", "tree": "2"},
                    "run_dir": f"/home/me/.local/state/ci-tasks/runs/20260101-120000-ckpt/{at:02d}",
                    "lacks": ["8 GPUs (found 0: no nvidia-smi on PATH)", "docker (the daemon does not answer)"],
                },
                where="a screen",
            )
            for at, row in enumerate(CKPT, 1)
        ],
        width,
    )  # fmt: skip


LANES = [
    RowProgress(CKPT[0], "running", 700.0, "rollout 12, reward 0.43", "h100a", 8, tuple(range(8))),
    RowProgress(CKPT[1], "stalled", 60.0, "no output for 15 min", "h100b", 8, tuple(range(8)), seconds_left=95.0),
    RowProgress(CKPT[2], "waiting", note="8 GPUs of h100a or h100b", gpus=8),
    RowProgress(CKPT[3], "failed", 725.0, REASONS[0], "h100a", 8),
    RowProgress(CKPT[4], "passed", 725.0, "", "h100b", 8),
]
HOSTS = [HostProgress("h100a", 8), HostProgress("h100b", 8, up=False, note="the link is down")]


def live(width: int, *, colour: bool, hosts: list[HostProgress]) -> list[str]:
    out = io.StringIO()
    for cached in (Style.parse, Style._add):
        cached.cache_clear()  # a style keeps the codes of the first console that showed it, whatever its colours were
    environment = {"TERM": "xterm-256color"}
    system: Any = "256" if colour else None
    console = Console(
        file=out, width=width, height=24, force_terminal=colour, color_system=system, _environ=environment
    )
    console.print(ProgressTable("ckpt on h100", LANES, 24, hosts))
    return [line if colour else line.rstrip() for line in out.getvalue().splitlines()]


SCREENS: dict[str, Callable[[int], list[str]]] = {
    "jobs": jobs, "plan": planned, "results": results, "runs": runs, "flakes": flakes,
    "live": lambda width: live(width, colour=False, hosts=[]),
    "live-colour": lambda width: live(width, colour=True, hosts=[]),
    "live-hosts": lambda width: live(width, colour=False, hosts=HOSTS),
    "live-hosts-colour": lambda width: live(width, colour=True, hosts=HOSTS),
}  # fmt: skip

FILES = {"summary.md": test_markdown.summary, "junit.xml": test_junit.whole_file}
WIDTHS = (60, 80, 120)


@pytest.mark.parametrize("name", [*SCREENS, *FILES])
def test_a_screen_or_file_is_as_its_golden_file(name: str) -> None:
    if name in FILES:
        shown = {name: FILES[name]()}
    else:
        shown = {f"{name}-{width}.txt": "".join(f"{line}\n" for line in SCREENS[name](width)) for width in WIDTHS}
    if os.environ.get("CI_TASKS_WRITE_SCREENS"):
        for file, text in shown.items():
            (DIRECTORY / file).write_text(text, encoding="utf-8")
    golden = {file: (DIRECTORY / file).read_text(encoding="utf-8") for file in shown if (DIRECTORY / file).is_file()}
    assert golden.keys() == shown.keys(), "one is missing; the head of this module says how it is written"
    assert shown == golden


def test_its_lines_fit_unless_a_path_is_longer() -> None:
    shown = [(name, width, line) for name in SCREENS for width in WIDTHS for line in SCREENS[name](width)]
    too_long = [
        (name, width, line)
        for name, width, line in shown
        if cell_len(re.sub(r"\x1b\[[0-9;]*m", "", line)) > width and "/home/me/" not in line
    ]
    assert too_long == []


@pytest.mark.parametrize("name", ["live", "live-hosts"])
def test_colour_adds_nothing_to_the_text(name: str) -> None:
    coloured = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in SCREENS[f"{name}-colour"](80)]
    assert coloured == SCREENS[name](80)
