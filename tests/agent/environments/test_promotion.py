"""From venvs into the store and back, with wheels that lie there as pip leaves them: what is shared, what is not."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_tasks.agent import setup_manifest
from ci_tasks.agent.environments import command, promote
from ci_tasks.agent.environments.layer import create_venv, site_packages
from ci_tasks.agent.environments.store import EnvironmentStore
from ci_tasks.agent.records import InstallStep, InstallSteps, Plan
from ci_tasks.agent.run_directory import RunDir, write_record
from tests.parts.wheels import unpack_wheel, write_wheel


@dataclass
class Done:
    log: str
    venv: str

    def python(self, code: str) -> str:
        argv = [f"{self.venv}/bin/python", "-c", code]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def own_packages(self) -> set[str]:
        return {path.name.split("-")[0] for path in Path(site_packages(self.venv)).glob("*.dist-info")}


class Machine:
    """A store, an index, and the runs that use them."""

    def __init__(self, path: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.path, self.index, self.count, self._capture = path, path / "index", 0, capture
        self.store = EnvironmentStore(str(path / "environments"))
        write_wheel(
            self.index,
            "greeting",
            "1.0",
            {"greeting/__init__.py": "", "greeting/data.txt": "data\n"},
            requires=["politeness"],
        )
        write_wheel(self.index, "politeness", "1.0", {"politeness.py": "please = True\n"})
        write_wheel(self.index, "extra", "1.0", {"extra.py": "x = 1\n"})

    def run(self, *names: str, fresh: bool = False, of: str = "", steps: str = "", after: str = "") -> Done:
        """Install steps that get `names` from the index, or the first from a URL (`of`). `steps` tell them from others,
        `after` is Python that they run."""
        self.count += 1
        run = RunDir(str(self.path / f"run {self.count}"))
        os.makedirs(f"{run.path}/tmp")
        install = InstallSteps(self.store.directory, (InstallStep(steps or repr(names)),), fresh=fresh)
        write_record(run.plan, Plan(install=install))
        done = Done("", f"{run.path}/venv")
        assert command.make_venv(run.path, done.venv) == 0
        for name in names:
            if not self._is_there(done, name):
                newest = sorted(self.index.glob(f"{name}-*.whl"))[-1]
                unpack_wheel(newest, site_packages(done.venv), url=of if name == names[0] else "")
        if after:
            done.python(after)
        assert command.store_packages(run.path, done.venv) == 0
        done.log = self._capture.readouterr().out
        return done

    def _is_there(self, done: Done, name: str) -> bool:
        code = f"import importlib.util as u; print(u.find_spec({name!r}) is not None)"
        return done.python(code) == "True"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pip in the venvs, and a clock whose ticks are not waited for."""

    def create(directory: str, over: str | None, scripts_of: str = "") -> None:
        if over is None:
            venv.EnvBuilder(symlinks=True).create(directory)
        else:
            create_venv(directory, over, scripts_of)

    monkeypatch.setattr(command, "create_venv", create)
    monkeypatch.setattr(promote, "CLOCK_SECONDS", 0)
    monkeypatch.setattr(setup_manifest, "CLOCK_SECONDS", 0)


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Machine:
    """A machine on which one run has been."""
    machine = Machine(tmp_path, capsys)
    assert "ci-tasks: stored for other runs of these steps: " in machine.run("greeting", "politeness").log
    return machine


def test_equal_steps_share_and_steps_that_differ_share_nothing_but_the_bytes_of_equal_files(machine: Machine) -> None:
    (stored,) = machine.store.all()
    assert machine.run("greeting", "politeness").own_packages == set()
    assert machine.run("greeting", "politeness", "extra", steps="others").own_packages == set()
    first, second = (Path(site_packages(each.prefix), "greeting/data.txt") for each in machine.store.all())
    assert first.samefile(second)
    assert stored.damage() == ""


def test_what_is_written_into_shared_packages_is_noticed_and_the_next_run_gets_clean_ones(machine: Machine) -> None:
    (stored,) = machine.store.all()
    module = Path(site_packages(stored.prefix), "politeness.py")
    module.chmod(0o644)
    module.write_text("please = False\n")
    done = machine.run("greeting", "politeness")
    expected = r"\(2 packages, 0\.0 GB, about \d+ s\), since they are not as they were stored: 1 file differs \(lib/"
    assert re.search(f"installed again {expected}", done.log), done.log
    assert "politeness.py)" in done.log
    assert done.python("import politeness; print(politeness.please)") == "True"
    assert [environment.damage() for environment in machine.store.all()] == [""]


def test_fresh_packages_are_resolved_anew_and_serve_from_then_on(machine: Machine) -> None:
    write_wheel(machine.index, "politeness", "2.0", {"politeness.py": "please = 2\n"})
    runs = [machine.run("greeting", "politeness", fresh=fresh) for fresh in (False, True, False)]
    code = "import politeness; print(politeness.please)"
    assert [done.python(code) for done in runs] == ["True", "2", "2"]


def test_fresh_packages_take_the_place_of_damaged_ones(machine: Machine) -> None:
    """Else each run of --fresh-env would put its venv over the damaged ones, which no row may use."""
    (stored,) = machine.store.all()
    module = Path(site_packages(stored.prefix), "politeness.py")
    module.chmod(0o644)
    module.write_text("please = False\n")
    done = machine.run("greeting", "politeness", fresh=True)
    assert done.python("import politeness; print(politeness.please)") == "True"
    assert [environment.damage() for environment in machine.store.all()] == [""]


def test_a_venv_that_has_lost_packages_is_not_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(promote, "put_over", full)
    with pytest.raises(AssertionError):
        machine.run("extra")


def test_packages_that_cannot_be_stored_stay_where_they_are(machine: Machine) -> None:
    lock = Path(machine.store.directory, "lock")
    done = machine.run("extra", after=f"import os; os.unlink({str(lock)!r}); os.mkdir({str(lock)!r})")
    assert "ci-tasks: packages are not shared with other runs: " in done.log
    assert done.python("import extra; print(extra.x)") == "1"
    lock.rmdir()
    assert len(machine.store.all()) == 1


def test_packages_that_the_steps_change_serve_this_run_alone(machine: Machine) -> None:
    patch = "import politeness; open(politeness.__file__, 'w').write('please = 7')"
    done = machine.run("politeness", steps="patched", after=patch)
    assert "packages are not shared with other runs: the steps change what pip has installed: lib/" in done.log
    assert done.python("import politeness; print(politeness.please)") == "7"
    assert len(machine.store.all()) == 1


def test_a_package_from_a_file_and_what_it_needs_stays_with_the_run(machine: Machine) -> None:
    done = machine.run("greeting", "politeness", "extra", of="file:///greeting.whl")
    assert done.own_packages == {"greeting", "politeness"}
    assert machine.store.all()[0].record.lock == ("extra==1.0",)
