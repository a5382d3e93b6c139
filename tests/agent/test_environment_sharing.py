"""Install steps with real pip and tiny wheels: what one run got from an index serves the next, nothing else does.

Runs with pip cost seconds, so there are few; test_environments.py has the cases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent import archive
from ci_tasks.agent.__main__ import create
from ci_tasks.agent.environments import EnvironmentStore, create_venv, site_packages
from ci_tasks.agent.records import InstallSteps, Plan
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.planning.script import PlannedStep, Script, Venv, render
from tests.agent.test_environments import Done
from tests.parts.wheels import unpack_wheel, write_wheel

# A wheel may bring byte code, which pip replaces.
_BYTE_CODE = f"greeting/__pycache__/__init__.cpython-{sys.version_info[0]}{sys.version_info[1]}.pyc"
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}")
INSTALL = "pip install greeting\npip install -e . --no-deps --no-build-isolation\n"
# A build backend in the checkout, so that nothing but pip is needed.
BACKEND = """import os, zipfile
def build_editable(directory, config=None, metadata=None):
    name = "mine-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("mine.pth", os.getcwd())
        wheel.writestr("mine-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n")
        wheel.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mine-1.dist-info/RECORD", "")
    return name
"""


class Machine:
    """A store, an index, and the runs that use them."""

    def __init__(self, path: Path, index: Path) -> None:
        self.path, self.index, self.count = path, index, 0
        self.store = EnvironmentStore(str(path / "environments"))

    def checkout(self, name: str, code: str) -> Path:
        path = self.path / name
        path.mkdir()
        (path / "mine_code.py").write_text(code)
        (path / "backend.py").write_text(BACKEND)
        backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        (path / "pyproject.toml").write_text(backend)
        return path

    def run(self, checkout: Path, text: str = INSTALL, *, directory: Path | None = None) -> Done:
        """The install steps `text` of another command."""
        self.count += 1
        run = RunDir(str(directory or self.path / f"run {self.count}"))
        install = InstallSteps(str(self.store.directory), (text,))
        venv = Venv(sys.executable, f"{run.path}/venv", installing=1)
        steps = (PlannedStep("Install", text, BASH, ""),)
        script = render(Script("Install", "c", str(checkout), {}, steps, venv=venv, is_setup=True))
        create(run, Plan(script=script, install=install), archive.build())
        return self._execute(run)

    def run_row(self, checkout: Path, setup: Done, text: str) -> Done:
        self.count += 1
        run = RunDir(str(self.path / f"run {self.count}"))
        steps = (PlannedStep("Row", text, BASH, ""),)
        script = render(Script("Row", "c", str(checkout), {}, steps, setup=os.path.dirname(setup.venv)))
        create(run, Plan(script=script), archive.build())
        return self._execute(run)

    def _execute(self, run: RunDir) -> Done:
        home = self.path / "home"
        home.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(home)}
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.index.as_uri()}
        null, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        ran = subprocess.run(["bash", run.script], env=env, stdin=null, stdout=pipe, stderr=same)
        return Done(ran.stdout.decode(), f"{run.path}/venv", ran.returncode)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("index")
    files = {"greeting/__init__.py": "def main(): print('hello')\n", _BYTE_CODE: "of its maker\n"}
    scripts = {"greet": "greeting:main"}
    write_wheel(index, "greeting", "1.0", files, requires=["politeness"], scripts=scripts)
    write_wheel(index, "politeness", "1.0", {"politeness.py": "please = True\n"})
    write_wheel(index, "extra", "1.0", {"extra.py": "x = 1\n"})
    return index


@pytest.fixture(scope="module")
def after_first(tmp_path_factory: pytest.TempPathFactory, index: Path) -> tuple[Machine, Done]:
    """A machine on which one run has been."""
    machine = Machine(tmp_path_factory.mktemp("machine"), index)
    return machine, machine.run(machine.checkout("first", "answer = 1\n"))


@pytest.fixture(scope="module")
def machine(after_first: tuple[Machine, Done]) -> Machine:
    return after_first[0]


@pytest.fixture(scope="module")
def second(machine: Machine) -> Done:
    """The next run of the steps, on another checkout, whose build says whether it sees shared packages."""
    checkout = machine.checkout("second", "answer = 2\n")
    with (checkout / "backend.py").open("a") as backend:
        backend.write("import importlib.util\nprint('seen:', importlib.util.find_spec('greeting'))\n")
    return machine.run(checkout)


def test_the_first_run_stores_what_came_from_the_index_and_keeps_what_came_from_the_checkout(
    after_first: tuple[Machine, Done],
) -> None:
    machine, first = after_first
    assert first.code == 0, first.log
    assert "ci-tasks: stored for other runs of these steps: " in first.log
    (stored,) = machine.store.all()
    assert {"greeting-1.0.dist-info", "politeness-1.0.dist-info"} <= {*os.listdir(site_packages(stored.prefix))}
    assert first.own_packages == {"mine"}
    assert first.python("import greeting; print(greeting.__file__)").startswith(stored.prefix)
    assert not os.stat(f"{stored.prefix}/bin/greet").st_mode & 0o222


def test_next_run_installs_nothing_from_the_index_and_has_scripts_of_its_own(machine: Machine, second: Done) -> None:
    assert second.code == 0, second.log
    assert "Requirement already satisfied: greeting" in second.log
    assert "ci-tasks: reusing packages of earlier runs with these steps: " in second.log
    assert second.own_packages == {"mine"}
    assert len(machine.store.all()) == 1
    assert subprocess.run([f"{second.venv}/bin/greet"], capture_output=True, text=True, check=True).stdout == "hello\n"


def test_two_checkouts_never_see_each_others_code(after_first: tuple[Machine, Done], second: Done) -> None:
    code = "import greeting, mine_code; print(mine_code.answer)"
    assert [done.python(code) for done in (after_first[1], second)] == ["1", "2"]


def test_packages_come_before_the_code_of_an_editable_checkout_as_in_one_venv(second: Done) -> None:
    order = second.python("import sys; print([path.rsplit('/', 1)[-1] for path in sys.path[-3:]])")
    assert order == "['site-packages', 'site-packages', 'second']"


def test_an_isolated_build_does_not_see_shared_packages(machine: Machine, second: Done) -> None:
    """As it does not see those of the venv that it builds for."""
    row = machine.run_row(machine.path / "second", second, "pip install -v -e . --no-deps\n")
    assert "seen: None" in row.log, row.log


def test_what_a_row_installs_is_gone_with_it(machine: Machine, second: Done) -> None:
    checkout = machine.path / "second"
    text = "pip install extra\npython -c 'import extra, greeting, mine_code; print(mine_code.answer)'\ngreet\n"
    row = machine.run_row(checkout, second, text)
    assert row.log.splitlines()[-2:] == ["2", "hello"], row.log
    other = machine.run_row(checkout, second, "python -c 'import extra'\n")
    assert other.code != 0 and "No module named 'extra'" in other.log
    assert '"event": "packages", "name": "' in Path(row.venv).with_name("events.jsonl").read_text()


@pytest.mark.parametrize(("text", "stored"), [("true\n", 2), ("exit 3\n", 1), ("kill -9 $$\n", 1)])
def test_steps_that_fail_or_are_killed_store_nothing(
    machine: Machine, tmp_path: Path, text: str, stored: int, second: Done
) -> None:
    """The venv has got something that could be stored."""
    directory = f"{tmp_path}/run/venv"
    create_venv(directory, os.path.dirname(os.path.dirname(sys.executable)))
    unpack_wheel(machine.index / "extra-1.0-py3-none-any.whl", site_packages(directory))
    (tmp_path / "run/tmp").mkdir()
    (tmp_path / "run/tmp/environment-key").write_text("f" * 64)
    own = Machine(tmp_path, machine.index)
    shutil.copytree(machine.store.directory, own.store.directory, symlinks=True)
    done = own.run(own.checkout("c", ""), text, directory=tmp_path / "run")
    assert (done.code == 0) == (stored == 2), done.log
    assert len(own.store.all()) == stored
