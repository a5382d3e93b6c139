"""From venvs into the store and back, with wheels that lie there as pip leaves them: what is shared, what is not, and
what is removed when."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import environments
from ci_tasks.agent.environments import EnvironmentStore, SharedEnvironment, create_venv, site_packages
from ci_tasks.agent.files import LockTimeout, file_lock
from ci_tasks.agent.records import InstallSteps, Plan, read_events
from ci_tasks.agent.run_directory import RunDir, write_record
from tests.parts.wheels import unpack_wheel, write_wheel

POLITE = "import politeness; print(politeness.please)"


@dataclass
class Done:
    """Install steps that have run; `code` is their exit code."""

    log: str
    venv: str
    code: int = 0

    def python(self, code: str) -> str:
        argv = [f"{self.venv}/bin/python", "-c", code]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def own_packages(self) -> set[str]:
        return {path.name.split("-")[0] for path in Path(site_packages(self.venv)).glob("*.dist-info")}


def usable(store: EnvironmentStore) -> list[SharedEnvironment]:
    return [each for each in store.all() if each.description]


class Machine:
    """A store, an index, and the runs that use them."""

    def __init__(self, path: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.path, self.index, self.count, self._capture = path, path / "index", 0, capture
        self.store = EnvironmentStore(str(path / "environments"))
        files = {"greeting/__init__.py": "", "greeting/data.txt": "data\n"}
        write_wheel(self.index, "greeting", "1.0", files, requires=["politeness"])
        write_wheel(self.index, "politeness", "1.0", {"politeness.py": "please = True\n"})
        write_wheel(self.index, "extra", "1.0", {"extra.py": "x = 1\n"})

    @property
    def usable(self) -> list[SharedEnvironment]:
        return usable(self.store)

    @property
    def stored(self) -> SharedEnvironment:
        return self.usable[0]

    def run(self, *names: str, fresh: bool = False, of: str = "", after: str = "", code: int = 0) -> Done:
        """Install steps that get `names` from the index, or the first from a URL (`of`); `after` is Python that they
        run. Storing ends with `code`."""
        self.count += 1
        run = RunDir(str(self.path / f"run {self.count}"))
        os.makedirs(f"{run.path}/tmp")
        install = InstallSteps(self.store.directory, (f"{names} {of}",), fresh=fresh)
        write_record(run.plan, Plan(install=install))
        done = Done("", f"{run.path}/venv")
        assert environments.main("venv", run.path, done.venv) == 0
        for name in names:
            if done.python(f"import importlib.util as u; print(u.find_spec({name!r}))") == "None":
                newest = sorted(self.index.glob(f"{name}-*.whl"))[-1]
                unpack_wheel(newest, site_packages(done.venv), url=of if name == names[0] else "")
        if after:
            done.python(after)
        assert environments.main("store-packages", run.path, done.venv) == code
        done.log = self._capture.readouterr().out
        return done

    def change(self, text: str = "please = False\n") -> None:
        module = Path(site_packages(self.stored.prefix), "politeness.py")
        module.chmod(0o644)
        module.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which one run has been; no pip in its venvs."""

    def create(directory: str, over: str | None) -> None:
        create_venv(directory, over) if over else venv.EnvBuilder(symlinks=True).create(directory)

    monkeypatch.setattr(environments, "create_venv", create)
    machine = Machine(tmp_path, capsys)
    log = machine.run("greeting", "politeness").log
    assert "creating the venv" in log and "ci-tasks: stored for other runs of these steps: 2 packages" in log
    return machine


def test_equal_steps_share_and_others_share_nothing(machine: Machine) -> None:
    done = machine.run("greeting", "politeness")
    assert (done.own_packages, done.python(POLITE)) == (set(), "True")
    assert "reusing packages of earlier runs with these steps: 2 packages, resolved " in done.log
    assert machine.run("greeting", "politeness", "extra").own_packages == set()
    assert len(machine.usable) == 2


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_changed_file_is_named_and_the_same_command_installs_again(machine: Machine, is_listed: bool) -> None:
    if is_listed:
        machine.change()
    else:
        os.unlink(f"{machine.stored.path}/files")
    done = machine.run("greeting", "politeness")
    assert "shared packages were changed, so they are installed again: lib/" in done.log
    assert done.python(POLITE) == "True"
    assert [each.changed() for each in machine.usable] == [[]]


