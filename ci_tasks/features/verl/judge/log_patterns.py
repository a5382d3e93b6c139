"""What single lines of verl's, Megatron-Bridge's and our step script's output say."""

from __future__ import annotations

import re

from ci_tasks.logs.lines import visible

LONGEST = 1 << 16  # characters of a line that are read: a step's metrics are several thousand
_MOST_METRICS = 400
_RAY = re.compile(r"^\(([\w.:@/-]{1,80} pid=\d+(?:, ip=[\w.:]+)?)\) ?")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")  # Ray's, behind what other workers print too
# A progress bar that had no newline yet may stand before the mark.
MARK = re.compile(r"(?:^|\])ci-tasks-verl: ([a-z-]+): (.*)$")
TRACE = re.compile(r"^\++ ")
SETTINGS = re.compile(r"^\{'\w+':")
PROGRESS = re.compile(r"Training Progress:\s*\d+%\|(?:[^|]*\|)?\s*(\d+)/(\d+)")
STEP = re.compile(r"(?:^|\] ?)step:(\d+) - (.*)$")
_VALUE = re.compile(r"^(?:np\.\w+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?$", re.IGNORECASE)
RESUMED = re.compile(
    r"(?:Load from checkpoint folder: *|Resuming from +)\S*global_step_(\d+)|[Ss]etting global step to (\d+)"
)
SCRATCH = re.compile(r"Training from scratch")
TRAINABLE = re.compile(r"(?i)(?:adapter|trainable) param\w*: *([\d,]+)")
# Bridge-managed construction, in the order in which verl goes through it.
CONSTRUCTION = {
    # Printed where a model is built past Megatron-Bridge; with it, verl has no such configuration yet.
    "vanilla": re.compile(r"^TF config: "),
    "provider": re.compile(r"(?i:\bprovider\b.*\b(?:finaliz|configur|built))|apply_overrides_and_finalize"),
    "HF import": re.compile(r"(?i)(?:load|import)\w* (?:HF|Hugging ?Face) (?:weights|model|check)|load_hf_weights"),
    "LoRA": re.compile(r"Enabling \w+ with rank=\d+|Adding lora to: |PEFT Adapter Information"),
    # Megatron-FSDP's adapter uses DDP's words too; the printed configuration says which it is.
    "DDP": re.compile(r"Setting up DistributedDataParallel(?!.*use_(?:megatron|custom)_fsdp=True)"),
    "Megatron-FSDP": re.compile(
        r"Setting up (?:\w*FullyShard|Megatron-?FSDP)|Setting up Distr.*use_(?:megatron|custom)_fsdp=True"
    ),
    "model": re.compile(r"contains [\d.]+[KMB]? parameters|> number of parameters on \(tensor|^module: \d+$"),
}
FRAME = re.compile(
    r'File "[^"]*(?:/megatron/(?:bridge|core)/|/verl/workers/engine/megatron/|/verl/utils/megatron|/megatron_peft\.py|'
    r'/verl/models/mcore/)[^"]*", line \d+, in (?!<module>|safe_import)'
)
BRIDGE = re.compile(r"(/[^\s\"'=:()]*)/megatron/bridge/[\w/.-]*\.py\b")
TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
CODE_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
# The line that ends a traceback: the exception. Ray puts its own words between the frames, and loggers theirs.
EXCEPTION = re.compile(r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)[A-Za-z_][\w.]*(?::|$)")
# What a process says, or what is said of it, when no traceback has to follow.
DEATH = re.compile(
    r"A worker died or was killed while executing|[Tt]he actor (?:is dead|died)|ActorDiedError|ActorUnavailableError|"
    r"WorkerCrashedError|Worker exit type: SYSTEM_ERROR|running low on memory|Killed process \d|oom-kill|OOMKilled|"
    r"^\s*(?:[\w.]+\.)?OutOfMemoryError:|CUDA out of memory\. Tried|Fatal Python error|Segmentation fault|"
    r"CUDA error: (?:an illegal|device-side|unspecified|misaligned)|^\s*(?:[\w.]+\.)?RayTaskError\(|"
    r"Watchdog caught collective operation timeout|EngineDeadError|EngineCore (?:failed|died)|exitcode: -\d"
)
# Acceptable once the requested steps are done, as the guide has it.
NOISE = re.compile(
    r"resource_tracker|leaked (?:semaphore|shared_memory|folder)|DataLoader worker \(pid|"
    r"A worker died or was killed|\(raylet\)|(?i:ray\b.*\bshut(?:ting)? ?down)|Shutdown hook|"
    r"destroy_process_group\(\) was not called"
)
# What makes a line worth a look, for RE2: of a large log these are few.
WORDS = (
    rb"ci-tasks-verl: |Training Progress:|step:\d+ - |\{'\w+':|Resuming from|etting global step|from scratch|"
    rb"(?i:checkpoint folder|param\w*:)|parameters|Enabling \w+ with|dding lora|Adapter Info|Setting up|module: \d|"
    rb"(?i:wrapp|provider|hf.weights|hf model|hf checkpoint|hugging ?face)|File \"|/megatron/bridge/|"
    rb"TF config|resource_tracker|leaked |DataLoader worker|worker died|raylet|(?i:shut ?down|shutting)|"
    rb"destroy_process_group|(?m:^\++ )|main_ppo|Traceback \(most|(?i:actor (?:is )?d(?:ead|ied))|ActorDied|"
    rb"ActorUnavail|CUDA error: |RayTaskError|"
    rb"WorkerCrashed|SYSTEM_ERROR|low on memory|Killed process|oom-kill|OOMKilled|OutOfMemory|out of memory|"
    rb"Fatal Python|Segmentation|Watchdog caught|EngineDead|EngineCore|exitcode: -"
)


def plain(raw: bytes) -> str:
    return visible(raw, LONGEST)


def split(text: str) -> tuple[str, str]:
    """(who, text) of a line between what Ray puts around it; who is "" for one that has no prefix."""
    match = _RAY.match(text)
    return (match[1], _REPEATED.sub("", text[match.end() :])) if match else ("", text)


def metrics(pairs: str) -> dict[str, float]:
    """`key:value - key:value …` of verl's console logger; what is no number is left out."""
    values: dict[str, float] = {}
    for pair in pairs.split(" - "):
        key, _, value = pair.rpartition(":")
        number = _VALUE.match(value.strip())
        if key and number and len(values) < _MOST_METRICS:
            try:
                values[key.strip()] = float(number[1])
            except ValueError:
                continue
    return values


def number(text: str) -> int:
    return int(text.replace(",", "") or 0)
