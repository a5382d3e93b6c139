"""The paths of a run directory, and reading and writing its files: the records; the log, which is the job's output with
secrets masked; and agent.log, with the tracebacks of the agent's own bugs.

The agent, the client and the report import these names, so they cannot disagree. `records` has the table of the files.
A log that cannot be written (a full disk) does not stop the job, and is not taken for a short log: the error goes into
the status.

And the environment that a job gets: what a clean CI machine would have, and nothing of the caller's shell by accident.
A forgotten CUDA_VISIBLE_DEVICES or PYTHONPATH is how a run stops being CI's. Passed on is only what belongs to the
machine (proxies, certificates, the package index) and what the plan names: the host's `env` and the secrets.
"""

from __future__ import annotations

import functools
import os
import stat
import time
from contextlib import suppress
from typing import Any, Dict, Final, Iterable, List, Mapping, Optional, Tuple, Type, TypeVar

from . import codec
from .files import NotAFile, pieces_of, read_file, replace_any
from .mask import Masker, is_maskable, mask
from .records import Plan, RemoteLocation, RunDescription, Status

T = TypeVar("T")

BLOCKED: Final = "ci-tasks: blocked: "  # begins the line of a log that says why a job could not run, with EXIT_BLOCKED
EXIT_BLOCKED: Final = 125

HANG_FILES = ("hang/facts.json", "hang/stacks.txt")
SLURM_OUTPUT = "slurm.out"  # what a batch script wrote that is not the agent's
_AGENTS = ("docker.json", "environment.json", "events.jsonl", "gpu.csv", "agent.log", "evidence.jsonl")
SMALL_FILES = (*_AGENTS, *HANG_FILES, SLURM_OUTPUT)  # what is fetched beside log, status and artifacts

LARGEST = 1 << 24  # bytes of a record that is read
_MOST_LOGGED = 1 << 18  # bytes of agent.log: a thread that fails once a second must not fill the disk

# Marks every process of a run, so that those which left the process group are found again through /proc.
ENV_RUN_DIR = "CI_TASKS_RUN_DIR"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# The same ids under a name that the job's script does not set: the container adapter passes them on.
ENV_GPU_IDS = "CI_TASKS_GPU_IDS"


class RunDir:
    """Paths of one run directory; the same on the host and on the client."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        at = functools.partial(os.path.join, self.path)
        self.plan, self.script, self.claims = at("plan.json"), at("run.sh"), at("claims.json")
        self.bin, self.adapter, self.agent = at("bin"), at("bin", "docker"), at("bin", "agent.pyz")
        self.probe, self.client = at("bin", "probe"), at("client.lock")
        self.workspace = at("workspace")
        self.status, self.log, self.agent_log = at("status.json"), at("log"), at("agent.log")
        self.events, self.gpu_samples = at("events.jsonl"), at("gpu.csv")
        self.docker, self.environment = at("docker.json"), at("environment.json")
        self.evidence, self.evidence_file = at("evidence"), at("evidence.jsonl")
        self.artifacts, self.junit = at("artifacts"), at("artifacts", "junit.xml")
        self.outputs = at("artifacts", "outputs")
        self.hang, self.hang_stacks = at("hang", "facts.json"), at("hang", "stacks.txt")
        self.hang_request = at("hang.request")
        self.slurm_job, self.attempt, self.secrets = at("slurm.json"), at("attempt.json"), at("secrets.json")
        self.remote, self.record = at("remote.json"), at("record.json")


def opened(run_dir: str) -> RunDir:
    """The directory by a descriptor that this process keeps: whatever a job puts in its place gets nothing that is
    written here. Raises OSError."""
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    by_descriptor = "/proc/self/fd/%d" % directory
    return RunDir(by_descriptor if os.path.isdir(by_descriptor) else run_dir)


def mark(run_dir: str) -> str:
    """The value of ENV_RUN_DIR: the directory's own path, which run.sh exports too, whatever link it was reached by."""
    return os.path.realpath(run_dir)


def read_plan(run: RunDir) -> Plan:
    """plan.json; an empty plan where there is none. Raises RecordError, OSError."""
    return read_record(Plan, run.plan) or Plan()


def read_description(run: RunDir) -> RunDescription:
    """What the plan says of the run; of one that another client began, what its host claims. Raises RecordError,
    OSError."""
    return read_record(RunDescription, run.plan) or read_record(RunDescription, run.claims) or RunDescription()


def read_status(run: RunDir) -> Status:
    """status.json; the status of a planned run if there is none. Raises RecordError, OSError."""
    return read_record(Status, run.status) or Status()


def read_status_if_readable(run: RunDir) -> Status:
    """The same, and the status of a planned run if the file cannot be read: of a run that is listed or removed."""
    return read_if_readable(Status, run.status) or Status()


def read_remote(run: RunDir) -> Optional[RemoteLocation]:
    """remote.json; None for a run of this machine. Raises RecordError, OSError."""
    return read_record(RemoteLocation, run.remote)


def read_record(kind: Type[T], path: str) -> Optional[T]:
    """The record in `path`; None if there is no such file yet. Raises RecordError, OSError."""
    try:
        text = read_file(path, LARGEST + 1)
    except FileNotFoundError:
        return None
    except NotAFile:
        raise codec.RecordError(path, "", "it is not a regular file") from None
    if len(text) > LARGEST:
        raise codec.RecordError(path, "", "it is larger than %d MiB" % (LARGEST >> 20))
    return codec.from_json(kind, text, where=path)


