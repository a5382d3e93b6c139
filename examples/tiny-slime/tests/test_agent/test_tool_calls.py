import pytest

from tiny_slime.agent import tool_calls

NUM_GPUS = 0


def test_calls_come_in_the_order_of_the_text():
    response = 'First <tool>search {"query": "tiny"}</tool> and then <tool>stop {}</tool>'
    assert tool_calls(response) == [("search", {"query": "tiny"}), ("stop", {})]


def test_a_call_with_broken_arguments_is_left_out():
    assert tool_calls("<tool>search {query}</tool>") == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-v"]))
