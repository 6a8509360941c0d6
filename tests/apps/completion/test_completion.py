"""`paddlevideo-fast completion`: a real bash completes commands, options, choices, files and config names."""

import subprocess
import sys

import pytest

from paddlevideo_fast.apps.data.command import TOOLS
from paddlevideo_fast.cli.commands import COMMANDS

pytest.importorskip("shtab")
main = COMMANDS["completion"].start

COMPLETE = """
source completion.bash
while read -r line; do
  COMP_WORDS=($line); [[ $line == *_ ]] && COMP_WORDS[-1]=
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  _shtab_paddlevideo_fast
  echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes(tmp_path, capsys):
    assert main(["bash"]) == 0
    (tmp_path / "completion.bash").write_text(capsys.readouterr().out)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.txt").touch()
    cases = {  # a word that is to be completed from nothing is written _
        "_": " ".join(COMMANDS),
        "tra": "train",
        "data _": " ".join(TOOLS),
        "data pa": "pack",
        "data pack --sh": "--short_side --short-side --shard_size --shard-size",
        "train --amp_l": "--amp_level",
        "train --amp_level _": "O1 O2",
        "train -c tsm_m": "tsm_motion",
        "test -o epochs=1 -c min": "mine.yaml",
        "test -w min": "mine.txt mine.yaml",
        "convert --from mm": "mmaction2",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE],
        input="".join(f"paddlevideo-fast {words}\n" for words in cases),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [" ".join(sorted(line.split())) for line in done.stdout.splitlines()]
    assert dict(zip(cases, found)) == {words: " ".join(sorted(to.split())) for words, to in cases.items()}


def test_zsh_gets_the_same_commands(capsys):
    assert main(["zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef paddlevideo-fast")
    for name in COMMANDS:
        assert f"\n    {name}:'{COMMANDS[name].text}'\n" in text
    assert "configs:built-in config:(distill_motion" in text


def test_without_the_package_one_message(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["bash"]) == 2
    assert (
        "completion needs the package 'shtab', which is not installed: type  pip install shtab"
        in capsys.readouterr().err
    )