def read_if_readable(kind: Type[T], path: str) -> Optional[T]:
    """The same; None also if it cannot be read: a job can change it."""
    with suppress(OSError, ValueError):
        return read_record(kind, path)
    return None


def write_record(path: str, record: Any) -> None:
    """Replace `path` whole."""
    replace_any(path, record_bytes(record))


def record_bytes(record: Any) -> bytes:
    """The content of a record's file."""
    # A path that is no UTF-8 holds lone surrogates; their backslash form is just what JSON wants.
    return (codec.to_json(record, indent=1) + "\n").encode("utf-8", "backslashreplace")


# -- logs --------------------------------------------------------------------------------------------------------------


class RunLog:
    """Appends: a job that Slurm started again has a log, and so has one whose agent could not say how it ended. Count
    and digest include what the file already contains. Raises OSError."""

    def __init__(self, path: str, secrets: Iterable[str]) -> None:
        import hashlib  # most commands read no log

        self.bytes = 0
        self.error: Optional[str] = None
        self._new_digest = hashlib.sha256
        self._digest = self._new_digest()
        self._masker = Masker(secrets)
        self._path, self._last = path, b"\n"  # what was written last
        for self._last in pieces_of(path):
            self._count(self._last)
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_file = stat.S_ISREG(os.fstat(self._out).st_mode)

    def write(self, chunk: bytes) -> None:
        self._last = chunk or self._last
        self._write(self._masker.feed(chunk))

    def write_line(self, text: str) -> None:
        """A line of the agent's own."""
        line = (" ".join(text.split()) + "\n").encode("utf-8", "backslashreplace")
        self.write(line if self._last.endswith(b"\n") else b"\n" + line)

    def close(self) -> None:
        self._write(self._masker.flush())
        try:
            os.close(self._out)
        except OSError as error:  # a network file system may say only now that it could not write
            self._fail(error)

    @property
    def sha256(self) -> str:
        """The digest of the bytes that are in the file."""
        return self._digest.hexdigest()

    def is_intact(self) -> bool:
        """Whether the file has the bytes that were written, and no other. Unknown of a device or a full disk: true."""
        if not self._is_file or self.error is not None:
            return True
        digest = self._new_digest()
        for piece in pieces_of(self._path):
            digest.update(piece)
        return bool(digest.digest() == self._digest.digest())

    def _write(self, data: bytes) -> None:
        while data and self.error is None:
            try:
                written = os.write(self._out, data)
            except OSError as error:
                self._fail(error)
                return
            self._count(data[:written])
            data = data[written:]

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self.bytes += len(data)

    def _fail(self, error: OSError) -> None:
        self.error = "the log could not be written: %s" % error.strerror


def log_traceback(run_dir: str, where: str, error: BaseException) -> None:
    """Append the traceback of `error`. Never raises: the run must still end."""
    import traceback  # most agents never need it

    paths = RunDir(run_dir)
    with suppress(OSError, ValueError):
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = "%s %s\n%s" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), where, "".join(lines))
        out = os.open(paths.agent_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(out, "wb") as log:
            if os.fstat(out).st_size < _MOST_LOGGED:
                secrets = secret_values(read_plan(paths))
                log.write(mask(secrets, text.encode("utf-8", "backslashreplace")))


# -- the job's environment ---------------------------------------------------------------------------------------------


# What is on every machine, and changes nothing of what a test sees.
_USUAL = frozenset(
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYENV_ROOT", "XDG_RUNTIME_DIR"]
)
ACTIVATED = "VIRTUAL_ENV"
_PASSED = _USUAL.union(
    ["http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"],
    ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"],
    ["HF_ENDPOINT", "HF_HOME", "DOCKER_HOST", "DOCKER_CONFIG", "SLURM_CONF", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"],
    ["CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE"],
)
_PASSED_PREFIXES = ("LC_", "PIP_", "UV_", "APPTAINER_", "SINGULARITY_", "ENROOT_")


def job_environment(plan: Plan, run_dir: str) -> Dict[str, str]:
    """The environment for run.sh; its own `export`s come on top."""
    env = machine_environment({name: os.environ[name] for name in plan.secrets if name in os.environ})
    env.update(plan.host_env)
    env[ENV_RUN_DIR] = mark(run_dir)
    return env


def machine_environment(host_env: Mapping[str, str]) -> Dict[str, str]:
    """What every job of the host has, and a query of what its jobs will find."""
    return {**{name: value for name, value in os.environ.items() if passed(name)}, **host_env}


def shell_variables() -> Tuple[str, ...]:
    """The names of the caller's variables that reach a job and may change what it does; of an activated venv, which
    reaches it by PATH, its own."""
    names = sorted(name for name in os.environ if passed(name) and name not in _USUAL and not name.startswith("LC_"))
    venv = os.environ.get(ACTIVATED)
    is_first = venv and os.environ.get("PATH", "").startswith(venv + "/bin:")
    return (ACTIVATED,) * bool(is_first) + tuple(names)


def given_secrets(plan: Plan) -> Tuple[str, ...]:
    """The names of the secrets that the job gets."""
    return tuple(name for name in plan.secrets if os.environ.get(name))


def secret_values(plan: Plan) -> List[str]:
    """The values that must not be shown."""
    return [os.environ[name] for name in given_secrets(plan)]


def unmasked_secrets(plan: Plan) -> List[str]:
    """The names of the secrets whose values are shown all the same, since a log without them would say nothing."""
    return [name for name in given_secrets(plan) if not is_maskable(os.environ[name])]


def passed(name: str) -> bool:
    """Whether a variable of the caller reaches the job."""
    return name in _PASSED or name.startswith(_PASSED_PREFIXES)
