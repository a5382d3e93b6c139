"""The summary as text, markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ci_tasks.features.verl import report as verl
from ci_tasks.features.verl.levels.summary import Deliverable, EvidenceItem, Summary

SUMMARY = Summary(
    result="Fail",
    sentence="level 1: resume: it did not resume; level 0 passed",
    requested="Level 1 (Save/resume), after Level 0",
    checkpoint="MODEL_ID=Qwen/Qwen2.5-0.5B",
    deliverables=(
        Deliverable("Bridge-side checks", "Skipped", "the image has no uv"),
        Deliverable("Local Bridge import in verl", "Pass", "driver: /b/src/megatron/bridge/__init__.py"),
        Deliverable("verl Megatron backend run", "Pass", "LoRA + DDP: Training Progress 1/1"),
        Deliverable("Requested variants", "Fail", "save/resume: it did not resume"),
        Deliverable("Log capture", "Pass", "/runs/1/log"),
    ),
    evidence=(
        EvidenceItem("Bridge repo", ("abc1234 plus src/a_b.py",)),
        EvidenceItem("verl repo", ("def5678, no dirty files",)),
        EvidenceItem("Command", ("invoke verl --level 1", "image verlai/verl:vllm")),
        EvidenceItem("Key lines", ("line 9: `step:1` - acc/mean@1:1",)),
    ),
    limitations=("no convergence claim",),
    follow_ups=(),
)

TEXT = """\
Result: Fail - level 1: resume: it did not resume; level 0 passed
Requested coverage: Level 1 (Save/resume), after Level 0
Checkpoint/config: MODEL_ID=Qwen/Qwen2.5-0.5B
Deliverables:
- Bridge-side checks: Skipped - the image has no uv
- Local Bridge import in verl: Pass - driver: /b/src/megatron/bridge/__init__.py
- verl Megatron backend run: Pass - LoRA + DDP: Training Progress 1/1
- Requested variants: Fail - save/resume: it did not resume
- Log capture: Pass - /runs/1/log
Evidence:
- Bridge repo: abc1234 plus src/a_b.py
- verl repo: def5678, no dirty files
- Command: invoke verl --level 1; image verlai/verl:vllm
- Key lines: line 9: `step:1` - acc/mean@1:1
Limitations:
- no convergence claim
Follow-ups:
- none"""


def test_the_text_is_the_guides_format() -> None:
    assert "\n".join(verl.text(SUMMARY)) == TEXT


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("mean@1 by @nobody, #12", "mean@1 by @\u200bnobody, #\u200b12"),
        ("*a* <b> [c](d) `e` ~f~ g|h", r"\*a\* \<b\> \[c\](d) \`e\` \~f\~ g\|h"),
        ("global_step_1 in __init__.py", r"global_step_1 in \_\_init\_\_.py"),
    ],
)
def test_foreign_text_is_escaped_and_mentions_nobody(text: str, written: str) -> None:
    assert written in verl.markdown(replace(SUMMARY, sentence=text))


def test_json_has_every_field() -> None:
    public = json.loads(json.dumps(verl.public(SUMMARY)))
    assert (public["deliverables"][3]["status"], public["criteria"], public["passed_level"]) == ("Fail", [], None)
