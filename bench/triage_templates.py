"""Templates of what frameworks print at the start-up and shut-down of runs that pass, for a triage without a history.

    python bench/triage_templates.py PASSING… --failing CASES… > ci_tasks/logs/triage/noise_templates.txt

PASSING are logs of runs that passed, or were well when the log ended, CASES labelled failures: JSON lines {id, log,
group?, source?, …}, .xz or not; of CASES, the lines labelled as root are used, and the whole log where nothing failed.
The table goes to stdout: a header up to the first empty line, then one template a line, sorted. A template is in it
that a log of one repository has and no case calls a root, where it has a word that a reason has, names a framework or
comes from a second repository, and reads as English: what one user's program prints is of no use to others.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.logs.lines import segments
from ci_tasks.logs.triage import log_prefixes
from ci_tasks.logs.triage.features import masked

MOST = 1500  # lines of the table
_TELLING = re.compile(
    r"(?i)error|fail|warn|exception|cannot|can't|could ?n[o']t|not (?:found|available|supported|installed|be|been)"
    r"|unable|missing|no such|invalid|unrecogni[sz]ed|unknown|killed|abort|fatal|time ?out|timed out|denied|refused"
    r"|leaked|ignored|terminat|interrupt|shut(?:ting)? ?down|without|does not|destroy|is not\b"
)
_LOUD = ("warning", "warn", "error", "critical", "w", "e", "f")
_FRAMEWORK = re.compile(
    r"(?i)\b(?:slime|verl|megatron|sglang|vllm|ray|raylet|deepspeed|torch\w*|transformers?|nccl|cuda|cudnn|cublas"
    r"|triton|apex|flash[_-]?(?:attn|attention|infer)\w*|xformers|hugging ?face\w*|hf|datasets|tokenizers?|wandb"
    r"|accelerate|peft|trl|inductor|dynamo|gloo|mpi|libaio|async_io|aiohttp|fastapi|uvicorn|pydantic|numpy|tensorflow"
    r"|jax|pynvml|processgroup\w*|ninja|nvcc|gcc|sparse_attn|op_builder|fsdp\d?|ddp|dataloader|checkpoint\w*|hydra"
    r"|resource_tracker|multiprocessing|asyncio|omp_num_threads|bitsandbytes|auto_?gptq|liger|pkg_resources|omegaconf"
    r"|rope\w*|cudagraphs?|cuda graphs?|gradient checkpointing|use_cache|tensorboard|mistral_common|pytorch\w*|nvidia"
    r"|rocm|tcpstore|socketimpl|safetensors|moe config|kernel config|index map files|fused softmax|metadata file"
    r"|generation flags|aiter|llamafactory|typedstorage|quantization|asyncllm|mpclient|git repository|model of type"
    r"|params_dict|cutlass\w*|langchain\w*|torchvision|floating-point operations|triton_attn|mstx_profile|libtpu"
    r"|orbax\w*|xla\w*|jaxlib|libnuma|file_system_monitor|nvrtc|egl)\b"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.#]*(?:Error|Exception|Interrupt|Exit)\b|Traceback \(most recent call last\)")
_CANCELLED = re.compile(
    r"\bSIG[A-Z]+\b|\bsignals?\b|\bdeath\b|(?i:cancelled|canceled|preempt)"
)  # a run that passes is never
_SOURCE_LINE = re.compile(
    r"^ *(?:raise |return |assert |except|File \"|at |self\.|if |for |\^|~)|^[\w.]+\([\w., ]*\)?$"
)
_HOST = re.compile(r"^\S+:# \[#\] NCCL ")  # its name is a user's own
_TALK = re.compile(r"(?i)\b(?:you are an?|please provide|the user|question|answer|story|rewards?)\b|<\||\bcmd = ")
_WORD = re.compile(r"[A-Za-z]{3,}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def read(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as rows:
            yield from map(json.loads, rows)


def repository(case: dict[str, Any]) -> str:
    """Whose log it is, as far as the record says."""
    source = str(case.get("group") or case.get("source") or case["id"])
    named = _REPOSITORY.match(source)
    return named[0] if named else source


def lines(log: str) -> Iterator[tuple[str, bool]]:
    """The template of each line, without what loggers, ranks and actors put before it, and whether it is telling."""
    for part in (part for row in log.split("\n") for part in segments(row.encode())):
        line = log_prefixes.read(0, part)
        template = masked(line.text)
        yield template, line.level in _LOUD or bool(_TELLING.search(template))


def templates(log: str) -> set[str]:
    return {template for template, _ in lines(log)}


def roots(case: dict[str, Any]) -> set[str]:
    labels = [root for root in (case["root_line"], *case.get("alt_root_lines", [])) if root]
    return templates("\n".join(row for row in case["log"].split("\n") if any(label in row for label in labels)))


def useful(template: str) -> bool:
    """Whether a reader of a log may take the line for a reason, though it says nothing of one."""
    return (
        20 <= len(template) <= 300
        and template.isprintable()
        and all(char.isascii() or char == "…" for char in template)
        and len(_WORD.findall(template)) >= 3
        and not _EXCEPTION.search(template)
        and not _CANCELLED.search(template)
        and not _SOURCE_LINE.search(template)
        and not _HOST.search(template)
        and not _TALK.search(template)
    )


def table(passing: Iterable[dict[str, Any]], failing: Iterable[dict[str, Any]]) -> tuple[list[str], Counter[str]]:
    """The templates, and how many logs each repository gave."""
    sources: dict[str, set[str]] = defaultdict(set)
    logs: Counter[str] = Counter()
    blamed: set[str] = set()
    for case in passing:
        _take(case, sources, logs)
    for case in failing:
        blamed |= roots(case)
        if case["verdict"] == "pass":
            _take(case, sources, logs)
    kept = [
        template
        for template, named in sources.items()
        if template not in blamed and (len(named) > 1 or _FRAMEWORK.search(template))
    ]
    kept = _whole(kept)
    kept.sort(key=lambda template: (-len(sources[template]), template))
    return sorted(kept[: MOST - len(logs) - 6]), logs


def _whole(kept: list[str]) -> list[str]:
    """Those that have no other one in them: two processes wrote into one line, or the line has a prefix left."""
    return [template for template in kept if not any(other in template for other in kept if other != template)]


def _take(case: dict[str, Any], sources: dict[str, set[str]], logs: Counter[str]) -> None:
    logs[repository(case)] += 1
    for template in {template for template, telling in lines(case["log"]) if telling}:
        if useful(template):
            sources[template].add(repository(case))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passing", nargs="+", type=Path)
    parser.add_argument("--failing", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    kept, logs = table(read(options.passing), read(options.failing))
    print(f"# {len(kept)} templates of lines in {logs.total()} logs, of {len(logs)} repositories: of runs that passed,")
    print("# and of servers and trainings that were running when the log ended.")
    print("# Made by bench/triage_templates.py; one of them in a log says nothing of why it failed.")
    print("# Sources, with their numbers of logs:")
    for source, number in sorted(logs.items()):
        print(f"#   {source} {number}")
    print()
    print("\n".join(kept))


if __name__ == "__main__":
    main()
