"""Weights of other classes: which the last layer keeps by name, and which start anew."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import ClassNames, load_weights
from tests.modeling import networks

STORED = ["run", "jump", "swim", "climb"]


def make(num_classes, name="tsm", seed=1):
    paddle.seed(seed)
    return networks.make(name, num_classes)


def names(own, stored=STORED):
    return ClassNames(lambda count: own, lambda path, count: stored)


def last_layer(model):
    (name,) = model.classifiers
    return {kind: getattr(dict(model.named_sublayers())[name], kind).numpy() for kind in ("weight", "bias")}


@pytest.fixture(scope="module", params=["tsm", "mobilenet_v2"])
def stored(request, tmp_path_factory):
    model = make(4, request.param, seed=2)
    (name,) = model.classifiers
    layer = dict(model.named_sublayers())[name]
    layer.bias.set_value(paddle.to_tensor([1.0, 2.0, 3.0, 4.0]))
    path = tmp_path_factory.mktemp("weights") / "four.pdparams"
    paddle.save(model.state_dict(), str(path))
    return request.param, model, path


@pytest.mark.parametrize(
    ("own", "kept", "told"),
    [
        (["swim", "dance", "run"], {0: 2, 2: 0}, "kept 2 of 3 classes by name; 1 start anew"),
        (
            ["climb", "swim", "jump", "run"],
            {0: 3, 1: 2, 2: 1, 3: 0},
            "kept 4 of 4 classes by name; 0 start anew",
        ),
        (["a", "b", "c", "d", "e"], {}, "kept 0 of 5 classes by name; 5 start anew"),
        (STORED, {0: 0, 1: 1, 2: 2, 3: 3}, ""),
    ],
)
def test_classes_are_kept_by_name(stored, own, kept, told):
    name, source, path = stored
    model = make(len(own), name)
    first, theirs = last_layer(model), last_layer(source)
    report = load_weights(model, path, strict=True, classes=names(own))
    assert report.notes.get("classes", "") == told
    assert told in report.summary()
    found = last_layer(model)
    for place in range(len(own)):
        expected, at = (theirs, kept[place]) if place in kept else (first, place)
        for kind in ("weight", "bias"):
            np.testing.assert_array_equal(found[kind][..., place], expected[kind][..., at])
    others = {
        key: value for key, value in source.state_dict().items() if not key.startswith(model.classifiers[0])
    }
    for key, value in others.items():
        np.testing.assert_array_equal(model.state_dict()[key].numpy(), value.numpy(), key)


@pytest.mark.parametrize(
    ("own", "theirs", "whose"), [(["run", "sit"], None, "the file's"), (None, STORED, "the network's")]
)
def test_without_names_other_classes_start_anew(stored, own, theirs, whose):
    name, _, path = stored
    model = make(2, name)
    first = last_layer(model)
    report = load_weights(model, path, strict=True, classes=names(own, theirs))
    assert report.notes["classes"] == f"all 2 start anew: the file has 4, and {whose} names are not known"
    for kind, value in last_layer(model).items():
        np.testing.assert_array_equal(value, first[kind])
    same = make(4, name)
    assert load_weights(same, path, strict=True, classes=names(own, theirs)).notes == {}


def test_a_test_stays_strict(stored):
    name, _, path = stored
    with pytest.raises(
        WeightError, match=r"another number of classes.*train with -w" if name == "tsm" else "fit"
    ):
        load_weights(make(2, name), path, strict=True)
