"""Which of several validations is the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paddlevideo_fast.config.settings import SelectionSettings
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import did_you_mean

_LOSS = "loss"
_COUNT = "num_"


@dataclass(frozen=True)
class Selection:
    """Compares validations by one of their values.

    Args:
        settings: say which value, and whether high or low is good.
    """

    settings: SelectionSettings = field(default_factory=SelectionSettings)

    def check(self, names: Sequence[str]) -> None:
        """Checks that a validation gives the configured value.

        Args:
            names: of the values that the metric gives.

        Raises:
            ConfigError: it does not; the message has the names.
        """
        name, known = self.settings.metric, {*names, _LOSS}
        if name is not None and name not in known:
            hint = did_you_mean(name, known)
            listed = "" if "known:" in hint else f" Known: {', '.join(sorted(known))}"
            raise ConfigError([f"SELECTION.metric={name}: validation gives no such value{hint}{listed}"])

    def value_of(self, metrics: Mapping[str, float]) -> tuple[str, float] | None:
        """Name and value of the number that decides; None where nothing was evaluated.

        If the settings name none, the first value that begins with "top" decides, else the first of all.

        Raises:
            ConfigError: the validation does not give the configured value.
        """
        names = [name for name in metrics if not name.startswith(_COUNT)]
        if not names:
            return None
        self.check(names)
        usual = next((name for name in names if name.startswith("top")), names[0])
        name = self.settings.metric or usual
        return name, metrics[name]

    def is_better(self, name: str, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is better than another one by more than `by`; NaN never is.

        Args:
            name: of the value. A loss is better if it is lower, anything else if it is higher, unless the
                settings say otherwise.
            value: of a validation.
            than: the other value; None: any number is better.
            by: ≥ 0.
        """
        if math.isnan(value) or than is None:
            return not math.isnan(value)
        mode = self.settings.mode or ("min" if name.endswith(_LOSS) else "max")
        return value > than + by if mode == "max" else value < than - by
