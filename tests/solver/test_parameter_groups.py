"""The rule of each parameter as a function of names and shapes."""

import paddle
import pytest

from paddlevideo_fast.config import build
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import OPTIMIZERS


def rules(**arguments):
    """Rules of `a`, a layer with a batch norm `a.b`, and of `ab`, whose name begins as that of `a`."""
    network = paddle.nn.Sequential(("a", paddle.nn.Linear(2, 2)), ("ab", paddle.nn.Linear(2, 2)))
    network.a.b = paddle.nn.BatchNorm1D(2)
    return build(OPTIMIZERS, {"name": "SGD", "learning_rate": 1.0, **arguments}).rules(network)


@pytest.mark.smoke
def test_matrices_decay_and_the_longest_name_decides_on_the_rate():
    assert rules(lr_multipliers={"a": 0.1, "a.b": 0.5, "ab.bias": 10}) == {
        "a.weight": (True, 0.1),
        "a.bias": (False, 0.1),
        "a.b.weight": (False, 0.5),
        "a.b.bias": (False, 0.5),
        "ab.weight": (True, 1.0),
        "ab.bias": (False, 10.0),
    }


def test_decay_on_biases_and_words_that_switch_it_off():
    found = rules(decay_bn_bias=True, no_weight_decay_name="b.w")
    assert {name for name, rule in found.items() if not rule.decay} == {"a.b.weight", "ab.weight"}


@pytest.mark.parametrize("key", ["a.weigh", "b"])
def test_an_entry_that_fits_nothing_is_an_error(key):
    with pytest.raises(ConfigError, match=f"no parameter is called '{key}'"):
        rules(lr_multipliers={key: 2})
