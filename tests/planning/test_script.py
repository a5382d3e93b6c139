"""run.sh, run for real: each test renders a script, gives it to bash, and looks at what the steps got and left."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive
from ci_tasks.planning.script import PlannedStep, Script, Venv, render
from ci_tasks.workflow import secrets
from tests import fixtures as support
from tests.parts.cases import cases
from tests.parts.git import git, repository

CASES = cases("planning/data/script.yaml")

BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}")
BASH_BY_DEFAULT = ("bash", "-e", "{0}")
PYTHON = (sys.executable, "{0}")


@dataclass
class Ran:
    """What a run.sh left."""

    code: int
    log: str
    directory: Path
    workspace: Path

    def step(self, number: int) -> bytes:
        """The script file that the step's interpreter got."""
        return (self.directory / f"tmp/step-{number}").read_bytes()


@dataclass
class ScriptRunner:
    """A run directory and a workspace."""

    directory: Path
    workspace: Path

    def run(self, *steps: PlannedStep, environ: Mapping[str, str] | None = None, **parts: object) -> Ran:
        script = Script("title", "c0ffee", str(self.workspace), {}, steps)
        return self.execute(replace(script, **parts), environ)  # type: ignore[arg-type]

    def execute(self, script: Script, environ: Mapping[str, str] | None = None) -> Ran:
        file = self.directory / "run.sh"
        if script.setup:
            (self.directory / "bin/agent.pyz").write_bytes(archive.build())
        file.write_text(render(script), encoding="utf-8", errors="surrogateescape")
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        done = subprocess.run(
            ["bash", str(file)], env={**clean, **(environ or {})}, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.decode(errors="surrogateescape"), self.directory, self.workspace)


