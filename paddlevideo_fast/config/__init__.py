"""Configs: YAML with inheritance and overrides, checked against the constructors of the components."""

from paddlevideo_fast.config.document import Config
from paddlevideo_fast.config.load import check_config, load_config
from paddlevideo_fast.config.sections import build, build_list
from paddlevideo_fast.config.spec import RunSpec
