from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli import main

COMMANDS = (
    ["collect"], ["data"], ["data", "info"], ["data", "doctor"], ["data", "convert"],
    ["pretrain"], ["recipes"], ["reward"], ["report"], ["convert"],
    ["collect", "metaworld"], ["collect", "pointmaze"],
    ["train"], ["evaluate"],
    ["collect", "dmc"],
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
        (["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--train.step=3"], "did you mean 'steps'"),
        (["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--objective.temp=3"], "temp"),
        (["pretrain", "decisionnce_t-demo", "--data", "d", "--out", "o", "--objective.name=x"], "objective.name"),
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
    assert "Hint:" in error


def test_a_place_that_cannot_be_written_to_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as done:
        main(["collect", "dmc", "--episodes", "1", "--steps", "1", "--out", str(tmp_path / "file" / "x")])
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"counterpoint: {tmp_path / 'file'}")
    assert "found a file where a folder must be" in said


def recorder(calls: list[tuple[Any, ...]], answer: Any = None) -> Callable[..., Any]:
    def record(*arguments: Any, **settings: Any) -> Any:
        calls.append((*arguments, settings))
        return answer

    return record


@pytest.mark.parametrize(
    "arguments",
    [
        ["cloning", "--clone.steps=5", "--data", "d", "--out", "o", "--encoder", "runs/a.b"],
        ["cloning", "--data", "d", "--encoder=runs/a.b", "--out", "o", "--clone.steps", "5"],
    ],
)
def test_train_cloning_clones_a_policy(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.training.clone_command.train_policy", recorder(calls, Path("o/policy")))
    main(["train", *arguments])
    assert calls == [("cloning", "d", Path("o"), {"clone.steps": 5}, {"encoder": "runs/a.b"})]
    assert capsys.readouterr().out == "Wrote o/policy\n"


def test_train_with_another_name_trains_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.training.train_agent.train_agent", recorder(calls))
    main(["train", "td_infonce", "--env", "FetchReach-v4", "--out", "o", "--agent.discount=0.95"])
    expected = {"env": "FetchReach-v4", "data": None}
    assert calls == [("td_infonce", Path("o"), {"agent.discount": 0.95}, expected)]


def test_evaluate_passes_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.evaluation.evaluate.evaluate", recorder(calls))
    main(["evaluate", "r", "--env", "metaworld/bin-picking@corner", "--episodes", "3", "--seed", "7", "--video", "2"])
    settings = {"episodes": 3, "envs": 2, "seed": 7, "video": 2, "device": None}
    assert calls == [(Path("r"), "metaworld/bin-picking@corner", settings)]


def test_collect_dmc_records_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.envs.dmc.collect.collect_dmc", recorder(calls))
    main(["collect", "dmc", "--out", "o", "--tasks", "walker-walk", "cheetah-run", "--kind", "expert"])
    ((config, _),) = calls
    assert (config.out, config.tasks, config.kind) == (Path("o"), ("walker-walk", "cheetah-run"), "expert")
    assert (config.episodes, config.size, config.seed) == (None, 84, 0)


def test_pretrain_takes_several_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.training.pretrain.pretrain", recorder(calls))
    main(["pretrain", "premier_taco-metaworld", "--data", "a", "b", "--objective.window=3", "--out", "o"])
    paths = (Path("a"), Path("b"))
    assert calls == [("premier_taco-metaworld", paths, Path("o"), {"objective.window": 3}, {})]
