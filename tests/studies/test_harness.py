from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError
from studies import harness
from studies.harness import Study, Trial, load_preset, main, read_table
from studies.icon.config import ComparisonConfig
from studies.occupancy.run import OccupancyConfig


class Config(FrozenConfig):
    size: int = 3
    processes: int = 1


class FullError(Exception):
    pass


def measure(value: float) -> dict[str, Any]:
    print("a line for the log")
    return {"value": value, "curve": [value, 2 * value], "process": os.getpid(), "threads": torch.get_num_threads()}


def end_at_once() -> dict[str, Any]:
    """As the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fail() -> dict[str, Any]:
    raise FullError


def sleep() -> dict[str, Any]:
    time.sleep(600)
    return {}


def trials() -> list[Trial]:
    return [Trial(name, partial(measure, float(place)), 2) for place, name in enumerate("abc")]


def test_trials_run_in_this_process_where_one_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        study = Study("alone", tmp_path, Config())
        study.run(trials())
        assert torch.get_num_threads() == 2
        with pytest.raises(FullError):
            study.run([Trial("d", fail)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    found = study.read("b")
    assert (found["value"], found["process"], found["threads"]) == (1.0, os.getpid(), 1)
    assert {"seconds", "processor_seconds"} <= found.keys()
    assert (tmp_path / "logs" / "b.log").read_text() == "a line for the log\n"
    assert "a line" not in capsys.readouterr().out
    assert not study.path("d").exists()


def test_workers_give_the_same_results_and_finished_trials_are_kept(tmp_path: Path) -> None:
    study = Study("workers", tmp_path, Config())
    study.run(trials()[:1])
    kept = study.path("a").read_text()
    Study("workers", tmp_path, Config(processes=2)).run(trials(), 2)
    assert study.path("a").read_text() == kept
    found = [study.read(name) for name in "abc"]
    assert [one["value"] for one in found] == [0.0, 1.0, 2.0]
    assert found[1]["process"] != os.getpid()
    assert {one["threads"] for one in found} == {1}


def test_a_killed_worker_is_reported_and_nothing_hangs(tmp_path: Path) -> None:
    study = Study("my study", tmp_path, Config())
    with pytest.raises(BadInputError, match="my study: found a worker process that was killed"):
        study.run([Trial("a", end_at_once), Trial("b", sleep)], 2)


def test_the_error_of_a_trial_arrives(tmp_path: Path) -> None:
    with pytest.raises(FullError):
        Study("failing", tmp_path, Config()).run([Trial("a", fail), Trial("b", fail)], 2)


def test_results_become_one_table(tmp_path: Path) -> None:
    study = Study("table", tmp_path, Config())
    study.run(trials())
    result = study.finish("numbers", {"found": [1.0, 2.0]}, "text")
    assert json.loads((tmp_path / "numbers.json").read_text()) == result
    assert result["config"] == {"size": 3, "processes": 1}
    assert result["provenance"]["packages"]
    assert (tmp_path / "numbers.md").read_text() == "text"
    table = read_table(tmp_path / "results.parquet")
    assert table.trial.tolist() == ["a", "b", "c"]
    assert table.value.tolist() == [0.0, 1.0, 2.0]
    assert table.curve.tolist()[2] == [2.0, 4.0]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInputError, match="found a file"):
        Study("study", tmp_path / "file", Config())
    for text in ("not JSON", "[1]", '{"model_type": "bert"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInputError, match=r"a config.json of something else"):
            Study("study", tmp_path, Config())
        assert {path.name for path in tmp_path.iterdir()} == {"file", "config.json"}
    (tmp_path / "config.json").unlink()
    Study("study", tmp_path, Config())
    with pytest.raises(BadInputError, match="another configuration"):
        Study("study", tmp_path, Config(size=4))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"seconds": 1}'])
def test_a_damaged_result_is_reported(tmp_path: Path, damage: str) -> None:
    study = Study("study", tmp_path, Config())
    study.path("b").write_text(damage)
    with pytest.raises(BadInputError, match=r"b.json: found a damaged result"):
        study.check(trials())


def test_a_preset_takes_overrides_and_may_change_another() -> None:
    config = load_preset("icon", ComparisonConfig, "transfer", {"seeds": [7], "data.demonstrations": 4})
    assert (config.seeds, config.data.demonstrations, config.evaluation.ensemble) == ((7,), 4, 0.01)
    with pytest.raises(BadInputError, match="no such preset"):
        load_preset("icon", ComparisonConfig, "huge")
    with pytest.raises(BadInputError, match="sedes"):
        load_preset("icon", ComparisonConfig, "transfer", {"sedes": [7]})
    assert load_preset("occupancy", OccupancyConfig, "quick").sizes[-1] < OccupancyConfig().sizes[-1]


def test_the_command_line_passes_preset_and_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[OccupancyConfig, Path]] = []

    def run(config: OccupancyConfig, out: Path) -> None:
        calls.append((config, out))

    main("occupancy", OccupancyConfig, run, ["--preset", "quick", "--out", "o", "--seeds=4", "--sizes=[1000,100000]"])
    ((config, out),) = calls
    assert (config.seeds, config.sizes, config.steps, out) == (4, (1000, 100000), 5000, Path("o"))
    for wrong in (["--seeds"], ["--sedes=4"], ["--seeds=none"]):
        with pytest.raises(SystemExit) as done:
            main("occupancy", OccupancyConfig, run, ["--preset", "quick", "--out", "o", *wrong])
        assert done.value.code == 2
    assert "did you mean 'seeds'" in capsys.readouterr().err


def test_a_result_is_kept_where_the_tables_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def run(config: OccupancyConfig, out: Path) -> dict[str, Any]:
        return {"seeds": config.seeds}

    main("occupancy", OccupancyConfig, run, ["--preset", "quick", "--out", "o", "--keep", "small"])
    command = "python -m studies.occupancy --preset quick --out o --keep small"
    assert json.loads((tmp_path / "small.json").read_text()) == {"command": command, "seeds": 2}
