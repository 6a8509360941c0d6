"""Throughput of data-parallel training over devices, from one device's step time and a stated network.

A message of n bytes takes latency + n / bandwidth on a link. Congestion, slow devices and the time to add are
not in the model: an all-reduce takes at least what it says.

Reference: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
19(1), 2005 (the cost model, ring); Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", JPDC 69(2), 2009 (ring).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from paddlevideo_fast.config.types import PositiveInt, Range, arguments_of, mismatches
from paddlevideo_fast.config.yaml_source import parse
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.io.block_cache import BLOCK_BYTES

MAX_DEVICES = 1536
BUCKET_BYTES = 25 * 2**20  # comm_buffer_size of paddle.DataParallel
_REQUESTS_AT_ONCE = 32  # of a process that fetches ahead
BACKWARD_SHARE = 2 / 3  # two products for each one of the forward pass: by the weights, by the input


class Link(NamedTuple):
    """A connection, the same in both directions.

    Attributes:
        latency_sec: time of an empty message, with the work of the communication library.
        bytes_per_sec: bandwidth in one direction.
    """

    latency_sec: float
    bytes_per_sec: float


class Devices(NamedTuple):
    """Devices in equal nodes.

    Attributes:
        num_nodes: number of nodes.
        per_node: devices of each node that take part.
        inside: the link between two devices of a node.
        between: the link of a node to the network, which its devices share.
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
    """Seconds of communication that remain after the end of the backward pass.

    Gradients become ready evenly over the backward pass, in buckets that are reduced one after the other.
    Either the last bucket is reduced alone after it, or they queue from the first one on:

        backward |--1--|--2--|--3--|                backward |-1-|-2-|-3-|
        reduce         |1|   |2|   |3|              reduce       |---1---|---2---|---3---|

    Args:
        bucket_sec: time of one bucket's all-reduce.
        num_buckets: buckets in a step.
        backward_sec: time of the backward pass.
    """
    queued = backward_sec / num_buckets + num_buckets * bucket_sec
    return max(backward_sec + bucket_sec, queued) - backward_sec


VARIANTS: dict[str, tuple[Callable[[float, Devices], float], bool]] = {
    "ring": (flat_ring_sec, False),
    "ring_overlapped": (flat_ring_sec, True),
    "hierarchical": (hierarchical_sec, False),
    "hierarchical_overlapped": (hierarchical_sec, True),
}

Positive = Annotated[float, Range(1e-9, 1e9)]


