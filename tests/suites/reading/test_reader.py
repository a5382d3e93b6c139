"""What a test would start is read from its source, as far as source and row say it, and nothing of it runs."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from ci_tasks.suites.reading.reader import read_test
from ci_tasks.suites.reading.values import Call, Partly, Reading, Unresolved

MAIN = """
import os, tempfile
from pathlib import Path
import slime.utils.external_utils.command_utils as U
NAME = "Qwen-1B"
def main():
{body}
if __name__ == "__main__":
    main()
"""


def read(body: str, args: str = "", helpers: dict[str, str] | None = None, **env: str) -> Reading:
    source = MAIN.replace("{body}", textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))
    return read_test(source, env=env, args=args.split(), helpers=(helpers or {}).get, path="tests/test_a.py")


def commands(reading: Reading) -> list[str]:
    return [str(call.args[0]) for call in reading.calls if call.name == "U.exec_command"]


# Body → what the one command is. ⟨…⟩ is a part that only a run would know.
EVALUATED = {
    "constants in an f-string": ('U.exec_command(f"get org/{NAME}")', "get org/Qwen-1B"),
    "implicit joins": ('U.exec_command("get "\n    f"{NAME} "\n    "x")', "get Qwen-1B x"),
    "concatenation": ('U.exec_command("get " + NAME + "-" + str(3))', "get Qwen-1B-3"),
    "+=": ('a = "get"\na += f" {NAME}"\nU.exec_command(a)', "get Qwen-1B"),
    ".format": ('U.exec_command("get {} {x}".format(NAME, x=2))', "get Qwen-1B 2"),
    "join and split": ('U.exec_command(" ".join("a,b".split(",")))', "a b"),
    "paths": ('U.exec_command(str(Path("/root") / NAME / "x"))', "/root/Qwen-1B/x"),
    "os.path.join": ('U.exec_command(os.path.join("/root", NAME))', "/root/Qwen-1B"),
    "a default of the environment": ('U.exec_command(os.environ.get("SIZE", "8"))', "8"),
    "getenv": ('U.exec_command(os.getenv("SIZE", "8"))', "8"),
    "bool(int(…))": ('U.exec_command("a" if bool(int(os.environ.get("N", "0"))) else "b")', "b"),
    "slime's boolean": ('U.exec_command("a" if U.get_bool_env_var("N", "1") else "b")', "a"),
    "else": ('if NAME == "x":\n    U.exec_command("a")\nelse:\n    U.exec_command("b")', "b"),
    "an early return": ('if NAME:\n    U.exec_command("a")\n    return\nU.exec_command("b")', "a"),
    "a nested function": ('def f(x, y="2"):\n    return f"{x}-{y}"\nU.exec_command(f("1"))', "1-2"),
    "a lambda": ('f = lambda x: x * 2\nU.exec_command(f("ab"))', "abab"),
    "*args": ('def f(*words):\n    return " ".join(words)\nU.exec_command(f("a", *["b"]))', "a b"),
    "**kwargs": ('def f(**k):\n    return k["x"]\nU.exec_command(f(**{"x": "1"}))', "1"),
    "a dictionary": ('U.exec_command({"a": "1"}.get("a"))', "1"),
    "a comprehension": ('U.exec_command(" ".join(f"{i}" for i in range(3) if i))', "1 2"),
    "unpacking": ('a, b = "x", "y"\nU.exec_command(b + a)', "yx"),
    "a while that never begins": ('while False:\n    U.exec_command("a")\nU.exec_command("b")', "b"),
    "a walrus": ('if (x := "a"):\n    U.exec_command(x)', "a"),
    "a list that grows": ('c = ["a"]\nc.append("b")\nc += ["c"]\nU.exec_command(" ".join(c))', "a b c"),
    "nonlocal": (
        'x = "a"\ndef f():\n    nonlocal x\n    x = "b"\nf()\nU.exec_command(x)',
        "b",
    ),
    "a hole": ('d = tempfile.mkdtemp()\nU.exec_command(f"rm {d}/x")', "rm ⟨tempfile.mkdtemp()⟩/x"),
    "a hole in a path": ('U.exec_command(str(Path(tempfile.mkdtemp()) / "x"))', "⟨tempfile.mkdtemp()⟩/x"),
    "what one way adds": (
        'a = "x "\nif os.path.exists("/y"):\n    a += "y "\na += "z"\nU.exec_command(a)',
        "x ⟨os.path.exists('/y')⟩z",
    ),
    "what one way appends": (
        'a = ["x"]\nif os.path.exists("/y"):\n    a.append("y")\na.append("z")\nU.exec_command(" ".join(a))',
        "x ⟨os.path.exists('/y')⟩ z",
    ),
    "one of two": ('a = "same " + ("1" if os.getpid() else "2")\nU.exec_command(a)', "same ⟨os.getpid()⟩"),
    "a module's __file__": ('U.exec_command(f"{__file__}")', "⟨__file__⟩"),
}  # fmt: skip


@pytest.mark.parametrize("case", EVALUATED)
def test_an_argument_is_evaluated_as_far_as_it_is_known(case: str) -> None:
    body, command = EVALUATED[case]
    assert commands(read(body)) == [command]


def test_the_rows_environment_decides() -> None:
    body = 'U.exec_command("fp8" if os.environ.get("FP8") == "1" else "bf16")'
    assert commands(read(body, FP8="1")) == ["fp8"]
    assert commands(read(body)) == ["bf16"]


def test_a_variable_that_the_test_sets_is_set_from_then_on() -> None:
    assert commands(read('os.environ["X"] = "1"\nU.exec_command(os.environ["X"])')) == ["1"]


def test_a_loop_over_a_literal_starts_each_of_its_commands() -> None:
    body = """
    for n, kind in ((1, "a"), (2, "b"), (3, "c"), (4, "d")):
        if n == 3:
            break
        U.exec_command(kind)
    """
    assert commands(read(body)) == ["a", "b"]


def test_a_loop_that_only_a_run_could_count_is_read_once() -> None:
    reading = read('n = "0"\nfor x in os.listdir("/"):\n    U.exec_command("a")\n    n = "1"\nU.exec_command(n)')
    first, second = (call for call in reading.calls if call.name == "U.exec_command")
    assert first.conditions == ("for … in os.listdir('/')",)
    assert isinstance(second.args[0], Partly) and second.args[0].holes[0].why == "it depends on a loop"


@pytest.mark.parametrize(
    ("args", "command"), [("", "cpu False"), ("--async-save", "cpu True"), ("--save=gpu", "gpu False")]
)
def test_the_rows_arguments_go_through_the_tests_own_parser(args: str, command: str) -> None:
    body = """
    from argparse import ArgumentParser
    parser = ArgumentParser()
    parser.add_argument("--save", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--async-save", action="store_true")
    args = parser.parse_args()
    U.exec_command(f"{args.save} {args.async_save}")
    """
    assert commands(read(body, args)) == [command]


def test_arguments_that_do_not_fit_are_unresolved_and_say_why() -> None:
    body = """
    import argparse
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int)
    U.exec_command(p.parse_args().n)
    """
    (call,) = read(body, "--n many").calls
    assert isinstance(call.args[0], Unresolved)
    assert call.args[0].why == "the row's arguments do not fit: argument --n: invalid int value: 'many'"


def only(reading: Reading, name: str) -> Call:
    (call,) = [call for call in reading.calls if call.name == name]
    return call


def test_what_is_not_known_names_its_line_its_text_and_its_cause() -> None:
    call = only(read("f = tempfile.NamedTemporaryFile()\nU.hf_download_dataset(f.name)"), "U.hf_download_dataset")
    (hole,) = call.unresolved
    assert hole == Unresolved(8, "f.name", "what tempfile.NamedTemporaryFile gives (line 7)")
    assert (call.line, call.function, call.target) == (
        *(8, "main"),
        "slime.utils.external_utils.command_utils.hf_download_dataset",
    )


def test_both_ways_of_an_unknown_condition_are_read_under_it() -> None:
    body = """
    if os.path.exists("/x"):
        U.exec_command("a")
        return
    U.exec_command("b")
    """
    conditions = {str(call.args[0]): call.conditions for call in read(body).calls if call.name == "U.exec_command"}
    assert conditions == {"a": ("os.path.exists('/x')",), "b": ("not (os.path.exists('/x'))",)}


def test_what_one_way_changes_does_not_reach_the_other() -> None:
    body = """
    words = ["x"]
    if os.path.exists("/x"):
        words.append("y")
    else:
        U.exec_command(" ".join(words))
    """
    assert commands(read(body)) == ["x"]


def test_a_function_that_is_handed_on_is_read_before_the_call_that_gets_it() -> None:
    body = 'def before():\n    U.exec_command("server")\nU.execute_train("--a", 8, None, before_ray_job_submit=before)'
    assert [call.name for call in read(body).calls] == ["U.exec_command", "U.execute_train"]


def test_an_exception_may_come_or_not() -> None:
    body = """
    try:
        os.remove("/x")
    except FileNotFoundError as error:
        raise AssertionError("nothing was written") from error
    finally:
        U.exec_command("end")
    """
    reading = read(body)
    assert commands(reading) == ["end"]
    (check,) = reading.checks
    assert (check.message, check.conditions) == ("nothing was written", ("except FileNotFoundError",))


def test_an_assertion_knows_which_calls_come_before_it() -> None:
    reading = read('assert NAME\nU.exec_command("a")\nassert os.path.exists("/x"), f"no {NAME}"')
    assert [(check.after, check.text, check.message) for check in reading.checks] == [
        (0, "NAME", ""),
        (2, "os.path.exists('/x')", "no Qwen-1B"),
    ]


def test_pytest_is_followed_into_each_test_of_the_file() -> None:
    source = """
