"""`doctor --find lr`: the range test of the learning rate."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from paddlevideo_fast.apps.doctor import finding
from paddlevideo_fast.apps.doctor.finding import find_rate, rate_report
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import NonFiniteLossError

CURVE = (
    "OPTIMIZER.learning_rate={name: CustomWarmupCosineDecay, warmup_start_lr: 0.001, warmup_epochs: 0.5, "
    "cosine_base_lr: 0.01, max_epoch: 1}"
)


@pytest.fixture
def one_class(config, motion_dataset, tmp_path):
    """A config whose clips are all of class 3, which any network learns in a few steps."""
    lines = motion_dataset.train_list.read_text().splitlines()
    path = tmp_path / "one.list"
    path.write_text("".join(f"{line.split()[0]} 3\n" for line in lines))
    return config(list=path)


def test_a_range_test_proposes_a_tenth_of_the_best_rate_and_writes_nothing(
    one_class, command, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = ["-c", str(one_class), "-o", CURVE, "--find", "lr", "--steps", "30", "--json"]
    assert command("doctor").main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    rates, smooth = found["rates"], found["smoothed"]
    assert rates[0] == pytest.approx(5e-9)  # 10^-6 of the curve's highest rate, at the end of the warm-up
    assert rates[1] / rates[0] == pytest.approx((10 / 5e-9) ** (1 / 29))
    assert len(rates) == len(found["losses"]) == len(smooth)
    assert min(smooth) < smooth[0] / 2
    best = rates[smooth.index(min(smooth))]
    assert found["rate"] == pytest.approx(best / 10, rel=0.06)
    base, warm_up = (float(each.partition("=")[2]) for each in found["overrides"])
    assert found["overrides"][0].startswith("OPTIMIZER.learning_rate.cosine_base_lr=")
    assert base == pytest.approx(2 * found["rate"], rel=0.06)
    assert base / warm_up == pytest.approx(10, rel=0.1)
    load_config(one_class, [CURVE, *found["overrides"]])
    assert f"-o {found['overrides'][0]}" in rate_report(found)


def test_a_range_test_ends_where_the_loss_diverges():
    losses = iter([2.0, 1.0, 60.0, 1.0])
    trainer = SimpleNamespace(
        optimizer=SimpleNamespace(set_lr=lambda rate: None), drain=lambda: {"loss": next(losses)}
    )
    test = finding._RateTest([0.1] * 4)
    for _ in range(2):
        test.step_begin(trainer)
        test.step_end(trainer)
    with pytest.raises(finding._Ended):
        test.step_end(trainer)
    assert test.diverged
    assert test.losses == [2.0, 1.0, 60.0]
    assert finding.smoothed([2.0, 2.0]) == pytest.approx([2.0, 2.0])

    def not_finite():
        raise NonFiniteLossError("nan")

    trainer.drain = not_finite
    test = finding._RateTest([0.1])
    with pytest.raises(finding._Ended):
        test.step_end(trainer)
    assert test.diverged


@pytest.mark.parametrize("lucky", [0, 1, 7, 24, 40])
@pytest.mark.parametrize("steps", [30, 100])
def test_a_lucky_batch_is_no_rate(lucky, steps):
    """One batch has nearly no loss where the rate is too low to learn; the loss falls later, or never."""
    rates = [1e-8 * 10 ** (9 * step / (steps - 1)) for step in range(steps)]
    low, by_chance, right = int(0.8 * steps), 0, 0
    for seed in range(50):
        losses = np.random.default_rng(seed).normal(2.0, 0.2, steps)
        losses[lucky * steps // 100] = 0.05
        by_chance += finding._proposal(rates, losses.tolist()) is not None
        falls = losses * np.interp(np.arange(steps), [0.4 * steps, low, steps - 1], [1.0, 0.2, 3.0])
        found = finding._proposal(rates, falls.tolist())
        right += found is not None and rates[low - 3] / 10 < found < rates[low + steps // 8] / 10
    assert by_chance <= 1
    assert right >= 48


def test_without_a_fall_there_is_no_proposal(config):
    found = find_rate(load_config(config(), ["OPTIMIZER.learning_rate=0.01"]), 2, lambda text: None)
    assert found["rate"] is None
    assert "the loss did not fall" in rate_report(found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--find", "lrs"], "invalid choice: 'lrs'"),
        (["--find", "lr", "--output", "there"], "--find: writes nothing; leave --output out"),
    ],
)
def test_wrong_input_is_one_message(config, command, capsys, words, message):
    assert command("doctor").main(["-c", str(config()), *words]) == 2
    assert message in capsys.readouterr().err
