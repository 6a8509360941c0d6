"""`tools/doctor.py`; `tests/cli/test_wheel.py` runs the doctor of an installed package."""

import json


def test_the_command_writes_what_it_prints(config, command, capsys, tmp_path):
    arguments = ["-c", str(config()), "--steps", "2", "--output", str(tmp_path / "out")]
    assert command("doctor").main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert "training 2 steps on the real loader" in printed.err


def test_wrong_input_is_one_message(config, command, capsys, tmp_path):
    def told(path, *arguments):
        assert command("doctor").main(["-c", str(path), *arguments]) == 2
        return capsys.readouterr().err

    assert "nowhere.yaml" in told("nowhere.yaml")
    assert "DATASET.btach_size" in told(config(), "-o", "DATASET.btach_size=2")
    assert "nowhere.list" in told(config(), "-o", "DATASET.train.file_path=nowhere.list")
    assert "DATASET.train: training needs this section" in told(config(), "-o", "DATASET.train=null")
    output = tmp_path / "file"
    output.write_text("")
    assert command("doctor").main(["-c", str(config()), "--steps", "2", "--output", str(output)]) == 2
    printed = capsys.readouterr()
    assert f"--output {output}: is a file; give a folder" in printed.err
    assert "limits this run" in printed.out  # what was measured is not lost
    assert command("doctor").main(["-c", "x.yaml", "--steps", "none"]) == 2
    assert "'none' is no whole number from 2 on" in capsys.readouterr().err
