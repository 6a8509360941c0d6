"""The code of docs/en/extending.md as of revision 3a6f499; it stays as it is, and runs."""

# ruff: noqa: E402

from paddlevideo_fast.config import load_config

cfg = load_config("configs/quickstart/tsm_motion.yaml", overrides=["DATASET.batch_size=4", "seed=7"])
assert cfg["DATASET"]["batch_size"] == 4
from paddlevideo_fast.decode import open_video

with open_video("data/motion/train/000000.mp4") as video:
    frames = video.read([0, 5, 5, 2])
    assert frames.shape == (4, video.height, video.width, 3)
assert frames.dtype == "uint8"
import paddle

from paddlevideo_fast.modeling import build_model

model = build_model(cfg["MODEL"])
model.eval()
logits = model(paddle.zeros([2, 8, 3, 56, 56]))
assert logits.shape == [2, 8]
from paddlevideo_fast.modeling import load_weights

paddle.save(model.state_dict(), "weights.pdparams")
report = load_weights(model, "weights.pdparams", strict=True)
assert not report.missing
assert not report.mismatched
from paddlevideo_fast.loader import build_dataset, build_loader

dataset = build_dataset(cfg["DATASET"]["train"], cfg["PIPELINE"]["train"], training=True, seed=7)
loader = build_loader(dataset, batch_size=4, num_workers=0, shuffle=True, drop_last=True, seed=7)
batch = next(loader.epoch(0))
assert batch.clips.shape == (4, 8, 56, 56, 3)
assert batch.clips.dtype == "uint8"
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import LearningRate
from paddlevideo_fast.modeling import Preprocess
from paddlevideo_fast.schedule import plain_phases
from paddlevideo_fast.solver import build_optimizer

optimizer, curve = build_optimizer(cfg["OPTIMIZER"], model)
trainer = Trainer(
    model=model,
    optimizer=optimizer,
    make_loader=lambda phase: loader,
    preprocess=Preprocess(*dataset.pipeline.normalization),
    phases=plain_phases(1),
    callbacks=[LearningRate(curve)],
    seed=7,
    max_iters=2,
)
state = trainer.fit()
assert state.step == 2
from paddlevideo_fast.engine import Evaluator
from paddlevideo_fast.metrics import CenterCropMetric

dataset = build_dataset(cfg["DATASET"]["valid"], cfg["PIPELINE"]["valid"], training=False, seed=7)
loader = build_loader(dataset, batch_size=8, num_workers=0, shuffle=False, drop_last=False, seed=7)
preprocess = Preprocess(*dataset.pipeline.normalization)
result = Evaluator(loader, preprocess, max_batches=1).run(model, CenterCropMetric())
assert 0 <= result["top1"] <= result["top5"] <= 1
