"""The published run on Summit, the clusters known by name, and what is assumed about both.

Published: Lin, Gan, Han, "Training Kinetics in 15 minutes: Large-scale Distributed Training on Videos", arXiv
1910.00932. No constant here was chosen to meet its results.
"""

from __future__ import annotations

from typing import Any

from benchmarks.scaling import MAX_DEVICES, VARIANTS, Cluster, Workload, predict

_NCCL = "latencies: NCCL's own for rings (tuning.cc)"
CLUSTERS: dict[str, Cluster] = {
    "server": Cluster(
        "one server of 8 GPUs on PCIe 3.0",
        devices_per_node=8,
        link_gb_per_sec=12.0,
        link_latency_us=5.7,
        storage_gb_per_sec=3.0,
        cores_per_node=40,
        source=f"PCIe: NCCL's own figure for 16 lanes; {_NCCL}; an NVMe disk and 40 cores: assumed",
    ),
    "ethernet": Cluster(
        "servers of 8 GPUs on PCIe 3.0, 100 GbE",
        devices_per_node=8,
        link_gb_per_sec=12.0,
        link_latency_us=5.7,
        network_gb_per_sec=12.5,
        network_latency_us=9.6,
        storage_gb_per_sec=3.0,
        cores_per_node=40,
        source=f"as one server; 100 Gbit/s a server, at the line's rate; {_NCCL}",
    ),
    "summit": Cluster(
        "Summit",
        devices_per_node=6,
        link_gb_per_sec=32.0,
        link_latency_us=3.4,
        network_gb_per_sec=23.0,
        network_latency_us=9.6,
        storage_gb_per_sec=5.5,
        cores_per_node=42,
        source="OLCF, Summit User Guide: 6 V100, 23 GB/s into the network, NVMe 5.5 GB/s; NVLink has "
        f"50 GB/s, a ring crosses the bus between the CPUs, 32 GB/s by NCCL; 42 of 44 cores; {_NCCL}",
    ),
}
ONE_NODE_SEC = 49 * 3600 + 55 * 60
ALL_NODES_SEC = 14 * 60 + 13
NODE_DEVICES = 6
_EPOCHS, _CLIPS, _BATCH_SIZE = 100, 240_000, 8
TSM_STEP_SEC = ONE_NODE_SEC / (_EPOCHS * _CLIPS / (NODE_DEVICES * _BATCH_SIZE))
FRAME_BYTES = 36_000  # a 340×256 JPEG of quality 90
FRAME_SEC = 0.4e-3  # of a core, to decode it and to resample a crop
ASSUMPTIONS = (
    "TSM: 49 h 55 min on the 6 V100 of a node, by 100 epochs of 240,000 clips, 8 clips a GPU: 359 ms a step. "
    "What the node loses inside itself is in that number and counted again.",
    "I3D: the step times are not published; their multiply-adds over TSM's, as if a V100 were as busy, are "
    "assumed, and clips of 16 frames.",
    "A frame is a JPEG of 36 kB and takes a core 0.4 ms, measured for 340×256 at quality 90.",
    "Every device is as fast as the others, and the network as fast as it says; no file system is shared.",
)
_NETWORKS = (  # name, parameters, multiply-adds of a clip at 224², its frames
    ("TSM", 24_327_632, 32_697_909_248, 8),
    ("I3D 3×1×1", 28_043_472, 56_814_501_888, 16),
    ("I3D 3×3×3", 33_433_808, 68_734_713_856, 16),
)
PUBLISHED_RATIOS = {"I3D 3×1×1": 1.6, "I3D 3×3×3": 2.9}


def published_workloads() -> list[Workload]:
    """TSM and the two I3Ds on a V100."""
    tsm_macs = _NETWORKS[0][2]
    return [
        Workload(
            name,
            num_parameters,
            step_sec=TSM_STEP_SEC * macs / tsm_macs,
            batch_size=_BATCH_SIZE,
            clip_bytes=num_frames * FRAME_BYTES,
            read_sec=num_frames * FRAME_SEC,
            source="published" if macs == tsm_macs else "assumed, from multiply-adds",
            num_frames=num_frames,
        )
        for name, num_parameters, macs, num_frames in _NETWORKS
    ]


def against_published() -> list[dict[str, Any]]:
    """What is predicted for the published run by each variant, beside what was published."""
    cluster = CLUSTERS["summit"]
    workloads = published_workloads()

    def rate(workload: Workload, count: int, variant: str) -> float:
        return float(predict(workload, cluster, count, variant)["clips_per_sec"])

    def row(what: str, unit: str, published: float, predicted: dict[str, float]) -> dict[str, Any]:
        deviation = {variant: value / published - 1 for variant, value in predicted.items()}
        return {
            "what": what,
            "unit": unit,
            "published": published,
            "predicted": predicted,
            "deviation": deviation,
        }

    tsm, *others = workloads
    speed_up = {v: rate(tsm, MAX_DEVICES, v) / rate(tsm, NODE_DEVICES, v) for v in VARIANTS}
    num_nodes = MAX_DEVICES / NODE_DEVICES
    rows = [
        row(
            "TSM, efficiency on 1,536 GPUs against 6",
            "share",
            ONE_NODE_SEC / ALL_NODES_SEC / num_nodes,
            {v: value / num_nodes for v, value in speed_up.items()},
        ),
        row(
            "TSM, training on 1,536 GPUs",
            "sec",
            ALL_NODES_SEC,
            {v: ONE_NODE_SEC / value for v, value in speed_up.items()},
        ),
    ]
    for other in others:
        ratio = {v: rate(tsm, MAX_DEVICES, v) / rate(other, MAX_DEVICES, v) for v in VARIANTS}
        rows.append(
            row(
                f"clips a second, TSM over {other.name}, 1,536 GPUs",
                "ratio",
                PUBLISHED_RATIOS[other.name],
                ratio,
            )
        )
    return rows
