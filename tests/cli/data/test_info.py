from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info, other_scripts
from counterpoint.data.cache import cached
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.minari.writer import write_minari
from counterpoint.formats.video import encode_video
from tests.formats.lerobot.made import episode as made_episode
from tests.formats.lerobot.made import write_v30
from tests.formats.made import memory_store, smooth_frames, write_epic, write_lerobot, write_videos
from tests.formats.minari.made import goal_episodes
from tests.hub_here import hub_cache


def test_info_of_lerobot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info(write_lerobot(tmp_path / "data", splits={"train": "0:2", "val": "2:3"}))
    told = capsys.readouterr().out
    for fact in ("LeRobot", "3, of 3 to 7 frames", "15", "top 32x24, wrist 32x24", "4 dimensions", "3 dimensions"):
        assert fact in told
    for fact in ("train 0:2, val 2:3", "33% of 3 episodes", "task 0", "task 1"):
        assert fact in told


def test_a_data_set_of_the_hub_is_looked_at_by_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_cache(monkeypatch, tmp_path / "hub").add("lab/arms", write_lerobot(tmp_path / "data"), "v3.0")
    info("lab/arms@v3.0")
    assert "3, of 3 to 7 frames" in capsys.readouterr().out
    assert doctor(Path("lab/arms")) == 0
    assert "lab/arms: nothing wrong" in capsys.readouterr().out
    with pytest.raises(BadInputError, match="lab/absent: found no such path, and no data set of the Hub"):
        info("lab/absent")


def test_info_tells_how_many_episodes_record_success_and_how_long_all_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_dataset(write_v30(tmp_path / "set", [made_episode(number) for number in range(3)]))
    outcomes = zip(store.episodes, (True, False, None), strict=True)
    store.episodes = tuple(replace(one, success=success) for one, success in outcomes)
    monkeypatch.setattr("counterpoint.cli.data.info.open_dataset", lambda path, **_: store)
    info(tmp_path / "set")
    told = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "success 50% of the 2 of 3 episodes that record it" in told
    assert re.search(r"frames \d+, \d s ", told)


def test_info_tells_how_instructions_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["Open the door", "open the door.", "", "close it"]
    info(write_v30(tmp_path / "set", [made_episode(n, instruction=text) for n, text in enumerate(texts)]))
    told = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "3 different; 1 of 4 episodes have none; 2 differ only in case, punctuation or spacing" in told


def test_info_of_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info(write_epic(tmp_path / "epic"))
    told = capsys.readouterr().out
    for fact in ("EPIC-KITCHENS-100", "50, 59.94", "rgb 32x24", "1 segments whose frames are not there", "train 0:3"):
        assert fact in told
    folder = write_videos(tmp_path / "videos")
    (folder / "manifest.csv").write_text("video,instruction\nvideos/0.mp4,push the [red] block\n")
    info(folder)
    told = capsys.readouterr().out
    assert "not recorded" in told
    assert "push the [red] block" in told  # not taken for markup
    info(cached(memory_store(), size=16, root=tmp_path, progress=False).path)
    assert "training store" in capsys.readouterr().out


def test_info_lists_the_sizes_of_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_videos(tmp_path)
    encode_video(folder / "videos/1.mp4", smooth_frames(6, 40, 48), 10)
    info(folder)
    told = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "camera 48x32 (1 of 2 episodes) and 48x40 (1 of 2 episodes)" in told


def test_info_tells_of_scripts_that_the_default_encoders_do_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, found in (
        ("\u6253\u5f00 \u62bd\u5c49", {"CJK"}),
        ("\u043e\u0442\u043a\u0440\u043e\u0439 caf\u00e9", {"Cyrillic"}),
        ("open \N{LARGE RED SQUARE}\u2019s \u201cdoor\u201d \u2013 na\u00efvely", {"symbols"}),
        ("\u1ebd \uff21 open", {"Fullwidth"}),
    ):
        assert other_scripts(text) == found
    assert other_scripts("Ouvre la bo\u00eete, s'il te pla\u00eet!") == set()
    folder = write_videos(tmp_path)
    (folder / "manifest.csv").write_text(
        "video,instruction\nvideos/0.mp4,\u6253\u5f00\u62bd\u5c49\nvideos/1.mp4,open it\n", encoding="utf-8"
    )
    info(folder)
    assert "CJK in 1 of 2 instructions" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_folder_that_collect_wrote_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`collect pointmaze` writes OUT/train and OUT/val of Minari, `collect dmc` OUT/TASK of LeRobot."""
    monkeypatch.setenv("COLUMNS", "160")
    maze, tasks = tmp_path / "maze", tmp_path / "tasks"
    for split in ("train", "val"):
        write_minari(maze / split, goal_episodes((4, 6)), env_id="Maze-v0", description="made")
    for task in ("walker-walk", "cheetah-run"):
        write_lerobot(tasks / task)
    for folder, names, facts in (
        (maze, ("train", "val"), ("minari", "2, of 4 to 6 transitions")),
        (tasks, ("cheetah-run", "walker-walk"), ("LeRobot", "3, of 3 to 7 frames")),
    ):
        info(folder)
        shown = capsys.readouterr().out
        for name in names:
            assert str(folder / name) in shown
        for fact in facts:
            assert shown.count(fact) == 2
        assert doctor(folder) == 0
        shown = capsys.readouterr().out
        assert [f"{folder / name}: nothing wrong" in shown for name in names] == [True, True]
    (maze / "val/data/metadata.json").write_text('{"data_format": "hdf5"}')
    assert doctor(maze) == 2
    (tmp_path / "nothing/at all").mkdir(parents=True)
    with pytest.raises(BadInputError, match="a folder without a data set of a known format"):
        info(tmp_path / "nothing")


@pytest.mark.slow
def test_long_tables_are_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_videos(tmp_path)
    rows = [f"videos/0.mp4,push block {number}" for number in range(103)]
    (folder / "manifest.csv").write_text("\n".join(["video,instruction", *rows]))
    info(folder)
    assert "and 3 more" in capsys.readouterr().out
    (folder / "manifest.csv").write_text("\n".join(["video,instruction", *("nothing.mp4,push" for _ in range(104))]))
    assert doctor(folder) == 2
    assert "and 4 more" in capsys.readouterr().out