@pytest.mark.parametrize("size", ["same", "other"])
@pytest.mark.parametrize("how", ["written", "replaced", "added", "removed"])
def test_each_change_of_a_stored_file_is_noticed_even_with_its_old_time(machine: Machine, how: str, size: str) -> None:
    packages = Path(site_packages(machine.stored.prefix))
    module = packages / "politeness.py"
    before, content = module.stat(), "please = None\n" if size == "same" else "#\n"
    packages.chmod(0o755)
    module.chmod(0o644)
    if how in ("replaced", "removed"):
        module.unlink()
    if how != "removed":
        (packages / "politeness.pth" if how == "added" else module).write_text(content)
    if how in ("written", "replaced"):
        os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
        module.chmod(before.st_mode)
    assert "politeness.p" in machine.stored.changed()[0]


def test_byte_code_that_a_row_left_is_removed_and_is_no_damage(machine: Machine) -> None:
    packages = Path(site_packages(machine.stored.prefix))
    packages.chmod(0o755)
    (packages / "__pycache__").mkdir(exist_ok=True)
    cached = packages / "__pycache__/politeness.cpython-311.pyc"
    cached.write_bytes(b"forged")
    assert machine.stored.changed() == []
    assert not cached.exists()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_fresh_packages_are_resolved_again_and_serve_from_then_on(machine: Machine, is_damaged: bool) -> None:
    write_wheel(machine.index, "politeness", "2.0", {"politeness.py": "please = 2\n"})
    assert machine.run("greeting", "politeness").python(POLITE) == "True"
    if is_damaged:
        machine.change()
    done = machine.run("greeting", "politeness", fresh=True)
    assert [done.python(POLITE), machine.run("greeting", "politeness").python(POLITE)] == ["2", "2"]


def test_a_venv_that_has_lost_packages_is_not_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environments, "put_over", full)
    assert "the venv cannot be used: " in machine.run("extra", code=1).log


PATCH = "import politeness; open(politeness.__file__, 'w').write('please = 7')"
REMOVE = "import os, politeness; os.unlink(politeness.__file__)"


@pytest.mark.parametrize("after", [PATCH, REMOVE])
def test_packages_that_the_steps_change_serve_this_run_alone(machine: Machine, after: str) -> None:
    done = machine.run("politeness", after=after)
    assert "packages are not shared with other runs: the steps change packages that pip installed: lib/" in done.log
    assert len(machine.usable) == 1


def test_a_package_from_a_file_stays_with_the_run(machine: Machine) -> None:
    done = machine.run("greeting", "politeness", of="file:///greeting.whl")
    assert done.own_packages == {"greeting"}
    assert machine.stored.description.startswith("1 packages, ")


STORED, OWN, BYTE_CODE = "politeness.py", "greeting/__init__.py", "__pycache__/greeting.cpython-311.pyc"
FILES = ["a.py", "sub.py", *(f"{number}.txt" for number in range(3))]


@pytest.mark.parametrize(
    ("changes", "noticed"),
    [
        (["sub/sub.py"], {"changed checkout": "sub/sub.py"}),
        (["a.py", "stored", "own"], {"changed packages": f"{OWN}, {STORED}", "changed checkout": "a.py"}),
        (["new"], {"changed packages": "new.pth"}),
        (["new.txt", "bytecode"], {}),  # nothing that the checkout or a package has
        (FILES, {"changed checkout": "0.txt, 1.txt, 2.txt, 2 more"}),
    ],
)
def test_a_row_is_told_what_an_earlier_row_changed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, changes: list[str], noticed: dict[str, str]
) -> None:
    done = machine.run("greeting", "politeness", of="file:///greeting.whl")  # which stays its own
    workspace, packages = Path(done.venv).parent / "workspace", Path(site_packages(done.venv))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace))
    for directory in (workspace, workspace / "sub"):
        (directory / ".git").mkdir(parents=True)
        for name in FILES:
            (directory / name).write_text("1\n")
    places = {"stored": Path(site_packages(machine.stored.prefix), STORED), "own": packages / OWN}
    places.update(new=packages / "new.pth", bytecode=packages / BYTE_CODE)

    def row(name: str) -> dict[str, str]:
        run = RunDir(str(machine.path / name))
        os.makedirs(run.path)
        monkeypatch.setenv("CI_TASKS_RUN_DIR", run.path)
        assert environments.main("row-venv", f"{run.path}/tmp/venv", done.venv) == 0
        events = read_events(Path(run.events).read_text()) if os.path.exists(run.events) else []
        return {event.event: re.sub("[^,]*: |lib/[^,]*/site-packages/", "", event.name or "") for event in events}

    assert [row("first"), row("second")] == [{}, {}]
    for change in changes:
        path = places.get(change) or workspace / change
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.chmod(0o644)
        path.write_text("2\n")
    assert [row("third"), row("fourth")] == [noticed, noticed]
    assert not places["bytecode"].exists()


