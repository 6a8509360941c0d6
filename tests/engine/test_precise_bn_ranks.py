"""Population statistics over two processes equal those of one that has all batches."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = '''
import sys

import paddlevideo_fast
import numpy as np
import paddle
import paddle.distributed as dist

from paddlevideo_fast.engine import population_statistics
from paddlevideo_fast.loader import Batch


class Share:
    """Of four batches every second one; a rank's share need not be as large as another's."""

    def __init__(self, rank, world_size):
        rng = np.random.default_rng(0)
        sizes = [3, 5, 2, 0]
        batches = [rng.normal(10 * index, 1 + index, (size, 3)) for index, size in enumerate(sizes)]
        self.batches = [batch.astype("float32") for batch in batches[rank::world_size]]

    def __len__(self):
        return len(self.batches)

    def epoch(self, epoch, start_batch=0):
        for batch in self.batches:
            ids = np.arange(len(batch))
            yield Batch(batch, ids, ids, ids)


together = sys.argv[1] == "together"
if together:
    dist.init_parallel_env()
share = Share(dist.get_rank(), dist.get_world_size()) if together else Share(0, 1)
model = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
mean, variance = population_statistics(model, share, paddle.to_tensor)["0"]
np.save(f"{sys.argv[2]}/{sys.argv[1]}_{dist.get_rank()}.npy", np.stack([mean.numpy(), variance.numpy()]))
'''


def test_ranks_add_up(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(tmp_path / "log")]
    for arguments in ([*launch, script, "together"], [script, "alone"]):
        done = subprocess.run(
            [sys.executable, *map(str, arguments), str(tmp_path)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        logs = "".join(path.read_text()[-2000:] for path in (tmp_path / "log").glob("workerlog.*"))
        assert done.returncode == 0, done.stderr[-2000:] + logs
    alone = np.load(tmp_path / "alone_0.npy")
    for rank in (0, 1):
        np.testing.assert_allclose(np.load(tmp_path / f"together_{rank}.npy"), alone, rtol=1e-6)
