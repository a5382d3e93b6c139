"""The layout's rules: the core's folders import one way, no folder and no file imports in a circle, the core imports no
feature, a feature only what it declares, what is pure stays pure, and the agent stands alone."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ci_tasks.registry import Feature, features, load
from tests.parts.imports import ROOT, imported_names, module_name, syntax_tree
from tests.parts.nightly import SAMPLES

PACKAGE = ROOT / "ci_tasks"
AGENT = ("agent",)  # may be imported by anyone, and imports nothing of ours
# From the ground up: a folder of the core imports only folders before it. Those of one list do not import each other.
LEVELS = [
    ["errors", "__init__"], ["resources", "safe_output"], ["yaml_lines", "given_values"], ["records"],
    ["debug_log", "config"], ["workflow"], ["registry"], ["planning"], ["logs"], ["results"], ["report"], ["checkout"],
    ["hosts"], ["run"], ["cli"], ["trials"],
]  # fmt: skip
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
# Modules that touch no process, socket, file or clock, as dotted names below ci_tasks, and the rim of theirs that does.
PURE = [
    *("records", "yaml_lines", "given_values", "config", "workflow.*", "planning.*", "report.*"),
    *("logs.causes", "logs.job_lines", "logs.job_facts", "logs.job_parser", "logs.job_row", "logs.lines"),
    *("logs.reading", "logs.triage.*"),
    *("results.verdict", "results.gpu_samples", "results.rates"),
    *("trials.same_failure", "trials.bisection", "trials.report"),
    *("features.recorder.syntax", "features.coverage.*", "features.hang.*"),
    *("features.suites.*", "features.lint.*", "features.doctor.check_results"),
    *("features.verl.levels.*", "features.verl.judge.*", "features.verl.suite"),
]
RIM = [
    "features.*.command",
]
# `time` is a clock, and so are some of datetime's methods.
CLOCKS = {"now", "utcnow", "today"}
WORLD = {"subprocess", "socket", "time", "shutil", "tempfile", "pathlib", "os", "random"}
WORLD |= {"fabric", "requests", "huggingface_hub"}


# -- modules and what they import --------------------------------------------------------------------------------------


MODULES: Mapping[str, Path] = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
NAMES = sorted(MODULES)


@pytest.fixture(autouse=True, scope="module")
def _trees_are_not_searched_for_garbage() -> Iterator[None]:
    """The syntax trees of a thousand files stay: to search them again and again takes longer than to parse them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def below(module: str) -> str:
    """The module's name without that of the package."""
    return module.partition(".")[2] or "__init__"


def folder_of(module: str) -> str:
    return below(module).partition(".")[0]


def feature_of(module: str) -> str:
    """The name of the feature whose folder the module is in; "" for the core."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["features"] and len(parts) > 2 else ""


def tree_of(module: str) -> ast.Module:
    return syntax_tree(MODULES[module])


def imports(module: str) -> frozenset[str]:
    return imported_names(MODULES[module])


def ours(module: str) -> set[str]:
    """The modules of ours that it imports: a name of a module means that module."""
    imported = imports(module)
    return {target for name in imported if (target := name if name in MODULES else name.rpartition(".")[0]) in MODULES}


def circle(graph: Mapping[str, Set[str]]) -> list[str]:
    """Some circle of a graph, as the names along it; none where it has no circle."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if cycle := follow(other, [*way, name]):
                return cycle
        done.add(name)
        return []

    return next((cycle for name in sorted(graph) if (cycle := follow(name, []))), [])


# -- the core ----------------------------------------------------------------------------------------------------------


def test_a_module_of_the_core_imports_only_folders_below_its_own() -> None:
    core = [name for name in NAMES if folder_of(name) not in ("features", *AGENT)]
    free = {"__init__", "features", *AGENT}
    pairs = {(name, other) for name in core for other in ours(name) if folder_of(other) not in {folder_of(name), *free}}
    assert {(name, other) for name, other in pairs if LEVEL[folder_of(other)] >= LEVEL[folder_of(name)]} == set()


def test_the_core_imports_no_feature_and_names_none() -> None:
    core = [name for name in NAMES if folder_of(name) != "features"]
    assert {(name, other) for name in core for other in ours(name) if folder_of(other) == "features"} == set()
    naming = [name for name in core if "ci_tasks.features." in MODULES[name].read_text(encoding="utf-8")]
    assert set(naming) <= {"ci_tasks.registry"}, "the registry finds features"


def test_the_agent_imports_nothing_but_itself() -> None:
    agent = [name for name in NAMES if folder_of(name) in AGENT]
    assert {(name, other) for name in agent for other in ours(name) if folder_of(other) not in AGENT} == set()


