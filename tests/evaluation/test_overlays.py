from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.errors import BadInputError
from counterpoint.evaluation.overlays import Overlay, open_overlays, overlay_panels
from counterpoint.formats import open_dataset
from tests.evaluation.viewed import write_balls, write_progress
from tests.formats.hdf5.made import write_robomimic
from tests.formats.made import write_lerobot

ENDS = [0.5] * 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_balls(tmp_path / "balls")


def test_files_in_the_data_set_are_found_and_stale_ones_left_out(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_progress(data / "sarm_progress.parquet", ENDS)
    write_progress(data / "reward_signals" / "judge.parquet", ENDS)
    write_progress(data / "old_progress.parquet", ENDS[:2], lengths=[10, 10])
    assert list(open_overlays(open_dataset(data))) == ["sarm", "judge"]
    said = capsys.readouterr().out
    assert said.startswith(f"Left out: {data / 'old_progress.parquet'}, episode 1: found 10 frames; expected 11")
    with pytest.raises(BadInputError, match="found 10 frames"):
        open_overlays(open_dataset(data), [str(data / "old_progress.parquet")])


def test_columns_of_a_file_are_chosen(data: Path, tmp_path: Path) -> None:
    path = write_progress(tmp_path / "both_progress.parquet", ENDS)
    table = pq.read_table(path)
    dense, reward = pa.array(np.full(len(table), 0.25)), pa.array(np.full(len(table), -3.0))
    pq.write_table(table.append_column("progress_dense", dense).append_column("reward", reward), path)
    store = open_dataset(data)
    assert list(open_overlays(store, [str(path)])) == ["both: sparse", "both: dense"]
    (one,) = open_overlays(store, [f"{path}:reward"]).values()
    assert (one.name, one.unit) == ("both: reward", False)
    assert one.signs(3) == {"last": -3.0, "fall": 0.0}
    with pytest.raises(BadInputError, match="did you mean 'reward'"):
        open_overlays(store, [f"{path}:rewards"])
    plain = write_progress(tmp_path / "other" / "both.parquet", ENDS)
    assert list(open_overlays(store, [str(path), str(plain)])) == ["both: sparse", "both: dense", str(plain)]


def test_columns_of_the_data_are_curves(tmp_path: Path) -> None:
    store = open_dataset(write_lerobot(tmp_path / "data"))
    for name, expected in (("action.3", store.actions(1)), ("state.0", store.state(1))):
        assert expected is not None
        (one,) = open_overlays(store, [name]).values()
        np.testing.assert_array_equal(one.read(1), expected[:, int(name[-1])])
    for name, words in (
        ("action", "found 4 numbers; expected one: action.0 to action.3"),
        ("action.4", "found 4 numbers"),
        ("acton", "did you mean 'action'"),
        ("absent.parquet", "which does not exist"),
    ):
        with pytest.raises(BadInputError, match=words):
            open_overlays(store, [name])


def test_recorded_rewards_are_curves_in_every_format(tmp_path: Path) -> None:
    store = open_dataset(write_robomimic(tmp_path / "demos.hdf5"))
    rewards = store.rewards(0)
    assert rewards is not None
    one = open_overlays(store)["recorded reward"]
    assert one.signs(0)["last"] == rewards[-1]


def test_signs_leave_out_what_is_missing() -> None:
    curves = [np.array([0.0, 0.8, np.nan, 0.3, 0.5, np.nan]), np.full(3, np.nan), None]
    one = Overlay("x", lambda episode: curves[episode])
    assert one.signs(0) == {"last": 0.5, "fall": 0.5}
    assert all(np.isnan(list(one.signs(episode).values())).all() for episode in (1, 2))

    def damaged(episode: int) -> None:
        raise BadInputError("episode", "damage", "a column", "record it again")

    assert np.isnan(Overlay("x", damaged).signs(0)["last"])


def test_progress_shares_a_chart_and_other_curves_have_their_own() -> None:
    unit = [Overlay(f"p{at}", lambda episode: np.linspace(0, 1, 10), unit=True) for at in range(7)]
    other = [Overlay("far", lambda episode: np.arange(10.0) * 9), Overlay("absent", lambda episode: None)]
    panels = overlay_panels([*unit[:3], *other, *unit[3:]], 0, [0.0, 0.4, 0.9], [0, 4, 9])
    assert [sorted(line.label for line in panel.lines) for panel in panels] == [
        [f"p{at}" for at in range(6)],
        ["p6"],
        ["far"],
    ]
    assert [panel.y_range for panel in panels] == [(-0.02, 1.02)] * 2 + [None]
    assert list(panels[2].lines[0].y) == [0.0, 36.0, 81.0]
    assert len({line.kind for line in panels[0].lines}) == 6
