from __future__ import annotations

import subprocess
import sys

import pytest

from counterpoint.cli import main

COMMANDS = (
    ["collect"], ["data"], ["data", "info"], ["data", "doctor"], ["data", "convert"],
    ["pretrain"], ["recipes"], ["reward"], ["report"], ["convert"],
    ["collect", "metaworld"], ["collect", "pointmaze"],
    ["train"], ["evaluate"], ["bench"], ["bench", "occupancy"], ["bench", "stitching"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_reads_well(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([*command, "--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    assert text.startswith(f"usage: counterpoint {' '.join(command)}")
    assert "STR" not in text
    assert "(required)" in text or command == ["recipes"]


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom counterpoint.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes"])
    assert "decisionnce_t-demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pretrain", "no-such-recipe", "--data", "d", "--out", "o"], "no such recipe"),
        (
            ["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--train.step=3"],
            "did you mean 'steps'",
        ),
        (["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--objective.temp=3"], "temp"),
        (
            ["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--objective.name=x"],
            "objective.name",
        ),
        (["data", "info", "no/such/folder"], "no/such/folder"),
        (["report", "no/such/run"], "no/such/run"),
        (["convert", "actol", "no/such/file", "--out", "o"], "no/such/file"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert done.value.code == 2
    assert words in error
    assert "Traceback" not in error
    assert "Mend:" in error
