from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from counterpoint.config import FrozenConfig
from counterpoint.errors import BadInputError
from studies import harness
from studies.harness import Study, Trial, load_preset, main, over_seeds, presets, read_rows, study_of, write_rows
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


def start_another() -> dict[str, Any]:
    """Start a process that uses 0.3 s of processor time."""
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    return {}


def fail() -> dict[str, Any]:
    raise FullError


def sleep() -> dict[str, Any]:
    time.sleep(600)
    return {}


def trials() -> list[Trial]:
    return [Trial(name, partial(measure, float(place)), 2, {"row": name.upper()}) for place, name in enumerate("abc")]


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


def test_processor_time_counts_what_a_trial_starts(tmp_path: Path) -> None:
    study = Study("started", tmp_path, Config())
    study.run([Trial("a", start_another)])
    assert study.read("a")["processor_seconds"] >= 0.3


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_killed_worker_is_reported_and_nothing_hangs(tmp_path: Path) -> None:
    study = Study("my study", tmp_path, Config())
    with pytest.raises(BadInputError, match="my study: found a worker process that was killed"):
        study.run([Trial("a", end_at_once), Trial("b", sleep)], 2)


@pytest.mark.release
def test_ray_runs_trials_and_reports_errors_and_killed_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    alone = Study("alone", tmp_path / "alone", Config())
    alone.run(trials())
    study = Study("on ray", tmp_path / "ray", Config())
    study.run(trials()[:1])
    kept = study.path("a").read_text()
    with harness.on_ray("local", 2):
        study.run(trials(), 2)
        assert study.path("a").read_text() == kept
        found = [study.read(name) for name in "abc"]
        assert [one["value"] for one in found] == [alone.read(name)["value"] for name in "abc"]
        assert os.getpid() not in {one["process"] for one in found[1:]}
        assert {one["threads"] for one in found} == {1}
        with pytest.raises(FullError):
            study.run([Trial("d", fail), Trial("e", fail)], 2)
        with pytest.raises(BadInputError, match="on ray: found a worker process that was killed"):
            study.run([Trial("f", end_at_once), Trial("g", sleep)], 2)
    assert not study.path("d").exists()


def test_an_unknown_cluster_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with pytest.raises(SystemExit) as done:
        main("occupancy", ["--preset", "quick", "--out", str(tmp_path / "o"), "--ray", "127.0.0.1:1"])
    assert done.value.code == 2
    assert "cluster 127.0.0.1:1: found nothing that answers" in capsys.readouterr().err


@pytest.mark.slow
def test_the_error_of_a_trial_arrives(tmp_path: Path) -> None:
    with pytest.raises(FullError):
        Study("failing", tmp_path, Config()).run([Trial("a", fail), Trial("b", fail)], 2)


def test_results_become_one_table(tmp_path: Path) -> None:
    study = Study("table", tmp_path, Config())
    study.run(trials())
    result = study.finish("numbers", {"found": [1.0, 2.0]}, "text", facts={"data": "digest"})
    assert json.loads((tmp_path / "numbers.json").read_text()) == result
    assert result["config"] == {"size": 3, "processes": 1}
    assert result["provenance"]["packages"]
    assert (tmp_path / "numbers.md").read_text() == "text"
    rows, about = read_rows(tmp_path / "results.parquet")
    assert [row["trial"] for row in rows] == ["a", "b", "c"]
    assert [row["value"] for row in rows] == [0.0, 1.0, 2.0]
    assert [row["row"] for row in rows] == ["A", "B", "C"]
    assert rows[2]["curve"] == [2.0, 4.0]
    assert about == {key: result[key] for key in ("config", "data", "environments", "provenance")}


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


def test_rows_with_other_columns_share_a_file(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"trial": "a", "tree": {"x": [1, None]}}, {"trial": "b", "value": 0.1, "none": None}]
    write_rows(tmp_path / "rows.parquet", rows, {"commit": "c"})
    del rows[1]["none"]  # an empty cell
    assert read_rows(tmp_path / "rows.parquet") == (rows, {"commit": "c"})


def test_the_mean_over_seeds_has_an_interval_where_seeds_are_several() -> None:
    assert over_seeds([0.5]) == {"mean": 0.5, "low": None, "high": None, "values": [0.5]}
    assert over_seeds([0.5, float("nan")])["mean"] is None
    three = over_seeds([0.0, 1.0, 1.0], share=True)
    assert (three["mean"], three["low"], three["high"]) == (pytest.approx(2 / 3), 0.0, 1.0)


CALLS: list[tuple[OccupancyConfig, Path]] = []


def record(config: OccupancyConfig, out: Path) -> None:
    CALLS.append((config, out))


def test_the_command_line_passes_preset_and_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.occupancy.run.occupancy_study", record)
    main("occupancy", ["--preset", "quick", "--out", "o", "--seeds=4", "--sizes=[1000,100000]"])
    ((config, out),) = CALLS
    assert (config.seeds, config.sizes, config.steps, out) == (4, (1000, 100000), 5000, Path("o"))
    for wrong in (["--seeds"], ["--sedes=4"], ["--seeds=none"]):
        with pytest.raises(SystemExit) as done:
            main("occupancy", ["--preset", "quick", "--out", "o", *wrong])
        assert done.value.code == 2
    assert "did you mean 'seeds'" in capsys.readouterr().err


def small(config: Config, out: Path) -> None:
    study = Study("small", out, config)
    study.run(trials())
    study.finish("small", {})


def test_a_result_is_kept_where_the_tables_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "presets", lambda study: {"cpu": {"core_hours": 0.5}})
    monkeypatch.setattr(harness, "study_of", lambda name: small)
    main("small", ["--out", str(tmp_path / "out"), "--size=4", "--keep", "kept"])
    assert capsys.readouterr().out.startswith("Preset cpu of small: about 0.5 core-hours in all\n")
    rows, about = read_rows(tmp_path / "kept.parquet")
    assert [row["value"] for row in rows] == [0.0, 1.0, 2.0]
    assert about["command"] == f"python -m studies.small --out {tmp_path / 'out'} --size=4 --keep kept"
    assert about["config"]["size"] == 4


@pytest.mark.parametrize("name", tomllib.loads((harness.RESULTS.parent / "presets.toml").read_text()))
def test_every_preset_is_a_configuration_of_its_study(name: str) -> None:
    kind = get_type_hints(study_of(name))["config"]
    for preset, tree in presets(name).items():
        load_preset(name, kind, preset, {key: "path" for key in paths(kind) if key not in tree})


def paths(kind: type[FrozenConfig], prefix: str = "") -> Iterator[str]:
    """The settings that every command must name, as dotted keys."""
    for key, field in kind.model_fields.items():
        if field.annotation is str and field.is_required():
            yield f"{prefix}{key}"
        elif isinstance(field.annotation, type) and issubclass(field.annotation, FrozenConfig):
            yield from paths(field.annotation, f"{prefix}{key}.")


def test_every_preset_states_its_cost_and_fits_a_small_machine() -> None:
    folder = harness.RESULTS.parent
    names = [
        *tomllib.loads((folder / "presets.toml").read_text()),
        *(p.parent.name for p in folder.glob("*/presets.toml")),
    ]
    for name in names:
        for preset, tree in presets(name).items():
            costs = {key: tree[key] for key in harness.COSTS if key in tree}
            assert len(costs) == 1, f"{name}.{preset} states {costs}"
            assert 0 < costs.get("core_hours", 5) <= 5
