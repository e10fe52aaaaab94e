from __future__ import annotations

import errno
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from safetensors import SafetensorError

from counterpoint.cli import main
from counterpoint.training.recipe import load_recipe

SHOWN = (
    ["collect"], ["data"], ["data", "info"], ["data", "doctor"], ["data", "convert"],
    ["recipes"], ["reward"], ["label"], ["embed"], ["compare"], ["report"], ["convert"],
    ["collect", "metaworld"], ["collect", "pointmaze"],
    ["train"], ["evaluate"],
    ["collect", "dmc"], ["collect", "robosuite"], ["collect", "kitchen"],
    ["plan"], ["view"], ["push"], ["data", "masks"],
)  # fmt: skip

FINISHED = SimpleNamespace(model="o/model", main=True, folder=Path("o"))
"""What stands in for a run that is over."""


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_help_reads_well(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([*command, "--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    assert text.startswith(f"usage: counterpoint {' '.join(command)}")
    assert "STR" not in text or command[0] == "collect"
    assert "(required)" in text or command == ["recipes"]
    assert "default: )" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_script_for_completion_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["label", "--tyro-print-completion", "bash"])
    assert max(map(len, capsys.readouterr().out.splitlines())) > 80


@pytest.mark.parametrize("code", ["import counterpoint", "from counterpoint.cli import main\nmain(['--help'])"])
def test_what_is_quick_loads_nothing_heavy(code: str) -> None:
    heavy = {"torch", "numpy", "pyarrow", "av", "PIL", "accelerate", "huggingface_hub", "scipy", "gymnasium", "mujoco"}
    code = f"import sys\ntry:\n    exec({code!r})\nexcept SystemExit:\n    pass\nassert not {heavy} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes"])
    assert "decisionnce_t-demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "no-such-recipe", "--data", "d", "--out", "o"], "no such agent or recipe"),
        (["train", "decisionnce_t-dmo", "--data", "d", "--out", "o"], "did you mean 'decisionnce_t-demo'"),
        (["tarin", "decisionnce_t-demo"], "did you mean 'train'"),
        (["collect", "metaword"], "did you mean 'metaworld'"),
        (["train", "decisionnce_t-demo", "--data", "d", "--out", "o", "--env", "e"], "no environment"),
        (["train", "decisionnce_t-demo", "--data", "d", "--out", "o", "--device", "tpu"], "--device"),
        (["data", "info", "no/such/folder"], "no/such/folder"),
        (["plan", "kitchen/light_onn", "--out", "o"], "did you mean 'light_on'"),
        (["plan", "metaworld/hammer", "--out", "o"], "kitchen/TASK"),
        (["plan", "kitchen/light_on", "--reward", "no/such/run", "--out", "o"], "no/such/run"),
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