def program(path: Path, text: str) -> Path:
    """An executable file with the given text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def adapter_in(run_dir: Path) -> Path:
    return program(run_dir / "bin/docker", '#!/bin/sh\necho "surprise: docker $*"; exit 99\n')


def runner_at(top: Path) -> ScriptRunner:
    """A run directory, whose adapter refuses all words, and a workspace below `top`."""
    (top / "workspace/below").mkdir(parents=True)
    adapter_in(top / "run")
    return ScriptRunner(top / "run", top / "workspace")


def step(text: str, name: str = "Step", words: tuple[str, ...] = BASH, **more: object) -> PlannedStep:
    planned = PlannedStep(name=name, text=text, words=words, directory="")
    return replace(planned, **more)  # type: ignore[arg-type]


@pytest.fixture
def runner(tmp_path: Path) -> ScriptRunner:
    """At a path that only quoted words survive."""
    return runner_at(tmp_path / "sp ace 'quo\"te $HOME &\\1")


# The text of a step


@pytest.mark.parametrize("text", CASES["a steps text arrives verbatim"])
def test_a_steps_text_arrives_verbatim(runner: ScriptRunner, text: str) -> None:
    ran = runner.run(step(text, words=("true", "{0}")))
    assert ran.code == 0, ran.log
    assert ran.step(1) == text.encode(errors="surrogateescape")


def test_the_log_shows_a_step_as_ci_does(runner: ScriptRunner) -> None:
    ran = runner.run(step("echo hello\n", name='Say it\'s "hello" $HOME'), step("echo last", name="Two\nlines"))
    assert ran.log.splitlines() == [
        '##[group]Run Say it\'s "hello" $HOME', "echo hello", "##[endgroup]", "hello", "##[group]Run Two lines",
        "echo last", "##[endgroup]", "last",
    ]  # fmt: skip
    events = [json.loads(line) for line in (runner.directory / "events.jsonl").read_text().splitlines()]
    assert [event["name"] for event in events] == ['Say it\'s "hello" $HOME', "Two lines"]


@pytest.mark.parametrize(
    ("argv", "text", "code"),
    [
        (BASH, "false | true\n", 1),
        (BASH_BY_DEFAULT, "false | true\n", 0),
        (BASH_BY_DEFAULT, "false\ntrue\n", 1),
        (("sh", "-e", "{0}"), "false\ntrue\n", 1),
        (PYTHON, "import sys\nsys.exit(7)\n", 7),
        (("perl", "-e", "exit 9", "{0}"), "anything", 9),
        (BASH, "kill -9 $$\n", 137),
        (BASH, "! read line\n", 0),  # a step has no standard input
    ],
)
def test_each_shell_has_githubs_rules(runner: ScriptRunner, argv: tuple[str, ...], text: str, code: int) -> None:
    assert runner.run(step(text, words=argv)).code == code


# Variables


_OURS = "tmp number text word words name line value end file secrets step status exit_code job_status venv setup junit"
_BASHS = "UID EUID PPID SECONDS RANDOM BASHOPTS SHELLOPTS IFS GROUPS"


@pytest.mark.parametrize("name", [*_OURS.split(), *_BASHS.split(), "MY-VAR", "a.b", "1ST", "RUN_DIR"])
def test_a_variable_may_have_any_name_and_arrives_verbatim(runner: ScriptRunner, name: str) -> None:
    """GitHub takes names that bash does not, and names that a script like ours could well use itself."""
    show = step(f"import os; print('job', repr(os.environ[{name!r}]))\n", words=PYTHON)
    value = "a 'b' \"c\" $HOME `x` \\ & é\nsecond line\n"
    own = step(f"import os; print('own', repr(os.environ[{name!r}]))\n", words=PYTHON, env={name: value})
    again = replace(show, text=show.text.replace("'job'", "'again'"))
    ran = runner.run(show, own, again, env={name: value})
    assert ran.code == 0, ran.log
    output = [line for line in ran.log.splitlines() if line.startswith(("job ", "own ", "again "))]
    assert output == [f"{which} {value!r}" for which in ("job", "own", "again")]


def test_a_path_in_the_steps_env_keeps_what_earlier_steps_put_in_front(runner: ScriptRunner) -> None:
    ran = runner.run(
        step('echo /first >> "$GITHUB_PATH"\n'),
        step("echo $PATH\n", env={"PATH": "/mine:" + os.environ["PATH"]}),
        step("echo then $PATH\n"),
    )
    adapter = runner.directory / "bin"
    assert f"\n{adapter}:/first:/mine:{os.environ['PATH']}\n" in ran.log
    assert f"\nthen {adapter}:/first:{os.environ['PATH']}\n" in ran.log


def test_the_evidence_of_pytest_joins_what_the_job_asks_of_it(runner: ScriptRunner) -> None:
    junit = str(runner.directory / "artifacts/junit.xml")
    text = "import os, shlex; print(shlex.split(os.environ['PYTEST_ADDOPTS']))\n"
    ran = runner.run(
        step(text, words=PYTHON),
        step(text, words=PYTHON, env={"PYTEST_ADDOPTS": "-q"}),
        env={"PYTEST_ADDOPTS": "-x -k 'a b'"},
    )
    assert ran.log.splitlines()[3] == repr(["-x", "-k", "a b", f"--junitxml={junit}"])
    assert ran.log.splitlines()[-1] == repr(["-q", f"--junitxml={junit}"])
    ran = runner.run(step('echo "$PYTEST_ADDOPTS"\n'), environ={"PYTEST_ADDOPTS": "-v"})
    assert ran.log.splitlines()[-1].startswith("-v --junitxml="), "the host's own options stay"


# Where a step runs


def test_the_working_directory(runner: ScriptRunner, tmp_path: Path) -> None:
    below = runner.workspace / "below"
    directories = {"": runner.workspace, str(below): below, "./below/..": runner.workspace}
    for directory, expected in {**directories, str(tmp_path): tmp_path}.items():
        ran = runner.run(step("pwd\n", directory=directory))
        assert ran.log.splitlines()[-1] == str(expected), directory
    ran = runner.run(step("echo never run\n", directory="nowhere"))
    assert ran.code == 1 and "nowhere" in ran.log and "never run" not in ran.log


def test_another_workspace_takes_the_place_of_the_planned_one(runner: ScriptRunner, tmp_path: Path) -> None:
    other = tmp_path / "other place"
    (other / "below").mkdir(parents=True)
    show = step('pwd; cd /tmp; ls -d "$GITHUB_WORKSPACE"\n', directory=str(runner.workspace / "below"))
    for given in (str(other), os.path.relpath(other, "/")):
        ran = runner.run(show, environ={"GITHUB_WORKSPACE": given})
        assert ran.log.splitlines()[-2:] == [str(other / "below"), str(other)]


def test_a_missing_workspace_is_blocked_and_runs_nothing(runner: ScriptRunner) -> None:
    ran = runner.run(step("echo never run\n"), environ={"GITHUB_WORKSPACE": "/no/where"})
    assert ran.code == 125
    assert ran.log == "ci-tasks: blocked: there is no checkout at /no/where; set GITHUB_WORKSPACE\n"


# What a step leaves for later ones


def test_variables_that_a_step_leaves(runner: ScriptRunner) -> None:
    commands = r"""
{ echo 'A=1 = 2'; echo 'B<<EOF'; echo; echo 'first  '; echo 'second=x'; echo; echo EOF; echo 'EMPTY='
  echo 'H=a<<b'; echo 'name=local'; echo 'MY-VAR=odd'; echo; printf 'LAST=unfinished'; } >> "$GITHUB_ENV"
