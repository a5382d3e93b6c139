"""Texts with holes keep them through joining and splitting."""

from __future__ import annotations

from ci_tasks.suites.reading import interface, texts
from ci_tasks.suites.reading.reader import read_test
from ci_tasks.suites.reading.values import Partly, Unresolved

HOLE = Unresolved(1, "x", "why")
TEXT = Partly(("get --dir /tmp/", HOLE, "/y 'two words'; rm ", HOLE))


def test_the_words_of_a_command_keep_quotes_and_holes() -> None:
    assert [str(word) for word in texts.words(TEXT)] == ["get", "--dir", "/tmp/⟨x⟩/y", "two words;", "rm", "⟨x⟩"]


def test_a_line_of_shell_is_several_commands() -> None:
    assert [[str(word) for word in command] for command in texts.commands(TEXT)] == [
        ["get", "--dir", "/tmp/⟨x⟩/y", "two words"],
        ["rm", "⟨x⟩"],
    ]
    assert texts.commands("a && b || c | d # e") == [["a"], ["b"], ["c"], ["d", "#", "e"]]
    assert texts.commands("it's not closed") == [["it's", "not", "closed"]]


def test_two_texts_agree_on_how_they_begin() -> None:
    assert str(texts.agreed("same a", "same b", HOLE)) == "same ⟨x⟩"
    assert str(texts.agreed("same", "same b", HOLE)) == "same⟨x⟩"
    assert texts.agreed("a", "a", HOLE) == "a"


def test_joining_merges_what_is_known() -> None:
    assert texts.joined(["a", "", "b"]) == "ab"
    assert texts.joined(["a", Partly(("b", HOLE)), "c"]) == Partly(("ab", HOLE, "c"))


def test_slimes_helpers_have_their_parameters_by_name() -> None:
    source = "import command_utils as U\nU.convert_checkpoint('a', 'b', 8, dir_dst='/x')\nU.exec_command('a; b')\n"
    converted, command = read_test(source, env={}).calls
    assert interface.helper_of(converted) == "convert_checkpoint"
    assert interface.named(converted) == {
        "model_name": "a",
        "megatron_model_type": "b",
        "num_gpus_per_node": 8,
        "dir_dst": "/x",
    }
    assert interface.commands_of(command) == [["a"], ["b"]]