# -- circles -----------------------------------------------------------------------------------------------------------


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle({name: ours(name) - {name} for name in NAMES}) == []


def test_no_folders_beside_each_other_import_in_a_circle() -> None:
    packages = [name for name in NAMES if MODULES[name].name == "__init__.py"]
    assert {package: found for package in packages if (found := circle(_folders_of(package)))} == {}


def _folders_of(package: str) -> dict[str, set[str]]:
    """Which folders of `package` import which other ones."""
    depth = len(package.split("."))
    graph: dict[str, set[str]] = {}
    for name in NAMES:
        if folder := _folder(name, package, depth):
            others = {_folder(other, package, depth) for other in ours(name)}
            graph.setdefault(folder, set()).update(others - {"", folder})
    return graph


def _folder(module: str, package: str, depth: int) -> str:
    """The folder of `package` that the module is in; "" where it is elsewhere, or a file of `package` itself."""
    if not module.startswith(f"{package}."):
        return ""
    folder = ".".join(module.split(".")[: depth + 1])
    return folder if MODULES[folder].name == "__init__.py" else ""


# -- features ----------------------------------------------------------------------------------------------------------


def references(feature: Feature) -> list[str]:
    plain = [getattr(feature, field.name) for field in fields(feature) if field.name != "name"]
    commands = [command.function for command in feature.commands]
    return [*(text for text in plain if isinstance(text, str) and ":" in text), *commands]


def test_every_folder_with_modules_is_a_feature() -> None:
    folders = {feature_of(name) for name in NAMES} - {""}
    assert {feature.name for feature in features()} == folders


@pytest.mark.parametrize("feature", features(), ids=lambda feature: feature.name)
def test_a_feature_declares_itself_and_refers_to_what_is_its_own(feature: Feature) -> None:
    package = f"ci_tasks.features.{feature.name}"
    body = tree_of(package).body
    assert ast.get_docstring(tree_of(package))
    rest = [node for node in body[1:] if not isinstance(node, ast.ImportFrom)]
    names = [ast.unparse(node.targets[0]) for node in rest if isinstance(node, ast.Assign)]
    assert len(names) == len(rest)
    assert [name for name in names if not name.startswith("_")] == ["FEATURE"]
    assert {other.name for other in features()} >= set(feature.needs)
    for reference in references(feature):
        assert reference.startswith(f"{package}."), "another folder may be deleted"
        assert load(reference) is not None


NEEDS = {feature.name: {feature.name, *feature.needs} for feature in features()}


def test_a_feature_imports_other_features_only_as_it_declares() -> None:
    mine = [name for name in NAMES if feature_of(name)]
    pairs = {(name, other) for name in mine for other in ours(name) if feature_of(other)}
    assert {(name, other) for name, other in pairs if feature_of(other) not in NEEDS[feature_of(name)]} == set()


def test_a_feature_uses_public_names_only() -> None:
    assert {name: private for name in NAMES if feature_of(name) and (private := _private_uses(name))} == {}


def _private_uses(module: str) -> set[str]:
    """The private names outside its feature that the module imports or calls."""
    inside = f"ci_tasks.features.{feature_of(module)}"
    foreign = {name for name in imports(module) if name.startswith("ci_tasks.") and not name.startswith(inside)}
    called = {name.rpartition(".")[2] for name in foreign if name in MODULES}
    private = {name for name in foreign if name.rpartition(".")[2].startswith("_")} - {"ci_tasks.__version__"}
    return private | {
        ast.unparse(node)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called
        if node.attr.startswith("_")
    }


def test_a_features_tests_lie_beside_each_other_and_go_with_it() -> None:
    wrong = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        parts = path.relative_to(ROOT / "tests").parts
        named = set(re.findall(r"\b(?:ci_tasks|tests)\.features\.(\w+)", path.read_text(encoding="utf-8")))
        if path != Path(__file__) and (foreign := named - NEEDS.get(parts[1] if parts[0] == "features" else "", set())):
            wrong[str(path.relative_to(ROOT))] = foreign
    assert wrong == {}


# -- what every module keeps -------------------------------------------------------------------------------------------


def is_pure(module: str) -> bool:
    name = below(module)
    return any(fnmatch(name, pattern) for pattern in PURE) and not any(fnmatch(name, pattern) for pattern in RIM)


def test_a_pure_module_has_no_process_socket_file_or_clock() -> None:
    assert {name: touched for name in NAMES if is_pure(name) and (touched := _touched(name))} == {}


