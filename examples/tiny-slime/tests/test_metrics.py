import math

import pytest

from tiny_slime.metrics import kl_divergence, l2_norm, mean, pass_rate, with_prefix

NUM_GPUS = 0


def test_the_mean_of_nothing_is_zero():
    assert mean([]) == 0.0
    assert mean([1.0, 2.0]) == 1.5


def test_the_norm_of_a_right_triangle():
    assert l2_norm([3.0, 4.0]) == 5.0


def test_kl_is_zero_only_for_the_same_distribution():
    assert kl_divergence([0.5, 0.5], [0.5, 0.5]) == 0.0
    assert kl_divergence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2))


def test_one_good_sample_passes_its_prompt():
    assert pass_rate([0, 1, 0, 0], group_size=2) == 0.5
    with pytest.raises(ValueError, match="3 rewards"):
        pass_rate([0, 1, 0], group_size=2)


def test_a_prefix_goes_before_each_name():
    assert with_prefix({"loss": 1.0}, "train") == {"train/loss": 1.0}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
