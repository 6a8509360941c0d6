"""Batch norm over the batches of several processes against the formula over all of them."""

from pathlib import Path

import batch_norm_ranks as ranks
import numpy as np
import pytest

from paddlevideo_fast.engine import Distribution
from paddlevideo_fast.schedule.phases import Phase
from tests.support.launching import Job

TOLERANCES = {
    "float64": {"rtol": 1e-10, "atol": 1e-10},
    "float32": {"rtol": 1e-5, "atol": 1e-5},
    "far": {"rtol": 1e-5, "atol": 1e-2},  # a mean of squares less a square of the mean would be 5 times off
    "bfloat16": {"rtol": 2.0**-7, "atol": 2.0**-7},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of four processes found, and of three."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [Path(ranks.__file__), folder]
    for number in (4, 3):
        with Job(command, number, folder / f"{number}") as job:
            job.succeed(300)
    found = [dict(np.load(folder / f"4_{rank}.npz")) for rank in range(4)]
    for rank in range(3):
        found[rank].update(np.load(folder / f"3_{rank}.npz"))
    return found


def by_hand(inputs, gradients, weight, bias):
    """Of one batch of all ranks: output, inward gradient and normalised input of each, mean and variance."""
    x, g = np.concatenate(inputs), np.concatenate(gradients)
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    scale = 1 / np.sqrt(variance + ranks.EPSILON)
    normal = (x - mean) * scale
    inward = scale * weight * (g - g.mean(axes) - normal * (g * normal).mean(axes))
    borders = np.cumsum([len(each) for each in inputs])[:-1]
    return [np.split(whole, borders) for whole in (normal * weight + bias, inward, normal)], mean, variance


@pytest.mark.parametrize("values", ranks.VALUES)
@pytest.mark.parametrize("kind", ranks.LAYERS)
@pytest.mark.parametrize("group", ranks.GROUPS)
def test_forward_backward_and_statistics_by_hand(found, group, kind, values):
    data_format = ranks.LAYERS[kind][1]
    inputs, gradients, (weight, bias, old_mean, old_variance) = ranks.drawn(kind, values, ranks.BATCHES)
    if values != "float64":
        weight, bias, old_mean, old_variance = (
            each.astype("float32").astype("float64") for each in (weight, bias, old_mean, old_variance)
        )
    for members in ranks.GROUPS[group]:
        shares = [[each[rank] for rank in members] for each in (inputs, gradients)]
        (outputs, inward, normal), mean, variance = by_hand(*shares, weight, bias)
        for place, rank in enumerate(members):
            axes = tuple(range(inputs[rank].ndim - 1))
            momentum = ranks.MOMENTUM
            expected = {
                "output": ranks.channels_in_place(outputs[place], data_format),
                "inward": ranks.channels_in_place(inward[place], data_format),
                "weight": (gradients[rank] * normal[place]).sum(axes),  # its own part: DataParallel adds up
                "bias": gradients[rank].sum(axes),
                "mean": momentum * old_mean + (1 - momentum) * mean,
                "variance": momentum * old_variance + (1 - momentum) * variance,
            }
            for name, value in expected.items():
                mine = found[rank][f"{group}/{kind}/{values}/{name}"]
                np.testing.assert_allclose(mine, value, **TOLERANCES[values], err_msg=f"rank {rank} {name}")


def test_a_group_trains_as_one_process_with_all_clips(found):
    alone = ranks.trained(Distribution(), [Phase(0, 1)]).state_dict()
    for name, tensor in alone.items():
        for rank in range(4):
            np.testing.assert_allclose(
                found[rank][f"net/{name}"], tensor.numpy(), rtol=1e-5, atol=1e-6, err_msg=name
            )
            np.testing.assert_array_equal(found[rank][f"net/{name}"], found[0][f"net/{name}"], err_msg=name)


def test_groups_follow_the_phase_and_ranks_go_on_from_the_mean_of_their_statistics(found):
    def statistics(epoch, which):
        return [rank[f"phases/{epoch}/{which}"] for rank in found]

    for epoch, equal in enumerate([[(0, 1), (2, 3)], [], [(0, 1), (1, 2), (2, 3)]], 1):
        own = statistics(epoch, "own")
        for a in range(4):
            for b in range(a + 1, 4):
                together = epoch == 3 or (a, b) in equal
                assert np.array_equal(own[a], own[b]) == together, f"epoch {epoch}, ranks {a} and {b}"
        shared = statistics(epoch, "shared")
        for rank in range(4):
            np.testing.assert_array_equal(shared[rank], shared[0])
        np.testing.assert_allclose(shared[0], np.mean(own, axis=0), rtol=1e-6)
    # with two splits the layer's own are those of both together
    means, variances = statistics(2, "shared")[0]
    whole_mean, whole_variance = statistics(2, "whole")[0]
    np.testing.assert_allclose(whole_mean, means.mean(0), rtol=1e-6)
    np.testing.assert_allclose(whole_variance, variances.mean(0) + means.var(0), rtol=1e-5)
    np.testing.assert_array_equal(statistics(3, "own")[0], statistics(3, "shared")[0])  # to the last bit


def test_two_ranks_get_by_paddles_operator_what_they_get_by_ours(tmp_path):
    with Job([Path(ranks.__file__), tmp_path], 2, tmp_path / "output") as job:
        job.succeed(300)
    for rank in range(2):
        found = dict(np.load(tmp_path / f"2_{rank}.npz"))
        assert (found["alone"], found["shares"]) == (False, True)
        assert ranks.deviation(found, "float32") <= 1e-6
        assert ranks.deviation(found, "bfloat16") <= 2.0**-7
