"""Parameter groups as a function of names and shapes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlevideo_fast.solver import group_parameters

SHAPES = {
    "backbone.conv._conv.weight": [8, 3, 7, 7],
    "backbone.conv._batch_norm.weight": [8],
    "backbone.conv._batch_norm.bias": [8],
    "head.fc.weight": [64, 3],
    "head.fc.bias": [3],
}


def rules(**arguments):
    groups = group_parameters(SHAPES, **{"lr_multipliers": {}, **arguments})
    return {name: (group.decay, group.lr_multiplier) for group in groups for name in group.names}


@pytest.mark.smoke
def test_the_tsm_recipe():
    found = rules(lr_multipliers={"head.fc.weight": 5, "head.fc.bias": 10})
    assert found == {
        "backbone.conv._conv.weight": (True, 1.0),
        "backbone.conv._batch_norm.weight": (False, 1.0),
        "backbone.conv._batch_norm.bias": (False, 1.0),
        "head.fc.weight": (True, 5.0),
        "head.fc.bias": (False, 10.0),
    }


def test_the_longest_name_wins_and_words_switch_decay_off():
    found = rules(
        lr_multipliers={"backbone": 0.1, "backbone.conv._conv": 0.5}, no_decay=lambda name: "fc" in name
    )
    assert found["backbone.conv._batch_norm.bias"] == (False, 0.1)
    assert found["backbone.conv._conv.weight"] == (True, 0.5)
    assert found["head.fc.weight"] == (False, 1.0)
    assert rules(decay_one_dimensional=True)["head.fc.bias"] == (True, 1.0)


def test_an_entry_that_fits_nothing_is_an_error():
    with pytest.raises(KeyError, match="head.f"):
        rules(lr_multipliers={"head.f": 2})


names = st.sampled_from(["a.weight", "a.bias", "a.b.weight", "ab.weight", "b.c.d", "b.c", "c"])


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(names, st.lists(st.integers(1, 4), max_size=4), min_size=1),
    st.sampled_from([{}, {"a": 2.0}, {"b": 3.0, "b.c": 4.0}]),
    st.booleans(),
)
def test_every_parameter_is_in_exactly_one_group(shapes, multipliers, decay_all):
    fits = {key: [name for name in shapes if f"{name}.".startswith(f"{key}.")] for key in multipliers}
    multipliers = {key: factor for key, factor in multipliers.items() if fits[key]}
    groups = group_parameters(shapes, multipliers, decay_all)
    listed = [name for group in groups for name in group.names]
    assert sorted(listed) == sorted(shapes)
    assert len({(group.decay, group.lr_multiplier) for group in groups}) == len(groups)
