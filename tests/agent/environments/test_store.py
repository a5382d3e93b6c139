"""The store: complete environments only, found by key, checked, and removed when old or too large but never in use."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci_tasks.agent import setup_manifest
from ci_tasks.agent.environments.store import EnvironmentRecord, EnvironmentStore, StoredEnvironment
from ci_tasks.agent.setup_manifest import PREFIX, file_hashes, link_equal_files, write_manifest

MANY = 10.0**12


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = EnvironmentStore(str(path / "environments"))

    def add(
        self,
        key: str,
        files: Mapping[str, str] | None = None,
        *,
        made_at: float = 1.0,
        size: int = 10,
        used_days_ago: float = 0.0,
        lock: str = "x==1",
    ) -> StoredEnvironment:
        """An environment whose venv is gone."""
        staging = Path(self.store.new_directory())
        for name, text in {"lib/a.py": "a\n", **(files or {})}.items():
            (staging / PREFIX / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / PREFIX / name).write_text(text)
        names = [str(path.relative_to(staging / PREFIX)) for path in (staging / PREFIX).rglob("*") if path.is_file()]
        time.sleep(0.02)
        hashes = file_hashes(str(staging / PREFIX), names)
        link_equal_files(str(staging / PREFIX), hashes, [other.path for other in self.store.all()])
        write_manifest(str(staging), PREFIX, {os.fsencode("/" + name): digest for name, digest in hashes.items()})
        added = self.store.add(str(staging), EnvironmentRecord(key, (lock,), made_at, "", size), str(self.path / "v"))
        os.rmdir(self.path / "v")
        moment = time.time() - used_days_ago * 86400
        os.utime(os.path.join(added.path, "users"), (moment, moment))
        return added

    @property
    def keys(self) -> set[str]:
        return {environment.record.key for environment in self.store.all()}

    def evict(self, max_bytes: float = MANY, max_days: float = MANY) -> list[str]:
        lines = self.store.evict(max_bytes, max_days)
        assert not any(left for _, left in lines)
        assert not [name for name in os.listdir(self.store.directory) if name.startswith(".removed-")]
        return [sentence for sentence, _ in lines]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_the_newest_environment_of_a_key_is_taken_and_stays_while_its_venv_exists(store: Store, tmp_path: Path) -> None:
    store.add("k", made_at=1, lock="x==1")
    newer = store.add("k", made_at=2, lock="x==2")
    store.add("other", made_at=3)
    venv = tmp_path / "venv"
    taken = store.store.take("k", str(venv))
    assert taken and taken.path == newer.path
    assert store.store.take("none", str(venv)) is None
    assert len(store.evict(max_bytes=0)) == 2
    assert [environment.path for environment in store.store.all()] == [newer.path]
    assert list(store.store.clean(1, everything=True)) == [
        (f"environment {os.path.basename(newer.path)}: stays, {venv} uses it", ())
    ]
    venv.rmdir()
    (line,) = store.evict(max_bytes=0)
    assert "least recently used; 1 packages, resolved 1970-01-01 00:00 UTC, lock " in line
    assert store.keys == set()


def test_the_least_recently_used_go_first_until_the_rest_is_small_enough(store: Store) -> None:
    for days, key in enumerate(["a", "b", "c"]):
        store.add(key, used_days_ago=days)
    assert len(store.evict(max_bytes=20)) == 1
    assert store.keys == {"a", "b"}


def test_what_nobody_has_used_for_days_goes(store: Store) -> None:
    store.add("old", used_days_ago=15)
    store.add("new", used_days_ago=13)
    store.evict(max_days=14)
    assert store.keys == {"new"}


def test_what_is_not_complete_does_not_count_and_goes_when_nobody_can_be_making_it(store: Store) -> None:
    abandoned, making = Path(store.store.new_directory()), Path(store.store.new_directory())
    (abandoned / PREFIX).mkdir()
    os.utime(abandoned, (1, 1))
    earlier_layout = Path(store.store.directory) / "local" / "cpu-unittest-1234"
    earlier_layout.mkdir(parents=True)
    assert store.keys == set()
    assert len(store.evict()) == 2
    assert (abandoned.exists(), making.exists(), earlier_layout.exists()) == (False, True, False)


def test_two_that_store_the_same_at_once_make_one(store: Store) -> None:
    first, second = store.add("k", made_at=1), store.add("k", made_at=2)
    assert first.path == second.path
    assert [environment.record.made_at for environment in store.store.all()] == [2], "resolved again, to the same"


def test_the_same_versions_with_other_files_are_another_environment(store: Store) -> None:
    """An index has replaced a file, or built it anew: a run gets what it has installed itself."""
    first = store.add("k", {"lib/b.py": "one\n"}, made_at=1)
    second = store.add("k", {"lib/b.py": "two\n"}, made_at=2)
    assert first.path != second.path
    assert [Path(each.prefix, "lib/b.py").read_text() for each in store.store.all()] == ["two\n", "one\n"]
    assert store.add("k", {"lib/b.py": "one\n", "bin/x": "#!/other/bin/python\n"}).path == first.path


def test_what_is_stored_again_keeps_the_scripts_of_the_venv_that_it_was_made_from(store: Store) -> None:
    """Else later venvs would link to scripts that start the Python of a venv that is gone."""
    staging = [store.store.new_directory() for _ in range(2)]
    for number, path in enumerate(staging):
        (Path(path) / PREFIX).mkdir()
        write_manifest(path, PREFIX, {})
        store.store.add(path, EnvironmentRecord("k", scripts_of=f"/venv {number}"), str(store.path / f"v{number}"))
    assert [environment.record.scripts_of for environment in store.store.all()] == ["/venv 0"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda prefix: (prefix / "lib/a.py").write_text("b\n"), "1 file differs (lib/a.py)"),
        (lambda prefix: (prefix / "lib/a.py").unlink(), "1 file differs (lib/a.py)"),
        (lambda prefix: (prefix / "lib/new.py").touch(), "1 file differs (lib/new.py)"),
        (lambda prefix: (prefix.parent / "prefix.manifest").unlink(), "the list of its files is gone"),
    ],
)
def test_a_damaged_environment_is_not_used_again_and_goes_when_nobody_uses_it(
    store: Store, tmp_path: Path, change: object, named: str
) -> None:
    environment = store.add("k")
    assert environment.damage() == ""
    change(Path(environment.prefix))  # type: ignore[operator]
    assert environment.damage() == named
    environment.add_user(str(tmp_path / "venv"))
    environment.give_up()
    assert store.keys == set()
    assert store.evict() == []
    again = store.add("k")
    assert again.path == environment.path and again.damage() == ""
    (tmp_path / "venv").rmdir()
    assert len(store.evict()) == 1
    assert store.keys == {"k"}


def test_equal_files_of_two_environments_lie_there_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_manifest, "CLOCK_SECONDS", 0)
    first = store.add("k", {"lib/b.py": "of k\n"})
    second = store.add("l", {"lib/b.py": "of l\n"})
    inodes = [os.stat(f"{environment.prefix}/lib/a.py").st_ino for environment in (first, second)]
    assert inodes[0] == inodes[1]
    assert [environment.damage() for environment in (first, second)] == ["", ""]
    store.evict(max_bytes=10)
    (left,) = store.store.all()
    assert left.damage() == ""


def test_no_file_is_taken_from_a_damaged_environment(store: Store) -> None:
    damaged = store.add("k")
    os.utime(f"{damaged.prefix}/lib/a.py", (1, 1))
    Path(damaged.prefix, "lib/a.py").write_text("forged\n")
    assert store.add("l").damage() == ""
