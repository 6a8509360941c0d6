"""Over how many processes batch norms take their statistics, from the config alone."""

import pytest

from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import ConfigError


def plan(world_size, *overrides, config="slowfast_motion_multigrid", multigrid=True):
    cfg = load_config(
        f"configs/quickstart/{config}.yaml", [f"multigrid={str(multigrid).lower()}", *overrides]
    )
    return plan_run(RunSpec.of(cfg), world_size).phases


@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 8, 16])
def test_statistics_come_from_the_base_or_from_all_there_is(batch_size, world_size):
    phases = plan(world_size, f"DATASET.batch_size={batch_size}", "MULTIGRID.bn_base_size=8")
    assert len({phase.batch_multiplier for phase in phases}) > 1
    for phase in phases:
        batch = batch_size * phase.batch_multiplier
        num_clips = batch * phase.bn_sync_devices // phase.bn_splits
        assert num_clips == min(8, batch * world_size)
        assert world_size % phase.bn_sync_devices == 0


@pytest.mark.parametrize(
    ("world_size", "overrides", "message"),
    [
        (4, ["DATASET.batch_size=3", "MULTIGRID.bn_base_size=8"], "8 is no multiple of a batch of 3 clips"),
        (6, ["DATASET.batch_size=2"], "8 clips are the batches of 4 processes, and 6 make no such groups"),
        (2, ["DISTRIBUTED.sync_bn=true"], "DISTRIBUTED.sync_bn: multigrid training shares statistics"),
    ],
)
def test_processes_that_do_not_fit_are_an_error(world_size, overrides, message):
    only_short = ["MULTIGRID.LONG_CYCLE=false"]
    with pytest.raises(ConfigError, match=message):
        plan(world_size, *only_short, *overrides)


def test_sync_bn_is_over_all_processes():
    for world_size in (1, 3):
        (phase,) = plan(world_size, "DISTRIBUTED.sync_bn=true", config="tsm_motion", multigrid=False)
        assert (phase.bn_sync_devices, phase.bn_splits) == (world_size, 1)
    (phase,) = plan(3, config="tsm_motion", multigrid=False)
    assert phase.bn_sync_devices == 1


def test_splits_of_a_batch_are_not_shared():
    import paddle

    from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D, set_num_splits, set_sync_group

    model = paddle.nn.Sequential(SubBatchNorm3D(4))
    set_num_splits(model, 2)
    with pytest.raises(ValueError, match="2 splits of a batch cannot be shared"):
        set_sync_group(model, object())
