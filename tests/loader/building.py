"""Data sets and loaders of tests, made of the few words that differ."""

import io
import tarfile

import cv2

from paddlevideo_fast.loader import build_dataset, build_loader

SEGMENTS = {"name": "Sampler", "num_seg": 3, "seg_len": 1}
NAMED = ("num_classes", "class_names", "frames_cache", "index_cache")  # that code gives, and not a section


def dataset_of(
    file_path,
    sample=SEGMENTS,
    transform=(),
    training=False,
    *,
    format="VideoDataset",
    decode=None,
    seed=3,
    **keys,
):
    """The data set of a list; `keys` are of its section, or among `NAMED`."""
    if not isinstance(decode, dict):
        decode = {"name": decode or ("FrameDecoder" if format == "FrameDataset" else "VideoDecoder")}
    named = {name: keys.pop(name) for name in NAMED if name in keys}
    section = {"format": format, "file_path": str(file_path), **keys}
    pipeline = {"decode": decode, "sample": sample, "transform": list(transform)}
    return build_dataset(section, pipeline, training=training, seed=seed, **named)


def loader_of(dataset, batch_size=2, num_workers=0, **options):
    """Its loader, which shuffles in training and keeps the last batch."""
    options = {"shuffle": dataset.training, "drop_last": False, "seed": dataset.seed, **options}
    return build_loader(dataset, batch_size=batch_size, num_workers=num_workers, **options)


def pack(folder, root, lines, shard_size, failed=()):
    """Packs the folders of images below `root` that lines of a frame list name; returns `folder`."""
    from paddlevideo_fast.sources.packed.packed_format import PackSettings, ShardWriter

    num_shards = -(-len(lines) // shard_size)
    for shard in range(num_shards):
        with ShardWriter(folder, PackSettings(shard, num_shards, 0, 90, bytes(16))) as writer:
            for line in lines[shard * shard_size : (shard + 1) * shard_size]:
                name, _, label = line.rsplit(None, 2)
                images = sorted((root / name).iterdir())
                height, width, _ = cv2.imread(str(images[0])).shape
                writer.add(name, int(label), 25.0, (width, height), [image.read_bytes() for image in images])
            for name in failed:
                writer.add_failure(name, "cannot be decoded")
    return folder


def write_tar(path, members, format=tarfile.USTAR_FORMAT):
    """Writes members, each a name or `TarInfo` and its content, as pairs or as a dict; returns `path`."""
    with tarfile.open(path, "w", format=format) as tar:
        for info, content in members.items() if isinstance(members, dict) else members:
            info = info if isinstance(info, tarfile.TarInfo) else tarfile.TarInfo(info)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
