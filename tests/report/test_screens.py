"""The screens that people see, as golden files at 60, 80 and 120 columns, without colour and in colour."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style

from ci_tasks.agent.codec import decode
from ci_tasks.agent.records import Deviation
from ci_tasks.records import RowTally, RunRecord
from ci_tasks.report import jobs as listed
from ci_tasks.report import lists
from ci_tasks.report import results as ended
from ci_tasks.report.live import HostProgress, ProgressTable, RowProgress
from ci_tasks.workflow.model import Row
from tests.parts.golden import golden
from tests.report import test_brief, test_junit, test_markdown, test_page, test_table

DIRECTORY = Path(__file__).with_name("screens")
MODES = [f"[save-optimizer-{save}-load-optimizer-{load}]" for save in ("gpu", "cpu") for load in ("gpu", "cpu")]
CKPT = [f"qwen3_4B_ckpt{mode}" for mode in (*MODES, "[async-save]")]
MEGATRON = ["qwen2.5_0.5B_debug_rollout_then_train", "glm52_6layer_deterministic_e2e", "qwen3_4B_ppo_disaggregate"]
CPU = ["metric_report", "metric_report_dist", "plugin_path_loading_contracts"]
IMAGE = "slimerl/slime:latest"
REASONS = ["KeyError: 'rollout_max_response_len' in the arguments of the second rollout"] * 2 + ["no GPU is free"]
RUNS = "/home/me/.local/state/ci-tasks/runs/20260101-120000-ckpt"


def jobs(width: int) -> list[str]:
    """Also what is not known: a number of GPUs, rows that another job decides; and what cannot run here."""

    def row(label: str, name: str, gpus: int | None, image: str | None, **more: Any) -> Row:
        trigger = f"run-ci-{label}" if gpus else None
        return Row(label, f"e2e-test-{label}", trigger, name, None, "", gpus, image, {}, "self-hosted", None, **more)

    of_label = {"megatron": (MEGATRON, 8), "ckpt": (CKPT, 8), "cpu-unittest": (CPU, 0)}
    rows = [
        row(label, name, gpus, IMAGE if gpus else None) for label, (names, gpus) in of_label.items() for name in names
    ]
    rows += [row("ckpt", "small", 2, "slimerl/slime:v1"), row("cpu-unittest", "unknown", None, None)]
    rows += [
        row("changed", "changed", None, None, dynamic="${{ x }}"),
        row("rocm", "r", None, None, refused="on mi300"),
    ]
    return listed.jobs(rows, width)


def _record(number: int, row: str, status: str, reason: str = "") -> RunRecord:
    fields: dict[str, Any] = {
        "id": f"20260101-120000-ckpt.{number:02d}", "label": "ckpt", "row": row, "host": "h100a", "status": status,
        "reason": reason, "started_at": "2026-01-01T12:00:00+00:00", "timings": {"seconds": 725.0 + number},
        "evidence": {"kind": "pytest", "tests": 2, "failures": 0, "skipped": 0, "steps": 12},
        "deviations": [{"what": "container", "ci": IMAGE, "here": "no container", "why": "runtime of host h100a"}],
    }  # fmt: skip
    differs = {"ci": "as GitHub sees it", "here": "always", "why": "only GitHub knows"}
    fields["deviations"] += [{"what": what, **differs} for what in ("if", "GPUs")[: max(0, 4 - number)]]
    if number in (3, 4):  # it was tried on other hosts before
        blocked = {"id": "b.01", "host": "h100b", "status": "blocked", "reason": "no space\nleft", "left": ["/w: busy"]}
        lost = {"id": "b.02", "host": "h100c", "status": "lost"}
        fields["attempts"] = [blocked, lost, {"id": fields["id"], "host": "h100a", "status": status}]
    return decode(RunRecord, fields, where="a screen")


RECORDS = [
    *(_record(at, row, "failed", reason) for at, (row, reason) in enumerate(zip(CKPT, REASONS, strict=False), 1)),
    *(_record(at, row, "passed") for at, row in enumerate(CKPT[3:], 4)),
]


def results(width: int) -> list[str]:
    logs = [f"{RUNS}/{at:02d}/log.txt" for at in range(1, 6)]
    return [*ended.table(RECORDS, logs, width), "", *ended.deviations(RECORDS, width)]


def runs(width: int) -> list[str]:
    return lists.runs(RECORDS, [lists.age(3600.0 * number) for number, _ in enumerate(RECORDS)], width)


def flakes(width: int) -> list[str]:
    tallies = [RowTally("ckpt", row, "h100a", {"passed": 11, "failed": 1}, 725.0, 3.5, True, 12) for row in CKPT]
    return lists.flakes(tallies, width)


def planned(width: int) -> list[str]:
    """Rows that cannot run here, and one that can; the first one differs from CI more than the others."""
    lacks = ("8 GPUs (found 0: no nvidia-smi on PATH)", "docker (the daemon does not answer)")
    code = Deviation("code", "merge of 12 into main", "your working tree", "your working tree is tested")
    image = Deviation("image", IMAGE, "no container", "runtime of host h100a")
    keys: dict[str, Any] = {"host": "h100a", "gpus": 8, "secrets": ("WANDB_API_KEY",), "deviations": (code,)}
    rows = [test_table.plan(row, f"{RUNS}/{at:02d}", lacks, **keys) for at, row in enumerate(CKPT[:-1], 2)]
    own = {"secrets": ("A_KEY",), "deviations": (code, image)}
    return lists.plans([test_table.plan(CKPT[-1], f"{RUNS}/01", **{**keys, **own}), *rows], width)


LANES = [
    RowProgress(CKPT[0], "running", 700.0, "rollout 12, reward 0.43", "h100a", 4, (4, 5, 6, 7), seconds_left=-130.0),
    RowProgress(CKPT[1], "stalled", 60.0, "no output for 15 min", "h100a", 2, attempt=2),
    RowProgress(CKPT[2], "running", 61.4, "step 1 [loss=2]\nof 2", "h100b", 8, tuple(range(8)), seconds_left=95.0),
    RowProgress("unit", "running", 3.0, "", "cpu"),
    RowProgress("held up", "waiting", 5.0, "GPU 3 of h100a", "h100a", 4),
    RowProgress("later", "waiting", note="8 GPUs of h100a or h100b", gpus=8),
    RowProgress(CKPT[3], "failed", 725.0, REASONS[0], "h100a", 8),
    RowProgress(CKPT[4], "passed", 725.0, "", "h100b", 8),
]
HOSTS = [
    HostProgress("h100a", 8, held=1),
    HostProgress("h100b", 8, up=False, note="the link is down\nfor 12 s"),
    HostProgress("h100c", None, note="connecting"),
    HostProgress("cpu", 0),
]


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

FILES: dict[str, Callable[[], str]] = {
    "summary.md": test_markdown.summary, "junit.xml": test_junit.whole_file, "brief.md": test_brief.both,
    "page.html": lambda: re.sub("(?s)<style>.*?</style>", "", test_page.failed_and_passed()[0]),
}  # fmt: skip
WIDTHS = (60, 80, 120)


@pytest.mark.parametrize("name", [*SCREENS, *FILES])
def test_a_screen_or_file_is_as_its_golden_file(name: str) -> None:
    if name in FILES:
        shown = {name: FILES[name]()}
    else:
        shown = {f"{name}-{width}.txt": "".join(f"{line}\n" for line in SCREENS[name](width)) for width in WIDTHS}
    assert shown == {file: golden(DIRECTORY / file, text) for file, text in shown.items()}


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
