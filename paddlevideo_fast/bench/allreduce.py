"""What it costs to add up gradients over devices: pure functions of bytes, latency and bandwidth.

A message of n bytes over a link takes latency + n / bandwidth. Congestion, slow devices and the time to add
are not in the model, so what it says is the least that an all-reduce takes.

Reference: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
19(1), 2005 (the cost model, ring); Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", JPDC 69(2), 2009 (ring).
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """A connection, the same in both directions.

    Attributes:
        latency_sec: of a message of no bytes, with what the library does for it.
        bytes_per_sec: in one direction.
    """

    latency_sec: float
    bytes_per_sec: float


class Devices(NamedTuple):
    """Devices in equal nodes.

    Attributes:
        num_nodes: nodes.
        per_node: devices of each that take part.
        inside: from device to device of a node.
        between: from node to node; all devices of a node share it.
    """

    num_nodes: int
    per_node: int
    inside: Link
    between: Link

    @property
    def total(self) -> int:
        return self.num_nodes * self.per_node


def ring_sec(num_bytes: float, num_members: int, link: Link) -> float:
    """Seconds of an all-reduce around a ring: p - 1 steps that add, p - 1 that pass on, n / p bytes each."""
    steps = 2 * (num_members - 1)
    return steps * (link.latency_sec + num_bytes / num_members / link.bytes_per_sec)


def flat_ring_sec(num_bytes: float, devices: Devices) -> float:
    """One ring through all devices, which enters and leaves each node once.

    All links carry the same bytes, so the slowest sets the pace; the latency is that of the mean hop.
    """
    inside, between = devices.inside, devices.between
    if devices.num_nodes == 1:
        return ring_sec(num_bytes, devices.per_node, inside)
    if devices.per_node == 1:
        return ring_sec(num_bytes, devices.num_nodes, between)
    latency_sec = (between.latency_sec + (devices.per_node - 1) * inside.latency_sec) / devices.per_node
    slowest = min(inside.bytes_per_sec, between.bytes_per_sec)
    return ring_sec(num_bytes, devices.total, Link(latency_sec, slowest))


def hierarchical_sec(num_bytes: float, devices: Devices) -> float:
    """Reduce-scatter in the node, rings across the nodes, all-gather in the node.

    Each device takes its share of the bytes across; together they are all bytes over the node's connection.
    """
    inside = ring_sec(num_bytes, devices.per_node, devices.inside)
    return inside + ring_sec(num_bytes, devices.num_nodes, devices.between)


def exposed_sec(bucket_sec: float, num_buckets: int, backward_sec: float) -> float:
    """Seconds of communication that are left over when the backward pass has ended.

    Gradients become ready evenly over the backward pass, in buckets that are reduced one after the other.
    Either the last bucket is reduced alone after it, or they queue from the first one on:

        backward |--1--|--2--|--3--|                backward |-1-|-2-|-3-|
        reduce         |1|   |2|   |3|              reduce       |---1---|---2---|---3---|

    Args:
        bucket_sec: of one bucket's all-reduce.
        num_buckets: buckets of a step.
        backward_sec: of the backward pass.
    """
    queued = backward_sec / num_buckets + num_buckets * bucket_sec
    return max(backward_sec + bucket_sec, queued) - backward_sec
