"""Throughput of data-parallel training over devices, from one device's step time and a stated network."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from paddlevideo_fast.bench.allreduce import Devices, Link, exposed_sec, flat_ring_sec, hierarchical_sec
from paddlevideo_fast.config.types import PositiveInt, Range, arguments_of, mismatches
from paddlevideo_fast.config.yaml_source import parse
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError

MAX_DEVICES = 1536
BUCKET_BYTES = 25 * 2**20  # comm_buffer_size of paddle.DataParallel
BACKWARD_SHARE = 2 / 3  # two products for each one of the forward pass: by the weights, by the input
VARIANTS: Dict[str, Tuple[Callable[[float, Devices], float], bool]] = {
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
        name: in the report.
        devices_per_node: devices of each node.
        link_gb_per_sec: from device to device of a node, in one direction.
        link_latency_us: the same.
        network_gb_per_sec: from a node to the network, in one direction; None: there is one node.
        network_latency_us: the same.
        storage_gb_per_sec: that a node reads its data with.
        cores_per_node: that read clips.
        source: of these numbers.
    """

    name: str
    devices_per_node: PositiveInt
    link_gb_per_sec: Positive
    link_latency_us: Positive
    storage_gb_per_sec: Positive
    cores_per_node: PositiveInt
    network_gb_per_sec: Optional[Positive] = None
    network_latency_us: Optional[Positive] = None
    source: str = "given"

    def devices(self, count: int) -> Devices:
        """`count` devices of it.

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

    def usual_counts(self) -> List[int]:
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
        name: in the report.
        num_parameters: trained, as float32 gradients.
        step_sec: forward, backward and update of one device, without communication.
        batch_size: clips of a step and device.
        clip_bytes: of a clip as it is stored.
        read_sec: a core's time to decode and resample a clip.
        source: of the step time.
    """

    name: str
    num_parameters: int
    step_sec: float
    batch_size: int
    clip_bytes: float
    read_sec: float
    source: str

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


def predict(workload: Workload, cluster: Cluster, count: int, variant: str) -> Dict[str, Any]:
    """A step on `count` devices by one of `VARIANTS`, and what it loses."""
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
    """Clips a second that a node's storage and cores can give."""
    stored = cluster.storage_gb_per_sec * 1e9 / workload.clip_bytes
    return min(stored, cluster.cores_per_node / workload.read_sec)


def make_report(workloads: Sequence[Workload], cluster: Cluster, counts: Sequence[int]) -> Dict[str, Any]:
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