def _touched(module: str) -> set[str]:
    """What of the world the module uses."""
    touched = {name.split(".")[0] for name in imports(module)} & WORLD
    calls = [node.func for node in ast.walk(tree_of(module)) if isinstance(node, ast.Call)]
    opened = {call.id for call in calls if isinstance(call, ast.Name) and call.id in ("open", "print", "input", "exec")}
    clocks = {call.attr for call in calls if isinstance(call, ast.Attribute)} & CLOCKS
    return touched | opened | clocks


def test_a_record_cannot_be_changed_but_one_that_counts_or_collects() -> None:
    classes = [(name, node) for name in NAMES for node in ast.walk(tree_of(name)) if isinstance(node, ast.ClassDef)]
    marks = [(name, ast.unparse(mark)) for name, node in classes for mark in node.decorator_list]
    assert [name.partition(".")[2] for name, mark in marks if "dataclass" in mark and "frozen=True" not in mark] == [
        *("features.prefetch.prefetch", "features.verl.judge.training_log", "hosts.connection", "hosts.runs"),
        *("logs.reading", "logs.triage.candidate_reader", "logs.triage.tracebacks", "logs.triage.tracebacks"),
        *("planning.planner", "run.attach", "run.execute", "run.prepare", "trials.trial"),
    ]


def test_every_module_opens_by_saying_what_it_knows() -> None:
    assert [name for name in NAMES if not ast.get_docstring(tree_of(name))] == []


# -- one module for one thing -----------------------------------------------------------------------------------------

# What code does → the modules below ci_tasks that may do so. The probe's payload, which stands alone, is excepted.
ONE_MODULE = {
    r"\bflock\(": [
        "agent.files",
        "agent.gpu_locks",  # CI's own locks of GPUs
    ],
    r"/stat\"|/children\"|random/boot_id": ["agent.processes"],
    r"os\.fork\(": ["agent.__main__", "agent.serve"],
    r"PR_SET_CHILD_SUBREAPER|prctl\(": ["agent.processes"],
    # `run_program` ends all that a program with a time limit has started; others stream, or share the agent's session.
    r"communicate\([^)]*timeout|subprocess\.run\([^)]*timeout": [
        *("agent.processes", "agent.git", "features.mcp.tools", "features.recorder.record", "logs.github"),
    ],
    # `replace_file` writes a file whole; others rename what a program or a stream has written.
    r"os\.replace\(": [
        *("agent.files", "agent.finish", "hosts.transport", "results.index", "run.report_runs"),
    ],
}


@pytest.mark.parametrize("pattern", ONE_MODULE)
def test_one_module_does_what_others_must_not_write_again(pattern: str) -> None:
    found = {name for name, path in MODULES.items() if re.search(pattern, path.read_text(encoding="utf-8"))}
    allowed = {f"ci_tasks.{name}" for name in ONE_MODULE[pattern]}
    assert {name for name in found if not name.endswith("agent.probe")} == allowed & found
    assert found, "the pattern matches nothing any more"


# -- budgets -----------------------------------------------------------------------------------------------------------

# Lines with code of each folder, without docstrings and comments. A number only goes down: lower it with the code.
BUDGETS = {
    "bench": 2_500,
    "ci_tasks/*.py": 1_001,
    "ci_tasks/agent": 5_931,
    "ci_tasks/checkout": 583,
    "ci_tasks/cli": 1_206,
    "ci_tasks/features": 5_727,
    "ci_tasks/hosts": 2_183,
    "ci_tasks/logs": 2_905,
    "ci_tasks/planning": 1_592,
    "ci_tasks/report": 1_106,
    "ci_tasks/results": 1_553,
    "ci_tasks/run": 2_617,
    "ci_tasks/trials": 1_628,
    "ci_tasks/workflow": 1_968,
    "docs": 136,
    "tests": 32_000,
}


def lines_with_code(path: Path) -> int:
    """The lines that are neither blank nor a comment, and all of a text of several lines; a docstring is none."""
    numbered = enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
    lines = {number for number, line in numbered if line.strip() and not line.lstrip().startswith("#")}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            lines |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines - docstrings)


def test_a_file_that_pushes_run_a_sample_of_exists() -> None:
    assert [name for name in SAMPLES if not (ROOT / "tests" / name).is_file()] == []


def test_no_folder_is_larger_than_its_budget() -> None:
    sizes: Counter[str] = Counter()
    for top in ("ci_tasks", "docs", "tests", "bench"):
        for path in (ROOT / top).rglob("*.py"):
            folder = path.relative_to(ROOT).parts[1] if top == "ci_tasks" else ""
            name = f"{top}/*.py" if folder.endswith(".py") else f"{top}/{folder}".rstrip("/")
            sizes[name] += lines_with_code(path)
    assert sizes.keys() == BUDGETS.keys()
    assert {name: size for name, size in sizes.items() if size > BUDGETS[name]} == {}
