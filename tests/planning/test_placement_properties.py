"""What holds for any rows on any hosts, and until all of them have ended, whatever was expected of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.planning.placement import HostLoad, WaitingRow, place

ALL = frozenset({"h0", "h1", "h2"})
TASK = st.builds(
    WaitingRow,
    name=st.just("row"),
    gpus=st.sampled_from([0, 1, 2, 3, 4, 6, 8, 9]),
    seconds=st.floats(0.1, 5000.0),
    exclusive=st.sampled_from([frozenset[str](), frozenset({"ray"}), frozenset({"port"}), frozenset({"ray", "port"})]),
    hosts=st.sampled_from([ALL, ALL, frozenset({"h0"}), frozenset({"h1", "h2"}), frozenset({"gone"})]),
)
MACHINE = st.builds(
    HostLoad,
    name=st.just(""),
    gpus=st.sampled_from([0, 4, 8]),
    slots=st.integers(1, 6),
    held=st.sampled_from([0, 0, 0, 1, 8]),
    up=st.sampled_from([True, True, True, False]),
)


@settings(max_examples=120)
@given(st.lists(TASK, max_size=10), st.lists(MACHINE, min_size=1, max_size=3), st.integers(0, 2))
def test_no_host_is_overcommitted_and_every_row_that_can_run_ends(
    waiting: list[WaitingRow], loads: list[HostLoad], first: int
) -> None:
    """A row of one host, `first` in turn, ends whenever nothing more starts."""
    hosts = {f"h{number}": replace(load, name=f"h{number}") for number, load in enumerate(loads)}
    possible = sum(
        any(host.up and host.gpus >= row.gpus and host.name in row.hosts for host in hosts.values()) for row in waiting
    )
    ended = 0
    while True:
        starts, waits = place(waiting, list(hosts.values()))
        assert starts.keys().isdisjoint(waits) and {*starts, *waits} == set(range(len(waiting)))
        assert all(waits.values())
        for position, name in starts.items():
            hosts[name] = replace(hosts[name], rows=(*hosts[name].rows, waiting[position]))
            assert_kept(hosts[name])
        waiting = [row for position, row in enumerate(waiting) if position not in starts]
        busy = [host for host in hosts.values() if host.rows]
        if not busy:
            break
        host = busy[(first + ended) % len(busy)]
        hosts[host.name] = replace(host, rows=host.rows[1:])
        ended += 1
    assert ended == possible


def assert_kept(host: HostLoad) -> None:
    """What no host may be asked for. Where others hold GPUs, rows may wait for them on the host."""
    names = Counter(name for row in host.rows for name in set(row.exclusive))
    with_gpus = [row.gpus for row in host.rows if row.gpus]
    assert host.up and sum(with_gpus) <= host.gpus and len(host.rows) <= host.slots
    assert all(times == 1 for times in names.values())
    assert all(host.name in row.hosts for row in host.rows)
    assert sum(with_gpus) <= host.gpus - host.held or len(with_gpus) <= 1