@dataclass(frozen=True)
class Cluster:
    """Equal nodes and what connects them. The fields are the keys of a cluster's YAML file.

    Attributes:
        name: shown in the report.
        devices_per_node: devices of a node.
        link_gb_per_sec: bandwidth between two devices of a node, in one direction.
        link_latency_us: latency between two devices of a node.
        network_gb_per_sec: bandwidth from a node to the network, in one direction; None: there is one node.
        network_latency_us: latency from node to node.
        storage_gb_per_sec: speed at which a node reads its data.
        cores_per_node: CPU cores of a node that read clips.
        store_gb_per_sec: speed at which a node reads from the object store that has its data, while the cache
            of the node is empty; None: they lie on its own storage.
        store_latency_ms: of a request to the store.
        source: where these numbers come from.
    """

    name: str
    devices_per_node: PositiveInt
    link_gb_per_sec: Positive
    link_latency_us: Positive
    storage_gb_per_sec: Positive
    cores_per_node: PositiveInt
    network_gb_per_sec: Positive | None = None
    network_latency_us: Positive | None = None
    store_gb_per_sec: Positive | None = None
    store_latency_ms: Positive = 20.0
    source: str = "given"

    def devices(self, count: int) -> Devices:
        """The nodes that hold `count` devices.

        Raises:
            PaddleVideoFastError: they do not fill whole nodes, or there are not so many.
        """
        num_nodes = math.ceil(count / self.devices_per_node)
        if num_nodes > 1 and count % self.devices_per_node:
            raise PaddleVideoFastError(
                f"{count} devices do not fill nodes of {self.devices_per_node}: give multiples of it"
            )
        inside = Link(self.link_latency_us * 1e-6, self.link_gb_per_sec * 1e9)
        if num_nodes == 1:
            return Devices(1, count, inside, inside)
        if self.network_gb_per_sec is None or self.network_latency_us is None:
            raise PaddleVideoFastError(
                f"{self.name} is one node of {self.devices_per_node} devices; {count} need a network"
            )
        between = Link(self.network_latency_us * 1e-6, self.network_gb_per_sec * 1e9)
        return Devices(num_nodes, self.devices_per_node, inside, between)

    def usual_counts(self) -> list[int]:
        """1, 2, half a node, a node, then twice as many each time, and the most."""
        per_node = self.devices_per_node
        counts = {1, min(2, per_node), max(per_node // 2, 1), per_node}
        if self.network_gb_per_sec is not None:
            counts |= {per_node * 2**power for power in range(12)}
            counts |= {MAX_DEVICES // per_node * per_node}
        return sorted(count for count in counts if count <= MAX_DEVICES)


@dataclass(frozen=True)
class Workload:
    """A network in training on one device.

    Attributes:
        name: shown in the report.
        num_parameters: trained parameters, whose gradients are float32.
        step_sec: forward, backward and update on one device, without communication.
        batch_size: clips of a device in a step.
        clip_bytes: size of a stored clip.
        read_sec: time in which a core decodes and resamples a clip.
        source: where the step time comes from.
        num_frames: of a clip; each is a request to a store.
    """

    name: str
    num_parameters: int
    step_sec: float
    batch_size: int
    clip_bytes: float
    read_sec: float
    source: str
    num_frames: int = 8

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.num_parameters


def cluster_from_file(path: Path) -> Cluster:
    """Reads a cluster from YAML.

    Raises:
        ConfigError: the file cannot be read, or a key is missing, unknown or wrong.
    """
    try:
        data = parse(path.read_text(encoding="utf-8"), str(path)).data
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    fields = arguments_of(Cluster)
    if not isinstance(data, Mapping):
        raise ConfigError([f"{path}: expected keys and values: {', '.join(fields)}"])
    problems = [f"{path}  {key}: unknown key" for key in data if key not in fields]
    problems += [
        f"{path}  {key}: missing" for key, field in fields.items() if field.required and key not in data
    ]
    for key, field in fields.items():
        if key in data:
            problems += [
                f"{path}  {key}={data[key]!r}: expected {found.expected}"
                for found in mismatches(data[key], field.hint)
            ]
    if problems:
        raise ConfigError(problems)
    return Cluster(**data)


def predict(workload: Workload, cluster: Cluster, count: int, variant: str) -> dict[str, Any]:
    """A step on `count` devices with one of `VARIANTS`: its time, its losses and its rate."""
    all_reduce_sec, overlapped = VARIANTS[variant]
    devices = cluster.devices(count)
    num_buckets = math.ceil(workload.gradient_bytes / BUCKET_BYTES)
    bucket_sec = all_reduce_sec(workload.gradient_bytes / num_buckets, devices)
    backward_sec = BACKWARD_SHARE * workload.step_sec
    exposed = exposed_sec(bucket_sec, num_buckets, backward_sec) if overlapped else num_buckets * bucket_sec
    busy_sec = workload.step_sec + exposed
    reading_sec = workload.batch_size * devices.per_node / node_reading_rate(workload, cluster)
    step_sec = max(busy_sec, reading_sec)
    return {
        "step_sec": step_sec,
        "all_reduce_sec": num_buckets * bucket_sec,
        "exposed_sec": exposed,
        "waiting_sec": step_sec - busy_sec,
        "clips_per_sec": count * workload.batch_size / step_sec,
        "efficiency": workload.step_sec / step_sec,
    }


def node_reading_rate(workload: Workload, cluster: Cluster) -> float:
    """Clips a second that the storage, the cores and the store of a node can deliver.

    A frame of a clip is a request to the store for the blocks that it lies in, which hold a block more than
    the frame on average. The process of each device makes so many requests at a time that latency and
    bandwidth limit the node one by one.
    """
    stored = cluster.storage_gb_per_sec * 1e9 / workload.clip_bytes
    rates = [stored, cluster.cores_per_node / workload.read_sec]
    if cluster.store_gb_per_sec is not None:
        fetched_bytes = workload.clip_bytes + workload.num_frames * BLOCK_BYTES
        waited_sec = workload.num_frames * cluster.store_latency_ms * 1e-3
        rates.append(cluster.store_gb_per_sec * 1e9 / fetched_bytes)
        rates.append(cluster.devices_per_node * _REQUESTS_AT_ONCE / waited_sec)
    return min(rates)


def make_report(workloads: Sequence[Workload], cluster: Cluster, counts: Sequence[int]) -> dict[str, Any]:
    """Predictions for all workloads, counts and variants, as JSON values.

    Raises:
        PaddleVideoFastError: a count does not fit the cluster.
    """
    return {
        "cluster": asdict(cluster),
        "bucket_bytes": BUCKET_BYTES,
        "backward_share": BACKWARD_SHARE,
        "networks": [
            {
                **asdict(workload),
                "gradient_bytes": workload.gradient_bytes,
                "reading_clips_per_sec_and_node": node_reading_rate(workload, cluster),
                "points": [
                    {
                        "devices": count,
                        "nodes": cluster.devices(count).num_nodes,
                        **{variant: predict(workload, cluster, count, variant) for variant in VARIANTS},
                    }
                    for count in counts
                ],
            }
            for workload in workloads
        ],
    }