def fill(directory: Path, *names: str) -> EnvironmentStore:
    """A store with environments of these names, used at once one after the other."""
    kept = EnvironmentStore(str(directory))
    for number, name in enumerate(names):
        environment = kept.new(name, str(directory.parent / f"venv-{name}"))
        os.mkdir(environment.prefix)
        environment.seal(1)
        used = time.time() - 3600 * (len(names) - number)
        os.utime(environment.path, (used, used))
    return kept


@pytest.mark.parametrize(
    ("unused", "how", "left"),
    [
        ("ab", {}, {"b", "c"}),  # above the limit, the one that was not used for the longest time
        ("b", {}, {"a", "b", "c"}),  # never what a venv is over
        ("abc", {"days": 0.0}, set()),
        ("ac", {"everything": True}, {"b"}),
    ],
)
def test_what_is_old_or_too_much_is_removed_but_never_what_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused: str, how: dict[str, float], left: set[str]
) -> None:
    monkeypatch.setattr(environments, "MOST", 2)
    kept = fill(tmp_path / "environments", "a", "b", "c")
    for name in unused:
        shutil.rmtree(tmp_path / f"venv-{name}")
    lines = kept.clean(**how)  # type: ignore[arg-type]
    assert {each.name[0] for each in usable(kept)} == left
    assert len(lines) == 3 - len(left) and not any(problems for _, problems in lines)


