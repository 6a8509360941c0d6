"""What the core does to a network, it does to all networks of a distillation."""

from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.freezing import Freezing, frozen_parameters
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.modeling.stages import parameters_in
from tests.config.test_config_consistency import CONFIGS, problems_of
from tests.extensions.distillation.networks import distillation_of
from tests.modeling.networks import section_of
from tests.modeling.test_recompute import TSM, check_equal, make, trained

CONFIG = CONFIGS / "recognition/pptsm/v2/pptsm_lcnet_k400_8frames_uniform_dml_distillation.yaml"


def test_the_stages_are_those_of_the_networks():
    model = build_model(distillation_of(section_of()))
    freezing = Freezing(model, ["Student.stem"], 1)
    teacher = set(parameters_in(model, "Teacher", "key"))
    assert frozen_parameters(model) == teacher | set(parameters_in(model, "Student.stem", "key"))
    freezing.begin(1)
    model.train()
    assert frozen_parameters(model) == teacher
    assert not model.Teacher.training
    assert model.Student.training


def test_all_networks_are_recomputed():
    section = distillation_of(TSM)
    expected = trained(make(section))
    model = make(section)
    recompute_stages(model)
    check_equal(trained(model), expected)


def test_all_networks_are_compared_with_the_clips():
    problems = problems_of(CONFIG, "PIPELINE.train.sample.num_seg=16")
    assert [problem.partition("and ")[2].partition(" (")[0] for problem in problems] == [
        "MODEL.models.0.Teacher.backbone.num_seg",
        "MODEL.models.1.Student.backbone.num_seg",
    ]
