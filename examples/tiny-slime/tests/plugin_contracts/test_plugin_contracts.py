import pytest

from tiny_slime.plugins import load_function

NUM_GPUS = 0
REWARDS = ["tiny_slime.rewards.exact_match", "tiny_slime.rewards.word_f1"]


@pytest.mark.parametrize("path", REWARDS)
def test_a_reward_function_takes_a_response_and_a_label(path):
    assert 0.0 <= load_function(path, ("response", "label"))("The answer is 42.", "42") <= 1.0


def test_a_function_with_other_arguments_is_refused_by_name():
    with pytest.raises(TypeError, match=r"group_advantages must accept \(response, label\)"):
        load_function("tiny_slime.rewards.group_advantages", ("response", "label"))


def test_a_bare_name_is_not_a_path():
    with pytest.raises(ValueError, match="package.module.function"):
        load_function("exact_match")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
