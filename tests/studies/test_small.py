from __future__ import annotations

from pathlib import Path

import pytest

from studies.actol_as_trained import FORMS, ActolAsTrainedConfig, actol_as_trained_study
from studies.epic_clip import NARRATION, lay_out
from studies.harness import kept, read_rows
from studies.importance_weight_rows import ImportanceWeightRowsConfig, importance_weight_rows_study


@pytest.mark.slow
def test_frames_settle_on_the_line_under_the_papers_form_alone(tmp_path: Path) -> None:
    actol_as_trained_study(ActolAsTrainedConfig(videos=8, steps=300), tmp_path)
    rows, _ = read_rows(tmp_path / "results.parquet")
    off = {row["form"]: row["distance_from_the_line"] for row in rows}
    assert list(off) == list(FORMS)
    assert off["Eq. 4"] < 0.05 < off["as trained (b46fa66)"]
    assert (tmp_path / "actol_as_trained.svg").read_text().startswith("<?xml")


def test_row_sums_give_the_numbers_that_the_page_reports(tmp_path: Path) -> None:
    importance_weight_rows_study(ImportanceWeightRowsConfig(row_sums=(1, 16)), tmp_path)
    before = {row["row_sum"]: row for row in kept("importance_weight_rows")["rows"]}
    for row in read_rows(tmp_path / "results.parquet")[0]:
        for key in ("effective_discount", "error"):
            assert row[key] == pytest.approx(before[row["row_sum"]][key], abs=1e-10)


def test_a_clip_is_laid_out_as_the_data_set_is_published(tmp_path: Path) -> None:
    sample, root = tmp_path / "sample", tmp_path / "root"
    (sample / "frames").mkdir(parents=True)
    root.mkdir()
    for number in (7, 8):
        (sample / "frames" / f"frame_{number:010d}.jpg").write_bytes(b"")
    (sample / "EPIC_100_validation.csv").write_text("narration_id,start_frame,stop_frame,narration\nother\n")
    (sample / "EPIC_100_video_info.csv").write_text("video_id,fps\n")
    lay_out(sample, root)
    assert (root / "EPIC_100_train.csv").read_text().splitlines()[1] == f"P01_14_0,7,8,{NARRATION}"
    assert len(list((root / "P01" / "rgb_frames" / "P01_14").iterdir())) == 2
