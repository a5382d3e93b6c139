"""Interpreters with the probe, and what their processes wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci_tasks.agent.evidence import ProcessEvidence, RunEvidence, read_evidence, write_files
from ci_tasks.agent.probe import MODULE
from ci_tasks.agent.records import ProbeRules
from ci_tasks.agent.run_directory import RunDir

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def pythons() -> list[str]:
    """An interpreter of each version from 3.8 on that this machine has, the tests' own among them."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 20):
        for program in (*PYENV.glob(f"3.{minor}.*/bin/python3.{minor}"), shutil.which(f"python3.{minor}")):
            if program:
                found.setdefault((3, minor), str(program))
    return [program for _, program in sorted(found.items())]


@dataclass(frozen=True)
class Interpreter:
    """A venv whose processes write into `run`."""

    venv: Path
    run: RunDir

    @property
    def program(self) -> str:
        return str(self.venv / "bin" / "python")

    @property
    def packages(self) -> Path:
        return next(self.venv.glob("lib/python3*/site-packages"))

    def install(self, **modules: str) -> None:
        """Modules with their texts; `torch__cuda` is torch.cuda, and the packages are made."""
        for name, text in modules.items():
            path = self.packages.joinpath(*name.split("__", 1)).with_suffix(".py")
            if not path.parent.is_dir():
                path.parent.mkdir()
                (path.parent / "__init__.py").write_text("")
            path.write_text(text)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([self.program, *words], env=dict(env or {}), **options)  # type: ignore[call-overload, no-any-return]

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Exit code, output and errors of a process."""
        with self.start(*words, env=env) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def evidence(self) -> RunEvidence:
        return read_evidence(self.run.evidence)

    def processes(self) -> tuple[ProcessEvidence, ...]:
        return self.evidence().processes

    def only_process(self) -> ProcessEvidence:
        [process] = self.processes()
        return process


def make_interpreter(directory: Path, base: str = sys.executable, probe: bool = True) -> Interpreter:
    subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", str(directory / "venv")], check=True)
    interpreter = Interpreter(directory / "venv", RunDir(str(directory / "run")))
    if probe:
        add_probe(interpreter)
    return interpreter


def add_probe(interpreter: Interpreter, rules: ProbeRules = ProbeRules(("special",))) -> None:
    write_files(interpreter.run, rules)
    for name in filter(lambda name: name.startswith(MODULE), os.listdir(interpreter.run.probe)):
        shutil.copy(os.path.join(interpreter.run.probe, name), interpreter.packages)
