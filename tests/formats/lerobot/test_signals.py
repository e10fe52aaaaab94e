from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.signals import read_signals

NUMBERS, LENGTHS = [0, 2, 5], [3, 2, 4]
"""Three episodes, of which others were removed."""


def table(numbers: list[int], lengths: list[int], **columns: Any) -> dict[str, Any]:
    places = {
        "index": np.arange(sum(lengths)),
        "episode_index": np.repeat(numbers, lengths),
        "frame_index": np.concatenate([np.arange(length) for length in lengths]),
    }
    return places | columns


def written(path: Path, columns: Mapping[str, Any]) -> Path:
    pq.write_table(pa.table(dict(columns)), path)
    return path


def test_rows_of_any_order_find_their_episodes(tmp_path: Path) -> None:
    columns = table(NUMBERS, LENGTHS, progress_sparse=np.linspace(0, 1, 9, dtype=np.float32), success=np.arange(9) > 4)
    mixed = np.random.default_rng(0).permutation(9)
    columns = {name: np.asarray(values)[mixed] for name, values in columns.items()}
    found = read_signals(written(tmp_path / "a.parquet", columns), NUMBERS, LENGTHS)
    assert list(found) == ["progress_sparse", "success"]
    np.testing.assert_allclose(np.concatenate(list(found["progress_sparse"].values())), np.linspace(0, 1, 9))
    assert [found["success"][place].tolist() for place in (1, 2)] == [[0, 0], [1, 1, 1, 1]]


def test_places_by_index_alone_are_enough_and_gaps_stay_gaps(tmp_path: Path) -> None:
    columns = table([5, 0], [4, 3], progress_dense=[None, 0.1, 0.2, 0.3, np.nan, 0.5, 1], text=list("abcdefg"))
    del columns["frame_index"]
    found = read_signals(written(tmp_path / "a.parquet", columns), NUMBERS, LENGTHS)
    assert list(found) == ["progress_dense"]
    assert {place: len(values) for place, values in found["progress_dense"].items()} == {0: 3, 2: 4}
    np.testing.assert_array_equal(found["progress_dense"][2], [np.nan, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (table([0, 1], [3, 2], p=np.zeros(5)), "found episode 1; expected episodes from 0 to 5"),
        (table([0, 2], [3, 4], p=np.zeros(7)), "episode 2: found 4 frames; expected 2, as in the data set"),
        (table([0], [3], p=np.zeros(3)) | {"frame_index": [0, 1, 1]}, "episode 0: found a frame_index that does not"),
        (table([0], [3]), "no column of numbers beside the places"),
        ({"frame_index": [0], "p": [1.0]}, "no column episode_index"),
        ({"episode_index": [0], "p": [1.0]}, "no column frame_index"),
        (table([0], [3], p=np.zeros(3)) | {"episode_index": [0, None, 0]}, "1 missing values in 'episode_index'"),
    ],
)
def test_files_of_other_data_are_refused(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=words):
        read_signals(written(tmp_path / "a.parquet", columns), NUMBERS, LENGTHS)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadInputError, match="a whole parquet file"):
        read_signals(tmp_path / "a.parquet", NUMBERS, LENGTHS)
