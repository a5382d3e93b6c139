import pytest

from tiny_slime.sampling import choose, softmax, stop_at

NUM_GPUS = 0


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_softmax_sums_to_one_even_for_large_logits(temperature):
    assert sum(softmax([1000.0, 999.0, 0.0], temperature)) == pytest.approx(1.0)


def test_a_low_temperature_sharpens():
    assert softmax([1.0, 0.0], 0.1)[0] > softmax([1.0, 0.0], 1.0)[0]


@pytest.mark.parametrize(("point", "index"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.999, 2)])
def test_a_point_falls_into_the_part_it_reaches(point, index):
    assert choose([0.25, 0.5, 0.25], point) == index


def test_the_earliest_stop_wins():
    assert stop_at("one two three", ["three", "two"]) == "one "
    assert stop_at("one", ["two"]) == "one"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