"""
    show = "import os\nprint([os.environ[n] for n in 'A B EMPTY H name MY-VAR LAST'.split()])\n"
    ran = runner.run(step(commands), step(show, words=PYTHON))
    assert ran.code == 0, ran.log
    expected = ["1 = 2", "\nfirst  \nsecond=x\n", "", "a<<b", "local", "odd", "unfinished"]
    assert ran.log.splitlines()[-1] == repr(expected)


@pytest.mark.parametrize("written", ["no equals sign", "A<<EOF\nnever ended"])
def test_what_github_refuses_in_github_env_fails_the_step(runner: ScriptRunner, written: str) -> None:
    ran = runner.run(step(f"echo '{written}' >> \"$GITHUB_ENV\"\n"), step("echo after\n"))
    assert ran.code == 1
    assert "##[error]GITHUB_ENV: " in ran.log and "\nafter" not in ran.log


KINDS: dict[str, dict[str, Any]] = {
    "a job": {},
    "a job in a container": {"container": ["image:tag"]},
    "install steps": {"is_setup": True},
    "a job in a venv": {"venv": Venv("/no/such/python", "/no/such/venv")},
}


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_a_docker_that_is_not_the_adapter_is_never_called_from_a_file_system_mounted_noexec(
    runner: ScriptRunner, tmp_path: Path, parts: dict[str, Any]
) -> None:
    program(tmp_path / "elsewhere/docker", f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path))}/called\n")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    script = Script("title", "c0ffee", str(runner.workspace), {}, [step("docker run --pull=always image\n")])
    (runner.directory / "run.sh").write_text(render(replace(script, **parts)))
    copy = ["sh", "-c", 'cp -R "$1/." "$0" && exec bash "$0/run.sh"', str(mounted), str(runner.directory)]
    env = {"PATH": f"{tmp_path}/elsewhere:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = support.on_a_new_tmpfs(mounted, "noexec", *copy, env=env)
    assert not (tmp_path / "called").exists(), "CI's command ran on this machine as CI wrote it"
    assert done.returncode == 125, done.stderr
    assert done.stderr.startswith(
        f"ci-tasks: blocked: cannot execute the run's bin/docker: is {mounted} mounted noexec?"
    )
    assert "`workspace`" in done.stderr


def test_outputs_of_a_step_with_an_id_and_its_summary_are_kept(runner: ScriptRunner) -> None:
    write = 'echo a=1 >> "$GITHUB_OUTPUT"; echo "# hi" >> "$GITHUB_STEP_SUMMARY"\n'
    artifacts = runner.run(step(write, id="my-id"), step("true\n")).directory / "artifacts"
    assert [(file.name, file.read_text()) for file in (artifacts / "outputs").iterdir()] == [("my-id", "a=1\n")]
    assert (artifacts / "summary.md").read_text() == "# hi\n"


def test_a_login_shell_keeps_the_adapter_the_venv_and_added_paths_whatever_its_profile_says(
    runner: ScriptRunner, fake_python: str
) -> None:
    """As bash does where /etc/profile sets PATH; a shell that is none reads nothing of ours."""
    (runner.directory / ".bash_profile").write_text("PATH=/opt/of-the-profile:/usr/bin:/bin\n")
    ran = runner.run(
        step('echo /added >> "$GITHUB_PATH"\n'),
        step('bash -lc \'bash -lc "echo \\$PATH"\'; unset BASH_ENV; bash -lc "echo \\$PATH"\n'),
        venv=Venv(fake_python, f"{runner.directory}/tmp/venv"),
    )
    kept, without = ran.log.splitlines()[-2:]
    assert kept.startswith(f"{runner.directory}/bin:/added:{runner.directory}/tmp/venv/bin:")
    assert kept.endswith(":/opt/of-the-profile:/usr/bin:/bin") and kept.count("/added") == 1
    assert without == "/opt/of-the-profile:/usr/bin:/bin"


# Which steps run, and how it ends

ALWAYS: dict[str, Any] = {"on_failure": True}
FAILURE: dict[str, Any] = {"on_success": False, "on_failure": True}
FAILED = "##[error]Process completed with exit code {}."
ENDS: list[tuple[list[PlannedStep], int, list[str]]] = [
    (
        [step("exit 3"), step("echo no"), step("echo always; exit 4", **ALWAYS), step("echo failure", **FAILURE)],
        3,
        [FAILED.format(3), "always", FAILED.format(4), "failure"],
    ),
    ([step("true"), step("echo failure", **FAILURE)], 0, []),
    ([step("exit 3", continue_on_error=True), step("echo after")], 0, [FAILED.format(3), "after"]),
    (
        [step("sleep 60", name="Sleep", timeout_minutes=0.005), step("echo after")],
        124,
        ["##[error]The action 'Sleep' has timed out after 0.005 minutes."],
    ),
]


@pytest.mark.parametrize(("steps", "code", "output"), ENDS)
def test_a_steps_end_decides_what_runs_after_it_and_the_first_failure_is_the_runs(
    runner: ScriptRunner, steps: list[PlannedStep], code: int, output: list[str]
) -> None:
    ran = runner.run(*steps)
    said = ("no", "always", "failure", "after")
    shown = [line for line in ran.log.splitlines() if line.startswith("##[error]") or line in said]
    assert (ran.code, shown) == (code, output), ran.log


def test_it_runs_again_by_hand_unless_it_cannot_write(runner: ScriptRunner) -> None:
    steps = step('echo A=1 >> "$GITHUB_ENV"\n'), step("echo $A\n")
    for _ in range(2):
        ran = runner.run(*steps)
        assert (ran.code, ran.log.splitlines()[-1]) == (0, "1")
    assert (runner.directory / "tmp/later").read_text() == "# step 1\nexport A=1\n# step 2\n"
    shutil.rmtree(runner.directory / "tmp")
    (runner.directory / "tmp").write_text("a file in the way")
    ran = runner.run(*steps)
    assert ran.code == 125 and "ci-tasks: blocked: cannot write in" in ran.log


# Secrets


def test_secrets_come_from_the_environment_and_stand_nowhere_in_the_script(runner: ScriptRunner) -> None:
    value = "s3cr&t\\1 'x' \"$HOME\" `y` /é*"
    mark = secrets.mark("TOKEN")
    text = f"import os\nprint(repr(r'''{mark}'''), os.environ['JOB'], os.environ['STEP'])\n"
    ran = runner.run(
        step(text, words=PYTHON, env={"STEP": f"<{mark}>"}, name=f"Use {mark}"),
        env={"JOB": f"{mark}{mark}"},
        secrets=("TOKEN", "MY-TOKEN"),
        environ={"TOKEN": value},
    )
    assert ran.code == 0, ran.log
    assert ran.log.splitlines()[-1] == f"{value!r} {value}{value} <{value}>"
    assert value not in (runner.directory / "run.sh").read_text()
    shown, _, _ = ran.log.partition("##[endgroup]")
    assert "s3cr" not in shown and "<secret TOKEN>" in shown
    assert (runner.directory / "tmp/step-1").stat().st_mode & 0o777 == 0o600
    assert "# Secrets come from your environment: TOKEN MY-TOKEN" in (runner.directory / "run.sh").read_text()


def test_secrets_value_is_not_looked_through_for_another_and_one_that_is_not_set_is_empty(runner: ScriptRunner) -> None:
    a, b, unset = (secrets.mark(name) for name in ("A", "B", "UNSET"))
    names, environ = ("A", "B", "UNSET"), {"A": "${B}", "B": "b"}
    ran = runner.run(step(f"echo '{a}' '{b}' '<{unset}>' \"<$C>\"\n"), env={"C": unset}, secrets=names, environ=environ)
    assert ran.log.splitlines()[-1] == "${B} b <> <>"


# Environments


def test_a_python_that_cannot_make_a_venv_is_blocked(runner: ScriptRunner) -> None:
    for layered in (False, True):
        ran = runner.run(step("echo never run\n"), venv=Venv("/no/python $HOME", f"{runner.directory}/v", layered))
        assert ran.code == 125
        assert ran.log.splitlines()[-1] == "ci-tasks: blocked: /no/python $HOME cannot make a venv"


def test_a_simulated_hosts_venv_sees_the_pythons_packages_and_has_its_own_pip(runner: ScriptRunner) -> None:
    """The one venv that is made for real."""
    venv = Venv(os.path.realpath(sys.executable), layered=True)
    ran = runner.run(step("which python pip\npip --version\npython -c 'import pip'\n"), venv=venv)
    assert ran.code == 0, ran.log
    home = f"{runner.directory}/tmp/venv/bin"
    assert ran.log.splitlines()[5:7] == [f"{home}/python", f"{home}/pip"]


@pytest.fixture
def fake_python(tmp_path: Path) -> str:
    """Stands in for `python -m venv DIR`; refuses anything else."""
    text = '#!/bin/sh\n[ "$1 $2" = "-m venv" ] || { echo "surprise: $*" >&2; exit 99; }\n'
    text += f'mkdir -p "$3/bin" && ln -s {shlex.quote(sys.executable)} "$3/bin/python"\n'
    return str(program(tmp_path / "fake-python", text))


def install_steps(runner: ScriptRunner, python: str, *steps: PlannedStep) -> Path:
    """The directory of install steps for the runner's rows, not run yet."""
    setup = runner.directory.parent / "set up"
    adapter_in(setup)
    install = Script("Install", "c0ffee", str(runner.workspace), {}, steps, is_setup=True)
    text = render(replace(install, venv=Venv(python, f"{setup}/venv")))
    assert "c0ffee" not in text, "another commit has the same install steps"
    (setup / "run.sh").write_text(text)
    return setup


