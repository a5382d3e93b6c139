import pytest

from tiny_slime.rewards import exact_match, final_answer, group_advantages, word_f1

NUM_GPUS = 0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 42.", "42"),
        ("the ANSWER is -1,024", "-1024"),
        ("The answer is 7. No, the answer is 8.", "8"),
        ("I do not know.", None),
    ],
)
def test_the_last_answer_counts(response, answer):
    assert final_answer(response) == answer


def test_a_wrong_answer_earns_nothing():
    assert exact_match("The answer is 42.", "42") == 1.0
    assert exact_match("The answer is 420.", "42") == 0.0


def test_word_f1_counts_a_repeated_word_once_per_mention():
    assert word_f1("to be or not", "to be") == pytest.approx(2 / 3)
    assert word_f1("to to", "to") == pytest.approx(2 / 3)
    assert word_f1("nothing shared", "to be") == 0.0


def test_advantages_are_centred_and_vanish_where_all_did_equally_well():
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1.0, -1.0, -1.0, 1.0])
    assert group_advantages([1.0, 1.0]) == [0.0, 0.0]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
