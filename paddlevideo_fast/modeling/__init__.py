"""Networks: layers, backbones, heads, losses, recognizers, their input and their weights."""

from paddlevideo_fast.modeling.attentive_head import AttentiveHead
from paddlevideo_fast.modeling.backbones import Backbone
from paddlevideo_fast.modeling.complexity import MacCounter, count_parameters
from paddlevideo_fast.modeling.heads import BaseHead
from paddlevideo_fast.modeling.preprocess import Cutmix, MixedLabels, Mixup, Preprocess, VideoMix
from paddlevideo_fast.modeling.recognizers import activation_of, build_for_clips, build_model, classes_of
from paddlevideo_fast.modeling.weights import ClassNames, WeightReport, load_weights, read_weights
