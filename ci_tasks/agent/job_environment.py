"""The environment that a job gets: what a clean CI machine would have, and nothing of the caller's shell by accident.

A forgotten CUDA_VISIBLE_DEVICES or PYTHONPATH is how a run stops being CI's. Passed on is only what belongs to the
machine (proxies, certificates, the package index) and what the plan names: the host's `env` and the secrets.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Tuple

from . import run_directory
from .mask import is_maskable
from .records import Plan

# What is on every machine, and changes nothing of what a test sees.
_USUAL = frozenset(
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYENV_ROOT", "XDG_RUNTIME_DIR"]
)
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
    env[run_directory.ENV_RUN_DIR] = run_directory.mark(run_dir)
    return env


def machine_environment(host_env: Mapping[str, str]) -> Dict[str, str]:
    """What every job of the host has, and a query of what its jobs will find."""
    return {**{name: value for name, value in os.environ.items() if passed(name)}, **host_env}


def shell_variables() -> Tuple[str, ...]:
    """The names of the caller's variables that reach a job and may change what it does."""
    reach = sorted(name for name in os.environ if passed(name))
    return tuple(name for name in reach if name not in _USUAL and not name.startswith("LC_"))


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