def test_first_row_runs_install_steps_and_all_take_over_what_they_left(runner: ScriptRunner, fake_python: str) -> None:
    install = (
        'echo installing; echo /from/setup >> "$GITHUB_PATH"\n'
        "printf 'LEFT<<E\\na b\\nc\\nE\\nodd-name=o d d\\n' >> \"$GITHUB_ENV\"\n"
    )
    setup = install_steps(runner, fake_python, step(install, id="inst"))
    show = step("import os; print([os.environ[n] for n in ('LEFT', 'odd-name', 'VIRTUAL_ENV', 'PATH')])\n")
    venv = f"{runner.directory}/tmp/venv"
    path = f"{runner.directory}/bin:/from/setup:{venv}/bin:{os.environ['PATH']}"
    for installs in (True, False):
        ran = runner.run(replace(show, words=PYTHON), setup=str(setup))
        assert ran.code == 0, ran.log
        assert ran.log.splitlines()[-1] == repr(["a b\nc", "o d d", venv, path])
        assert ("\ninstalling\n" in ran.log) is installs


def test_install_steps_that_fail_block_row_and_are_not_taken_for_done(runner: ScriptRunner, fake_python: str) -> None:
    setup = install_steps(runner, fake_python, step("exit 7\n"))
    ran = runner.run(step("echo row\n"), setup=str(setup))
    assert ran.code == 125
    assert ran.log.splitlines()[-1] == f"ci-tasks: blocked: the install steps failed; see {setup}/log"
    assert not (setup / "ready").exists()


