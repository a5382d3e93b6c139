import pytest

from tiny_slime.agent import Transcript

NUM_GPUS = 0


def test_only_words_of_the_policy_are_trained_on():
    transcript = Transcript().add("user", "two plus two?").add("assistant", "four").add("tool", "ok")
    assert transcript.loss_mask() == [0, 0, 0, 1, 0]


def test_there_is_one_mask_value_per_word():
    transcript = Transcript().add("user", "a b").add("assistant", "c d e")
    assert len(transcript.loss_mask()) == len(transcript.words()) == 5


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
