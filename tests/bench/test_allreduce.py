"""The costs of all-reduces: by hand, step by step, and in their limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.bench.allreduce import (
    Devices,
    Link,
    exposed_sec,
    flat_ring_sec,
    hierarchical_sec,
    ring_sec,
)

sizes = st.floats(1, 1e10)
counts = st.integers(1, 64)
links = st.builds(Link, st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
clusters = st.builds(Devices, counts, counts, links, links)
costs = st.sampled_from([flat_ring_sec, hierarchical_sec])


def test_a_ring_by_hand():
    # 4 members, 400 bytes: 6 steps of 100 bytes, each 1 s + 100 / 50 s
    assert ring_sec(400, 4, Link(1.0, 50.0)) == pytest.approx(6 * 3.0)


def test_two_nodes_of_three_by_hand():
    devices = Devices(2, 3, inside=Link(1.0, 100.0), between=Link(4.0, 50.0))
    # flat: 10 steps of 100 of the 600 bytes at 50 bytes a second; of three hops one goes between
    assert flat_ring_sec(600, devices) == pytest.approx(10 * (100 / 50 + (1 + 1 + 4) / 3))
    # inside: 4 steps of 200 bytes; between: 2 steps, in which the node sends 300 bytes
    assert hierarchical_sec(600, devices) == pytest.approx(4 * (1 + 200 / 100) + 2 * (4 + 300 / 50))


@pytest.mark.parametrize("num_members", [1, 2, 3, 7])
def test_a_ring_takes_the_steps_that_complete_the_sums(num_members):
    """Passes real chunks around until every member has every sum."""
    have = [
        [{member} for _ in range(num_members)] for member in range(num_members)
    ]  # member → chunk → whose values are in it
    steps = 0
    everyone = set(range(num_members))
    while any(chunk != everyone for member in have for chunk in member):
        sent = [
            ((member - steps) % num_members, set(have[member][(member - steps) % num_members]))
            for member in range(num_members)
        ]
        for member, (chunk, values) in enumerate(sent):
            have[(member + 1) % num_members][chunk] |= values
        steps += 1
    link = Link(1.0, 1e30)
    assert ring_sec(1.0, num_members, link) == pytest.approx(steps)


@given(costs, sizes, clusters)
@settings(max_examples=150, deadline=None)
def test_more_of_anything_costs_no_less(cost, num_bytes, devices):
    sec = cost(num_bytes, devices)
    assert sec >= 0
    assert cost(2 * num_bytes, devices) >= sec
    for name in ("inside", "between"):
        link = getattr(devices, name)
        slower = devices._replace(**{name: link._replace(latency_sec=2 * link.latency_sec)})
        narrower = devices._replace(**{name: link._replace(bytes_per_sec=link.bytes_per_sec / 2)})
        assert cost(num_bytes, slower) >= sec
        assert cost(num_bytes, narrower) >= sec
    if devices.num_nodes > 1:
        assert cost(num_bytes, devices._replace(num_nodes=devices.num_nodes + 1)) >= sec * (1 - 1e-9)


@given(costs, sizes, links)
@settings(max_examples=50, deadline=None)
def test_one_device_has_no_one_to_talk_to(cost, num_bytes, link):
    assert cost(num_bytes, Devices(1, 1, link, link)) == 0


@given(sizes, counts, links, links)
@settings(max_examples=50, deadline=None)
def test_nodes_of_one_device_are_a_plain_ring(num_bytes, num_nodes, inside, between):
    devices = Devices(num_nodes, 1, inside, between)
    expected = pytest.approx(ring_sec(num_bytes, num_nodes, between))
    if num_nodes > 1:
        assert flat_ring_sec(num_bytes, devices) == expected
    assert hierarchical_sec(num_bytes, devices) == expected


def test_limits_of_many_devices():
    link = Link(0.0, 1e9)
    # without latency a ring approaches twice the bytes, however many take part
    assert ring_sec(1e9, 10_000, link) == pytest.approx(2.0, rel=1e-3)
    # without bytes the hierarchy waits for the nodes only, the ring for all devices
    slow = Link(1e-6, 1e30)
    devices = Devices(256, 6, slow, slow)
    assert flat_ring_sec(1, devices) == pytest.approx(2 * (256 * 6 - 1) * 1e-6)
    assert hierarchical_sec(1, devices) == pytest.approx(2 * (255 + 5) * 1e-6)


@given(st.floats(0, 10), st.integers(1, 12), st.floats(0, 10))
@settings(max_examples=200, deadline=None)
def test_overlap_is_that_of_a_queue(bucket_sec, num_buckets, backward_sec):
    end = 0.0
    for number in range(1, num_buckets + 1):
        end = max(end, backward_sec * number / num_buckets) + bucket_sec
    exposed = exposed_sec(bucket_sec, num_buckets, backward_sec)
    assert exposed == pytest.approx(end - backward_sec, abs=1e-9)
    assert bucket_sec - 1e-9 <= exposed <= num_buckets * bucket_sec + 1e-9


@pytest.mark.parametrize("num_nodes", [64, 256])
def test_a_hierarchy_beats_a_ring_where_latency_counts(num_nodes):
    devices = Devices(num_nodes, 6, Link(3.4e-6, 32e9), Link(9.6e-6, 23e9))
    assert hierarchical_sec(1e6, devices) < 0.5 * flat_ring_sec(1e6, devices)