DEMO = ["train", "decisionnce_t-demo", "--data", "d"]


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ([*DEMO, "--train.step=3"], "--train.step", "did you mean '--train.steps'?"),
        ([*DEMO, "--steps", "3"], "--steps", "did you mean '--train.steps'?"),
        (["train", "gcbc", "--steps", "3"], "--steps", "did you mean '--online.steps' or '--train.steps'?"),
        ([*DEMO, "--objective.temperatur=3"], "--objective.temperatur", "did you mean '--objective.temperature'?"),
        ([*DEMO, "--objective.name=x"], "--objective.name", "found 'x'; expected 'decisionnce_t'"),
        ([*DEMO, "--optimizer.lr=fast"], "--optimizer.lr", "found 'fast'; expected FLOAT"),
        ([*DEMO, "--optimizer.lr=1e999"], "--optimizer.lr", "found inf; expected a finite number"),
        ([*DEMO, "--train.steps=0"], "--train.steps", "found 0; expected greater than or equal to 1"),
        ([*DEMO, "--train.log-every=0"], "--train.log-every", "found 0; expected greater than or equal to 1"),
        ([*DEMO, "--train.steps"], "--train.steps", "found nothing"),
        ([*DEMO, "--data.state=false"], "--data.state", "found the value false; expected the option alone"),
        ([*DEMO, "--data.state", "false"], "--data.state", "write --data.no-state"),
        ([*DEMO, "--compile=True"], "--compile", "write --compile"),
        (
            ["train", "diff_c-robosuite", "--data", "d", "--frame=3"],
            "train diff_c-robosuite",
            "smaller than the encoder's",
        ),
        (["train", "diff_c-robosuite", "--auxiliary.objective.name", "crul"], "recipe diff_c-robosuite", "'curl'"),
        (["plan", "kitchen/light_on", "--horizn", "3"], "--horizn", "did you mean '--horizon'?"),
        (["collect", "dmc", "--tsks", "a"], "--tsks", "did you mean '--tasks'?"),
        (["data", "inf"], "data 'inf'", "did you mean 'info'?"),
        (["evaluate", "r", "--episodes", "x"], "--episodes", "found 'x'; expected INT"),
        (["convert", "actoll", "x"], "method", "did you mean 'actol'?"),
    ],
)
def test_a_bad_argument_is_one_line_that_names_the_key(
    arguments: list[str], key: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")] if arguments[0] in ("train", "collect", "convert", "plan") else []
    with pytest.raises(SystemExit) as done:
        main([*arguments, *out])
    captured = capsys.readouterr()
    assert done.value.code == 2
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert captured.err.startswith(f"counterpoint: {key}")
    assert all(word in captured.err for word in (words, "found", "expected", "Hint: "))
    assert not (tmp_path / "run").exists()


def test_a_bad_argument_is_the_same_line_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, tyro colours its messages."""
    monkeypatch.setattr("tyro._fmtlib._FORCE_ANSI", True)
    with pytest.raises(SystemExit):
        main(["collect", "pointmaze", "--maze", "UMazes", "--out", "o"])
    told = "--maze: found 'UMazes'; expected 'UMaze', 'Open', 'Medium', 'Large'. Hint: did you mean 'UMaze'?"
    assert capsys.readouterr().err == f"counterpoint: {told}\n"


@pytest.mark.parametrize(
    "arguments", [["train", "decisionnce_t-demo", "--data", "d"], ["convert", "actol", "file"], ["evaluate"], ["data"]]
)
def test_a_missing_argument_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert (done.value.code, error.count("\n")) == (2, 1)
    assert "found nothing; expected" in error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "some/file"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
    ],
)
def test_a_full_disk_is_one_message(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**arguments: object) -> None:
        raise error

    monkeypatch.setattr("counterpoint.encoders.convert.convert_checkpoint", fail)
    with pytest.raises(SystemExit) as done:
        main(["convert", "actol", "file", "--out", "o"])
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("counterpoint: ")
    assert "found no space left" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("recipe", "keys"),
    [
        ("diff_c-robosuite", ("icon.weight", "icon.agent-keys", "crossway.widths", "auxiliary.weight")),
        ("td_infonce", ("env.name", "env.observations", "online.steps", "train.steps", "data.goals")),
    ],
)
def test_help_lists_sections_that_are_switched_off(
    recipe: str, keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", recipe, "--help"])
    text = capsys.readouterr().out
    assert not [key for key in keys if f"--{key}" not in text]


def test_an_auxiliary_objective_is_named_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.training.train.train", recorder(calls, FINISHED))
    named = ["--auxiliary.objective.name", "premier_taco", "--auxiliary.objective.window", "3", "--icon.weight=0.5"]
    main(["train", "diff_c-robosuite", *named, "--data", "d", "--out", "o"])
    recipe = calls[0][0]["recipe"]
    assert (recipe.auxiliary.objective.name, recipe.auxiliary.objective.window) == ("premier_taco", 3)
    assert (recipe.icon.weight, recipe.icon.agent_keys, recipe.crossway.weight) == (0.5, 10, 0)


def test_help_after_a_recipe_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["train", "decisionnce_t-demo", "--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    keys = [key.replace("_", "-") for key in _dotted(load_recipe("decisionnce_t-demo"))]
    keys.remove("encoder.calibration")  # results of training
    keys.remove("encoder.state")
    assert len(keys) > 30
    assert not [key for key in keys if f"--{key}" not in text]


def _dotted(config: BaseModel, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in type(config).model_fields:
        value = getattr(config, name)
        found += _dotted(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else [prefix + name]
    return found


@pytest.mark.parametrize(
    ("arguments", "module", "work"),
    [
        (["report", "run"], "jinja2", "counterpoint.evaluation.report.write_report"),
        (["compare", "run", "--data", "d", "--out", "o"], "sklearn", "counterpoint.training.compare.compare"),
        (["reward", "v.mp4", "--model", "m", "--out", "o"], "matplotlib", "counterpoint.rewards.curves.reward_command"),
        (["collect", "metaworld", "--out", "o"], "metaworld", "counterpoint.envs.metaworld.collect.collect_metaworld"),
    ],
)
def test_a_missing_extra_is_said_before_the_work(
    arguments: list[str], module: str, work: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(work, recorder(calls))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as done:
        main(arguments)
    captured = capsys.readouterr()
    assert (done.value.code, calls, captured.out) == (2, [], "")
    assert captured.err.startswith(f"counterpoint: {module} is not installed. Hint: ")


def test_warnings_of_libraries_stay_off_the_terminal(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def noisy(**arguments: object) -> None:
        warnings.warn("nearly constant", stacklevel=1)
        if not sys.warnoptions:
            warnings.filterwarnings("always", category=DeprecationWarning)  # as gymnasium does when it is imported
            warnings.warn("out of date", DeprecationWarning, stacklevel=1)

    monkeypatch.setattr("counterpoint.encoders.convert.convert_checkpoint", noisy)
    monkeypatch.setattr(sys, "warnoptions", [])
    main(["convert", "actol", "file", "--out", "o"])
    assert not recwarn.list
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    main(["convert", "actol", "file", "--out", "o"])
    assert len(recwarn.list) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out.startswith("counterpoint 0.")


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m counterpoint recipes | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_place_that_cannot_be_written_to_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dm_control")
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
    ("arguments", "expected"),
    [
        (
            ["cloning", "--train.steps=5", "--data", "d", "--out", "o", "--start-from", "runs/a.b"],
            ("cloning", {"train.steps": 5}, ("d",), None, "runs/a.b"),
        ),
        (
            ["td_infonce", "--env", "FetchReach-v4", "--out", "o", "--agent.discount=0.95"],
            ("agent", {"agent.discount": 0.95}, (), "FetchReach-v4", None),
        ),
        (
            ["premier_taco-metaworld", "--data", "a", "b", "--objective.window=3", "--out", "o"],
            ("transitions", {"objective.window": 3}, ("a", "b"), None, None),
        ),
    ],
)
def test_train_passes_everything_on(
    arguments: list[str], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.training.train.train", recorder(calls, FINISHED))
    main(["train", *arguments])
    ((given,),) = calls
    recipe, kind, changed, data, *rest = given["recipe"], *expected
    passed = (recipe.kind, tuple(map(str, given["data"])), str(given["out"]), given["env"], given["start_from"])
    assert passed == (kind, data, "o", *rest)
    assert given["device"] is None
    plain = load_recipe(arguments[0], changed, data=data, env=given["env"])
    assert recipe.model_dump() == plain.model_dump()
    assert capsys.readouterr().out == "Wrote o/model\n"


def result_file(path: Path, **changes: Any) -> Path:
    """Write a report of 50 episodes, 43 of them solved."""
    success = {"value": 0.86, "low": 0.7375, "high": 0.9305, "n": 50, "method": "Wilson"}
    path.write_text(json.dumps({"success": success, "simulator_errors": 0} | changes))
    return path


def test_training_ends_with_the_success_of_its_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result_file(tmp_path / "result.json")
    finished = SimpleNamespace(main=True, folder=tmp_path, model=tmp_path / "model")
    monkeypatch.setattr("counterpoint.training.train.train", recorder([], finished))
    main(["train", "td_infonce", "--env", "FetchReach-v4", "--out", str(tmp_path)])
    assert capsys.readouterr().out == f"Wrote {tmp_path}/model: success 0.86 [0.74, 0.93] in 50 episodes\n"


def test_evaluate_passes_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    path = result_file(tmp_path / "evaluation.json", simulator_errors=1)
    monkeypatch.setattr("counterpoint.evaluation.evaluate.evaluate", recorder(calls, path))
    words = [
        "--episodes",
        "3",
        "--seed",
        "7",
        "--video",
        "2",
        "--ensemble",
        "0.01",
        "--sampler",
        "ddpm",
        "--steps",
        "5",
    ]
    main(["evaluate", "r", "--env", "metaworld/bin-picking@corner", *words])
    settings: dict[str, object] = {"run": "r", "env": "metaworld/bin-picking@corner", "device": None}
    settings |= {"episodes": 3, "envs": 2, "seed": 7, "video": 2, "ensemble": 0.01, "sampler": "ddpm", "steps": 5}
    assert calls == [(settings,)]
    told = "success 0.86 [0.74, 0.93] in 50 episodes, 1 of them ended by an error of the simulator"
    assert capsys.readouterr().out == f"Wrote {path}: {told}\n"


def test_evaluate_ends_with_the_return_where_there_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evaluation.json"
    result_file(path, success=None, **{"return": {"value": 12.3456, "low": None, "high": None, "n": 1}})
    monkeypatch.setattr("counterpoint.evaluation.evaluate.evaluate", recorder([], path))
    main(["evaluate", "r"])
    assert capsys.readouterr().out == f"Wrote {path}: return 12.35 in 1 episode\n"


def test_plan_takes_the_planner_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.evaluation.plan.plan", recorder(calls))
    main(["plan", "kitchen/light_on@right", "--reward", "runs/mine", "--horizon", "20", "--out", "o.json"])
    ((given,),) = calls
    config, out = given["config"], given["out"]
    assert (config.env, config.reward, config.horizon, out) == (
        "kitchen/light_on@right",
        "runs/mine",
        20,
        Path("o.json"),
    )
    assert given["device"] == "cpu"


def test_collect_dmc_records_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("counterpoint.envs.dmc.collect.collect_dmc", recorder(calls, {}))
    main(["collect", "dmc", "--out", "o", "--tasks", "walker-walk", "cheetah-run", "--kind", "expert"])
    config = calls[0][0]["config"]
    assert (config.out, config.tasks, config.kind) == (Path("o"), ("walker-walk", "cheetah-run"), "expert")
    assert (config.episodes, config.size, config.seed) == (None, 84, 0)
