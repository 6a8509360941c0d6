from pathlib import Path

import pytest

from tools.config_reference import argument_texts, reference

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.annex
@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_committed_reference_is_what_the_code_says(lang):
    page = DOCS / lang / "config_reference.md"
    option = "" if lang == "en" else " --lang zh-CN"
    command = f"python tools/config_reference.py{option} > docs/{lang}/config_reference.md"
    assert page.read_text(encoding="utf-8") == reference(lang), f"type  {command}"


def test_a_small_schema(root):
    text = reference("en", root)
    assert "## MODEL\n\nNames the component with the key `framework`:\n\n### Recognizer2D\n" in text
    assert "| `depth` | int | required | number of layers. |\n" in text
    assert "| `pretrained` | str or null | `null` | weight file; null for none. |\n" in text
    assert "| `backbone` | a backbone, see below | required |  |\n" in text
    assert "| `window` | list of 3: int, int, int | `[8, 7, 7]` |  |\n" in text
    assert "- `backend`: one resample does it all\n" in text
    assert "Accepted without effect: not supported yet, training runs without it.\n" in text
    assert "parameters" not in text, "injected arguments are not for users"
    assert "`pipeline`" not in text
    assert text == reference("en", root)


def test_texts_of_arguments_come_from_class_constructor_and_bases():
    class Base:
        """First.

        Args:
            one: of the base
            two (int): replaced.
            three: kept.

        Raises:
            ValueError: never.
        """

    class Child(Base):
        def __init__(self):
            """Second.

            Args:
                two: of the constructor,
                    in two lines.
                one, three: see `Base`.
                four, five: both.
            """

    assert argument_texts(Child) == {
        "one": "of the base",
        "two": "of the constructor, in two lines.",
        "three": "kept.",
        "four": "both.",
        "five": "both.",
    }
