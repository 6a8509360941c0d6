"""The teacher that DISTILLATION names: what its config says, and the network."""

from dataclasses import dataclass
from typing import Any

from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine.output import weights_of_config
from paddlevideo_fast.errors import ConfigError, SettingError, WeightError
from paddlevideo_fast.extensions.distillation.soft_labels import ShapedPreprocess
from paddlevideo_fast.modeling import Preprocess, build_for_clips, load_weights
from paddlevideo_fast.modeling.preprocess import Layout

KEY = "DISTILLATION.teacher"


@dataclass(frozen=True)
class TeacherPlan:
    """A teacher before it is built.

    Attributes:
        spec: of its config.
        num_frames, crop_size: of its clips; crop_size 0: its config does not say.
        normalization: mean and standard deviation of its clips.
    """

    spec: RunSpec
    num_frames: int
    crop_size: int
    normalization: tuple[Any, Any]

    @classmethod
    def of(cls, config: str) -> "TeacherPlan":
        """The teacher of a config: a YAML file, the name of a built-in config, or the output folder of a run.

        Raises:
            SettingError: the config is wrong or describes no clips.
        """
        try:
            spec = RunSpec.of(load_config(config))
            names: list[SplitName] = [name for name in ("train", "valid", "test") if name in spec.splits]
            if not names:
                raise ConfigError(["PIPELINE: is missing, so nothing says which clips the teacher takes"])
            pipeline = Pipelines(spec.splits)[names[0]]
        except ConfigError as error:
            text = f"this config of the teacher is wrong: {error}"
            raise SettingError(f"{KEY}={config}", text) from None
        return cls(spec, pipeline.sample.num_frames, pipeline.crop_size, pipeline.normalization)

    def usual_weights(self) -> str:
        """The best weights of its run.

        Raises:
            SettingError: there are none.
        """
        try:
            return str(weights_of_config(self.spec.config))
        except WeightError as error:
            text = f"is missing, and {error}; name the file, or train the teacher"
            raise SettingError(f"{KEY}_weights", text) from None

    def build(self, weights: str, in_16_bits: bool) -> Any:
        """The network, in evaluation mode and frozen.

        Raises:
            WeightError: the weights do not fit.
        """
        with self.spec.config.placing():
            teacher: Any = build_for_clips(self.spec.model, in_16_bits, load_pretrained=False)
        try:
            load_weights(teacher, weights, strict=True)
        except WeightError as error:
            text = f"{KEY}_weights: they do not fit the teacher, {self.spec.config.path}"
            raise WeightError(f"{text}: {error}") from error
        teacher.eval()
        for parameter in teacher.parameters():
            parameter.stop_gradient = True
        return teacher

    def preprocess(self, layout: Layout) -> ShapedPreprocess:
        """From clips of the training to those of the teacher."""
        normalize = Preprocess(*self.normalization, layout)
        return ShapedPreprocess(normalize, layout, self.num_frames, self.crop_size or None)