def test_an_environment_is_taken_or_given_up_under_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command could take what another one has just found unused."""
    kept, seen = fill(tmp_path / "environments", "a"), list[str]()

    def note(what: str) -> None:
        with pytest.raises(LockTimeout), file_lock(f"{kept.directory}/lock", exclusive=True, timeout=0):
            pass
        seen.append(what)

    monkeypatch.setattr(SharedEnvironment, "is_used", property(lambda _: note("is it used?")))
    monkeypatch.setattr(SharedEnvironment, "add_user", lambda *_: note("taken"))
    monkeypatch.setattr(SharedEnvironment, "give_up", lambda _: note("given up"))
    assert kept.take("a", str(tmp_path / "venv")) is not None
    kept.clean(everything=True)
    assert seen == ["taken", "is it used?", "given up"]


def test_a_store_that_does_not_exist_is_not_made_by_a_look(tmp_path: Path) -> None:
    kept = EnvironmentStore(str(tmp_path / "environments"))
    assert (kept.take("a", str(tmp_path / "venv")), kept.clean(everything=True)) == (None, [])
    assert not os.path.exists(kept.directory)


def test_an_environment_that_is_not_complete_is_not_used_and_goes_with_its_venv(tmp_path: Path) -> None:
    kept = fill(tmp_path / "environments", "a")
    half = kept.new("a", str(tmp_path / "venv-half"))
    taken = kept.take("a", str(tmp_path / "venv"))
    assert taken is not None and taken.name != half.name
    assert kept.clean() == [], "it is being made"
    shutil.rmtree(tmp_path / "venv-half")
    ((sentence, _),) = kept.clean()
    assert sentence == f"environment {half.name}: removed, not complete"


# -- the key: equal for what installs the same, different for what may install something else --------------------------

CHECKOUT_FILES = {
    "requirements.txt": "torch\n-r more/base.txt\n",
    "more/base.txt": "numpy\n",
    "more/requirements.txt": "ray\n",
    "setup.py": "open('requirements.txt')\n",
    "pyproject.toml": "[project]\n",
    "reqs/base.txt": "six\n",
    "Makefile": "deps:\n\tpip install ray\n",
    "scripts/install.sh": "pip install -r scripts/extra.txt\n",
    "scripts/extra.txt": "ray\n",
    "train.py": "print()\n",
}
PLAIN = "pip install torch"
ENVIRON = {"HOME": "/nowhere", "PATH": "/bin"}


@pytest.mark.parametrize("note", [b"\xff", b'2 packages", "event": "ended', b"2 packages\n"])
def test_environment_whose_note_a_job_has_written_is_not_used_and_hides_no_other(machine: Machine, note: bytes) -> None:
    """The note stands in the events of the runs that use it."""
    Path(machine.stored.path, "description").write_bytes(note)
    assert machine.usable == []
    assert "stored for other runs" in machine.run("greeting", "politeness").log
    machine.store.clean(everything=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return checkout(tmp_path / "a", CHECKOUT_FILES)


def checkout(path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def key_of(workspace: Path, text: str = PLAIN, environ: Mapping[str, str] = ENVIRON) -> str:
    return environments.environment_key(InstallSteps("/store", (text,)), str(workspace), environ)


def test_another_checkout_of_another_label_has_the_same_key(workspace: Path, tmp_path: Path) -> None:
    other = checkout(tmp_path / "b", {**CHECKOUT_FILES, "train.py": "print('changed')\n"})
    for text in (PLAIN, "pip install -r requirements.txt", "cd $GITHUB_WORKSPACE && pip install -e ."):
        assert key_of(workspace, text) == key_of(other, text)


DIFFERENT: Mapping[str, Mapping[str, Any]] = {
    "an index": {"environ": {**ENVIRON, "PIP_INDEX_URL": "https://other"}},
    "pip's settings, by name": {"environ": {**ENVIRON, "PIP_CONFIG_FILE": "{workspace}/pip.conf"}},
    "pip's settings, at home": {"environ": {**ENVIRON, "HOME": "{workspace}/home"}},
    "steps": {"text": PLAIN + " numpy"},
}


@pytest.mark.parametrize("what", DIFFERENT.values(), ids=DIFFERENT)
def test_what_may_install_something_else_has_another_key(workspace: Path, what: Mapping[str, Any]) -> None:
    checkout(workspace, {"pip.conf": "[global]\nindex-url = https://a\n", "home/.config/pip/pip.conf": "[global]\n"})
    environ = {name: value.format(workspace=workspace) for name, value in what.get("environ", ENVIRON).items()}
    assert key_of(workspace) != key_of(workspace, **{**what, "environ": environ})
    assert key_of(workspace, environ={**ENVIRON, "LANG": "C"}) == key_of(workspace), "what pip does not read"


def test_another_python_or_a_changed_file_that_describes_packages_has_another_key(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_of(workspace)]
    (workspace / "more/requirements.txt").write_text("numpy==2\n")
    keys.append(key_of(workspace))
    monkeypatch.setattr(sys, "version", "3.9.18 (main) [GCC]")
    assert len({*keys, key_of(workspace)}) == 3


DESCRIBED = ["Makefile", "more/requirements.txt", "pyproject.toml", "reqs/base.txt", "requirements.txt", "setup.py"]
NAMED = {
    "pip install torch": [],
    'pip install -r "${GITHUB_WORKSPACE}/more/base.txt"': ["more/base.txt"],
    "bash ./scripts/install.sh": ["scripts/install.sh"],
    "pip install ../../etc/passwd /etc/passwd no-such-file": [],
}


@pytest.mark.parametrize("text", NAMED)
def test_what_describes_packages_and_what_a_step_names_decides_what_it_installs(workspace: Path, text: str) -> None:
    found = environments.deciding_files(InstallSteps("/store", (text,)), str(workspace))
    assert sorted(found) == sorted(DESCRIBED + NAMED[text])