def test_the_install_steps_know_the_commit_of_the_checkout(runner: ScriptRunner, fake_python: str) -> None:
    head = git(repository(runner.workspace), "rev-parse", "HEAD")
    ran = runner.run(step("echo $GITHUB_SHA\n"), is_setup=True, venv=Venv(fake_python, f"{runner.directory}/venv"))
    assert ran.log.splitlines()[-1] == head


# A job's container


@pytest.fixture
def docker(runner: ScriptRunner) -> Path:
    """A `docker` that notes its words and then runs the inner command; it refuses anything but `run`."""
    program(
        runner.directory / "bin/docker",
        "#!/usr/bin/env python3\n"
        "import json, os, sys\n"
        f"json.dump(sys.argv[1:], open({str(runner.directory / 'argv.json')!r}, 'w'))\n"
        "words = sys.argv[1:]\n"
        "assert words[0] == 'run', words\n"
        "at = words.index('--entrypoint')\n"
        "os.execvp(words[at + 1], [words[at + 1], *words[at + 3:]])\n",
    )
    return runner.directory / "argv.json"


def test_a_jobs_container_runs_the_same_script_inside(runner: ScriptRunner, docker: Path) -> None:
    token = secrets.mark("TOKEN")
    options = ["--gpus", "all", "-e", "A=b c", "-v", "/data dir:/data", "-e", f"T={token}"]
    text = 'echo inside $CI_TASKS_INSIDE "$PYTEST_ADDOPTS"; pwd; echo $PATH\n'
    ran = runner.run(
        step(text), container=[*options, "image:tag"], env={"JOB": "x"}, secrets=("TOKEN",),
        environ={"TOKEN": "s3cret value"},
    )  # fmt: skip
    assert ran.code == 0, ran.log
    argv = json.loads(docker.read_text())
    work, run = str(runner.workspace), str(runner.directory)
    assert argv[:10] == ["run", "--rm", "--gpus", "all", "-e", "A=b c", "-v", "/data dir:/data", "-e", "T=s3cret value"]
    assert argv[10:] == [
        *("-v", f"{work}:{work}", "-v", f"{run}:{run}", "-w", work, "-e", "CI_TASKS_INSIDE"),
        *("-e", "GITHUB_WORKSPACE", "-e", "TOKEN", "-e", "PYTEST_ADDOPTS"),
        *("--entrypoint", "bash", "image:tag", f"{run}/run.sh"),
    ]
    junit = f"{run}/artifacts/junit.xml".replace("'", "'\\''")
    assert f"inside 1 --junitxml='{junit}'\n{work}\n" in ran.log
    assert ran.log.count(f"{run}/bin:") == 1, "once from outside: a real container has a PATH of its own"
    assert runner.run(step("exit 6\n"), container=["image"]).code == 6


# The text itself
