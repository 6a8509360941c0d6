"""What trackers get of a finished training."""

from collections.abc import Sequence

from paddlevideo_fast.engine.guard import call_hook
from paddlevideo_fast.engine.output import CheckpointStore
from paddlevideo_fast.engine.trackers import Results, Tracker
from paddlevideo_fast.engine.trainer import Callback, Trainer


class Tracking(Callback):
    """Gives the trackers best result, report and weights after the last epoch.

    Args:
        trackers: of the run.
        store: of the run's checkpoints.
    """

    only_shows = True

    def __init__(self, trackers: Sequence[Tracker], store: CheckpointStore) -> None:
        self.trackers = list(trackers)
        self.store = store

    def fit_end(self, trainer: Trainer) -> None:
        report, newest = self.store.folder / "report.html", trainer.last_checkpoint
        checkpoint = self.store.files(newest) if newest else []
        weights = [path for path in checkpoint if path.suffix == ".pdparams"]
        results = Results(
            best=trainer.state.best,
            reports=[report] if report.exists() else [],
            weights=self.store.files(str(self.store.prefix("best"))) or weights,
            checkpoint=checkpoint,
        )
        call_hook(self.trackers, "finish", results)
