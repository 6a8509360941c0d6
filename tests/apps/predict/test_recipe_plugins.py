"""The settings file of a program whose pipeline has components of a user."""

from pathlib import Path

import pytest

from paddlevideo_fast.apps.predict.recipe import read_recipe, recipe_of
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import TRANSFORMS

QUICKSTART = str(Path(__file__).resolve().parents[3] / "configs/quickstart/tsm_motion.yaml")
PARTS = """
from pathlib import Path

from paddlevideo_fast.loader.transforms.crop import CenterCrop
from paddlevideo_fast.registry import TRANSFORMS

Path("imported").touch()


@TRANSFORMS.register()
class {name}(CenterCrop):
    pass
"""


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """`settings_of("Crop")`: the settings file of a config with this transform, and its plug-in, imported."""
    monkeypatch.chdir(tmp_path)
    TRANSFORMS.names()
    monkeypatch.setattr(TRANSFORMS, "_entries", dict(TRANSFORMS._entries))

    def write(name):
        plugin = tmp_path / f"{name.lower()}.py"
        plugin.write_text(PARTS.format(name=name))
        transform = f"PIPELINE.valid.transform.0={{{name}: {{target_size: 56}}}}"
        cfg = load_config(QUICKSTART, [transform, f"imports=[{plugin}]"])
        recipe_of(cfg).save("program.yaml")
        (tmp_path / "imported").unlink()
        return Path("program.yaml"), plugin

    return write


def test_a_program_remembers_what_its_pipeline_needs(settings_of):
    file, plugin = settings_of("OwnCrop")
    recipe = read_recipe(file)
    assert list(recipe.settings.imports) == [str(plugin)]
    assert recipe.section["transform"][0] == {"OwnCrop": {"target_size": 56}}
    recipe_of(load_config(QUICKSTART, [f"imports=[{plugin}]"])).save(file)
    assert "imports" not in file.read_text()  # its pipeline has nothing of the plug-in


def test_a_file_beside_a_program_is_not_run_unasked(settings_of):
    file, plugin = settings_of("MovedCrop")
    beside = plugin.with_name("beside.py")
    beside.write_text(PARTS.format(name="BesideCrop"))
    file.write_text(file.read_text().replace(str(plugin), "beside.py"))
    with pytest.raises(ConfigError, match=r"program.yaml:\d+  imports='.*beside.py': comes with this file"):
        read_recipe(file)
    assert not Path("imported").exists()
    read_recipe(file, [str(beside)])
    assert Path("imported").exists()