import pytest, subprocess
COUNT = 2
def test_one():
    subprocess.run(["a", str(COUNT)])
def test_two(tmp_path):
    subprocess.run(["b", tmp_path])
class TestMore:
    def test_three(self): ...
if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
"""
    reading = read_test(source, env={})
    assert (reading.entry, reading.tests) == ("pytest", ("test_one", "test_two", "TestMore.test_three"))
    assert [call.entry for call in reading.calls] == ["test_one", "test_two"]
    assert reading.calls[0].args == (["a", "2"],)
    assert [hole.text for hole in reading.calls[1].unresolved] == ["tmp_path"]


def test_a_file_that_nothing_starts_is_read_all_the_same_and_says_so() -> None:
    reading = read_test("import os\ndef prepare():\n    os.system('a')\ndef other():\n    os.system('b')\n", env={})
    assert (reading.entry, [call.args for call in reading.calls]) == ("none", [("a",)])


def test_a_helper_beside_the_test_is_read_and_the_framework_is_not() -> None:
    source = (
        "from shared import run\nfrom slime.big import work\nif __name__ == '__main__':\n    run('x')\n    work()\n"
    )
    files = {
        "tests/shared.py": "import os\ndef run(name):\n    os.system(f'go {name}')\n",
        "slime/big.py": "import os\ndef work():\n    os.system('no')\n",
    }
    reading = read_test(source, env={}, helpers=files.get, path="tests/test_a.py")
    assert [(call.name, call.args, call.file) for call in reading.calls] == [
        ("os.system", ("go x",), "tests/shared.py"),
        ("work", (), "tests/test_a.py"),
    ]


def test_a_launcher_of_the_checkouts_own_is_read() -> None:
    source = "from tiny.launch import execute_train\nif __name__ == '__main__':\n    execute_train(4)\n"
    files = {"tiny/launch.py": "import os\ndef execute_train(n):\n    os.system(f'train {n}')\n"}
    reading = read_test(source, env={}, helpers=files.get, path="tests/test_a.py")
    assert [call.args for call in reading.calls] == [("train 4",)]


def test_constants_are_those_that_are_known() -> None:
    constants = read_test("import os\nA = 8\nB = f'{A}x'\nC = os.getpid()\nD = [A, C]\n", env={}).constants
    assert (constants["A"], constants["B"], "C" in constants) == (8, "8x", False)
    assert isinstance(constants["D"][1], Unresolved)


# Sources that a reading survives: what they would do, or cost, is not done.
HOSTILE: dict[str, str] = {
    "a syntax error": "def broken(:\n",
    "a null byte": "a = '\0'\n",
    "endless recursion": "def f(n):\n    return f(n + 1)\nf(0)\n",
    "a huge text": "a = 'x' * 10**9\nb = 'y' * 10_000 * 10_000\n",
    "a huge number": "a = 9 ** 9 ** 9\nb = 2\nfor i in range(40):\n    b = b * b\n",
    "a huge width": "a = f'{1:999999999}'\nb = '%999999999d' % 1\nc = '{:>{w}}'.format(1, w=10**9)\n",
    "a huge loop": "for i in range(10**12):\n    a = i\n",
    "nested loops": "".join(f"{' ' * n}for x{n} in range(60):\n" for n in range(5)) + "     y = x0\n",
    "growing lists": "a = [1]\nfor i in range(60):\n    a += a\n",
    "growing by extend": "a = [1]\nfor i in range(60):\n    a.extend(a)\n",
    "growing by a comprehension": "a = [1]\nfor i in range(60):\n    a = [x for x in a for y in (1, 2)]\n",
    "growing texts": "a = 'x'\nfor i in range(60):\n    a = a + a\nfor i in range(60):\n    a = f'{a}{a}'\n",
    "growing by replace": "a = 'xx'\nfor i in range(60):\n    a = a.replace('x', a)\n",
    "a text in lists": "a = 'x'\nfor i in range(60):\n    a = str([a, a])\n",
    "lists in lists": "a = [1]\nfor i in range(60):\n    b = [a]\n    b.append(a)\n    a = b\n",
    "a list in itself": "a = []\na.append(a)\nb = {}\nb['x'] = b\n",
    "many fields": "a = 'x' * 9999\nb = ('{0}' * 9999).format(a)\nc = ('%s' * 999) % ((a,) * 999)\n",
    "endless while": "while True:\n    pass\n",
    "an exit": "import sys\nsys.exit(3)\n",
    "deep nesting": "a = " + "(" * 150 + "1" + ")" * 150 + "\n",
    "a long sum": "a = " + " + ".join(["'x'"] * 3000) + "\n",
    "what would raise": "a = [][0]\nb = {}['x']\nc = 1 / 0\nint('x')\nd = None.x\n'{}'.format()\na.b = 1\n",
    "odd targets": "a, *b = 1, 2, 3\n[c, d] = 5\nx[0] = 1\ndel nothing\n",
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_source_makes_a_reading_fail_or_run_away(name: str) -> None:
    reading = read_test(HOSTILE[name] + "import os\nos.system('reached')\n", env={})
    assert isinstance(reading, Reading)
    for value in reading.constants.values():
        assert len(str(value)) < 2_000_000


def test_nothing_of_a_source_is_executed(tmp_path: Any) -> None:
    marker = tmp_path / "marker"
    source = f"open({str(marker)!r}, 'w').write('x')\n__import__('os').mkdir({str(marker)!r})\n"
    read_test(source, env={})
    assert not marker.exists()
