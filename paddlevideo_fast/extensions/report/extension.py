"""The key `report`: `report.html` of a training or test, tables of a test, and clips for VisualDL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paddlevideo_fast.config.sections import names_of
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.engine.extension import Extension
from paddlevideo_fast.engine.trainer import Callback
from paddlevideo_fast.extensions.report.explain import by_grad_cam
from paddlevideo_fast.extensions.report.results import Evaluated, ReportedRun, Reporting, write_test
from paddlevideo_fast.extensions.report.tables import Naming
from paddlevideo_fast.extensions.trackers.trackers import VISUALDL, Trackers
from paddlevideo_fast.io.files import working_folder
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader.class_names import classes_of_config
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup
    from paddlevideo_fast.assembly.testing import FinishedTest
    from paddlevideo_fast.config import Config, RunSpec


@EXTENSIONS.register("report")
@dataclass(frozen=True)
class Report(Extension):
    """What people look at after a run.

    Args:
        report: write `report.html` at the end of training and of a test.
    """

    report: bool = True

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, config: Config) -> Report:
        return cls(config.get("report", True))

    def callbacks(self, setup: TrainingSetup) -> Iterable[Callback]:
        run, trained = self._run(setup.spec), setup.split.dataset
        if setup.store and setup.distribution.is_main and (run.with_page or run.with_board):
            evaluated = setup.valid.dataset if setup.valid else trained
            naming = make_naming(setup.spec, setup.model.num_classes, evaluated)
            yield Reporting(run, trained, evaluated, naming, setup.plan.metric, setup.store, setup.sinks)

    def tested(self, test: FinishedTest) -> None:
        if test.predictions is not None:
            naming = make_naming(test.spec, test.model.num_classes, test.dataset)
            explain = by_grad_cam(test.model, test.preprocess) if self.report else None
            evaluated = Evaluated(test.metrics, test.predictions, naming, test.dataset, explain)
            write_test(self._run(test.spec), test.weights, evaluated, test.note)

    def _run(self, spec: RunSpec) -> ReportedRun:
        trackers = spec.extension(Trackers)
        return ReportedRun(
            spec.run.model_name,
            working_folder(spec.run.output_dir),
            dump(dict(spec.config)),
            with_page=self.report,
            with_board=trackers is not None and VISUALDL in names_of(trackers.TRACKERS or ()),
        )


def make_naming(spec: RunSpec, num_classes: int, dataset: ClipDataset) -> Naming:
    """Names of the classes and paths of the videos.

    Raises:
        AnnotationError: the file of names does not fit.
    """
    paths = [shown_url(record.path) for record in dataset.records]
    classes = classes_of_config(spec.config, num_classes)
    return Naming(classes.names if classes else [str(label) for label in range(num_classes)], paths)
