"""Training of dual encoders on clips: hold-out, frozen backbones, cameras, one instruction."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from counterpoint.config import recipe_names
from counterpoint.data.episode import Episode, Segment
from counterpoint.data.store import MemoryStore
from counterpoint.data.store_views import CamerasApart, SubsetStore
from counterpoint.encoders import DualEncoder
from counterpoint.errors import BadInputError
from counterpoint.training import clips
from counterpoint.training.clips import DataConfig, open_clips, prepared_clips
from counterpoint.training.plan import Given
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from tests.formats.made import write_videos
from tests.marks import quick

pytest.importorskip("timm", reason="needs the extra `vision`")

SMALL = {
    "encoder.image_model": "test_resnet",
    "encoder.pretrained": None,
    "encoder.image_size": 64,
    "encoder.embed_dim": 16,
    "train.steps": 4,
    "train.batch_size": 8,
    "train.eval_batches": 1,
    "train.eval_every": 4,
    "data.folds": 0,
}
VIDEOS = [name for name in recipe_names() if name.endswith("-videos")]


def episodes(count: int, instructions: Sequence[str], cameras: Sequence[str] = ("front",)) -> MemoryStore:
    rng, made = np.random.default_rng(0), []
    for number in range(count):
        T = int(rng.integers(12, 18))
        frames = {camera: rng.integers(0, 256, (T, 32, 40, 3), dtype=np.uint8) for camera in cameras}
        made.append(Episode(frames, instructions[number % len(instructions)], np.arange(T) / 5))
    return MemoryStore(made)


FROM_SCRATCH: dict[str, Any] = {
    "encoder.image": "convnet",
    "encoder.image_model": "",
    "encoder.freeze_image": False,
    "encoder.dropout": 0.0,
}


def trained(recipe: str, data: Any, out: Path, **changes: Any) -> Any:
    overrides = SMALL | {"data.cache": str(out.parent / "cache")} | changes
    return train(recipe, data, out, overrides=overrides)


@pytest.mark.parametrize("recipe", quick(VIDEOS[:1], VIDEOS))
def test_every_videos_recipe_trains_its_heads_on_features(recipe: str, tmp_path: Path) -> None:
    store = episodes(10, ["open the box", "close the box"])
    run = trained(recipe, store, tmp_path / "run", **{"data.holdout": 0.2})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert len(config["held_out"]) == 2
    encoder = DualEncoder.from_pretrained(run.model)
    assert encoder.config.freeze_image
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} >= {"train", "val"}


@pytest.mark.parametrize("recipe", quick(["decisionnce_p-videos"], VIDEOS))
def test_judges_learn_from_the_other_videos_and_the_model_from_all(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = episodes(8, ["open the box", "close the box"]), tmp_path / "run"
    run = trained(recipe, store, out, **{"data.folds": 2})
    assert capsys.readouterr().out.count("Mean error of progress on ") == 1  # of the model, and not of its judges
    config = json.loads((out / "config.json").read_text())
    assert sorted(episode for part in config["judged"] for episode in part) == list(range(8))
    assert "held_out" not in config
    for number, part in enumerate(config["judged"]):
        assert len(part) == 4
        assert json.loads((out / "judges" / str(number) / "config.json").read_text())["held_out"] == part
    calibration = DualEncoder.from_pretrained(run.model).config.calibration
    assert calibration is not None
    assert (calibration.measured_on, calibration.measured_episodes) == ("cross-fitting", 8)
    weights = load_file(run.model / "model.safetensors")
    made = {path: path.stat().st_mtime_ns for path in (out / "judges").rglob("model.safetensors")}
    again = trained(recipe, store, out, **{"data.folds": 2})
    assert {path: path.stat().st_mtime_ns for path in made} == made
    for name, value in load_file(again.model / "model.safetensors").items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=0)
    alone = trained(recipe, store, tmp_path / "alone")
    for name, value in load_file(alone.model / "model.safetensors").items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=0)


@pytest.mark.slow  # starts two processes
def test_judges_of_other_processes_are_equal_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    data, overrides = write_videos(tmp_path / "data", count=6), SMALL | {"data.folds": 3}
    rows = [f"videos/{number}.mp4,task {number % 2}" for number in range(6)]
    (data / "manifest.csv").write_text("\n".join(["video,instruction", *rows]) + "\n")
    runs = [
        train("decisionnce_p-videos", data, tmp_path / str(count), overrides=overrides, processes=count)
        for count in (1, 2)
    ]
    assert "Training 3 judges, 1 at a time beside the model itself" in capfd.readouterr().out
    again = train("decisionnce_p-videos", data, tmp_path / "2", overrides=overrides, processes=2)
    assert "Training" not in capfd.readouterr().out  # all judges are there
    assert again.folder == runs[1].folder
    files = [{path.relative_to(run.folder) for path in run.folder.rglob("*.safetensors")} for run in runs]
    assert files[0] == files[1]
    assert len({name for name in files[0] if name.parts[0] == "judges" and "model" in name.parts}) == 3
    for name in files[0]:
        one, two = (load_file(run.folder / name) for run in runs)
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, rtol=0, atol=0)


def test_one_judge_is_trained_where_all_would_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clips, "LONG", 1e-4)
    store, out = episodes(8, ["open the box", "close the box"]), tmp_path / "run"
    trained("decisionnce_p-videos", store, out, **{"data.folds": 4})
    config = json.loads((out / "config.json").read_text())
    assert [len(part) for part in config["judged"]] == [2]
    assert [path.name for path in (out / "judges").iterdir()] == ["0"]
    said = capsys.readouterr().out
    assert "Only 2 of 8 videos are judged" in said
    assert said.count("cosines of their embeddings") == 1


@pytest.mark.parametrize(
    ("changes", "judges", "said"),
    [
        ({}, 5, ""),
        ({"train.steps": 60000}, 1, "5 judges would take about 125 minutes on two cores"),
        (FROM_SCRATCH, 1, "several trainings of the whole backbone"),
    ],
)
def test_the_number_of_judges_follows_from_their_time(
    changes: dict[str, Any], judges: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = episodes(10, ["open the box", "close the box"])
    recipe = load_recipe("decisionnce_p-videos", changes)
    assert len(recipe.judges(Given((store,)))) == judges
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["rewound", "clipped", "failed", "counterfactual"])
def test_altered_clips_are_trained_on_and_not_calibrated_on(kind: str, tmp_path: Path) -> None:
    store, found = episodes(8, ["open the box", "wave"]), []
    store.episodes = (replace(store.episodes[0], success=False), *store.episodes[1:])
    for name, kinds in {"plain": (), "altered": (kind,)}.items():
        run = trained("decisionnce_p-videos", store, tmp_path / name, **{"data.altered": kinds})
        found.append(load_file(run.model / "model.safetensors"))
        calibration = DualEncoder.from_pretrained(run.model).config.calibration
        assert calibration is not None
        assert calibration.measured_episodes == 7  # the successful episodes as recorded
    assert any(not value.equal(found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize(
    ("recipe", "kind", "said"),
    [
        ("vip-videos", "rewound", "contrasts no instructions"),
        ("actol-videos", "rewound", "contrasts no instructions"),
        ("decisionnce_p-videos", "failed", "no training episode that is marked as failed"),
        ("decisionnce_p-videos", "counterfactual", "no word with an opposite"),
        ("liv-videos", "counterfactual", "no use for them"),
    ],
)
def test_alterations_that_would_change_nothing_are_refused(recipe: str, kind: str, said: str, tmp_path: Path) -> None:
    texts = ["wave", "nod"] if "no word" in said else ["open the box", "wave"]
    with pytest.raises(BadInputError, match=said):
        trained(recipe, episodes(4, texts), tmp_path / "run", **{"data.altered": (kind,)})
    assert not (tmp_path / "run").exists()


def test_decoding_each_batch_trains_as_a_training_store_does(tmp_path: Path) -> None:
    data = write_videos(tmp_path / "data", count=4)
    changes = FROM_SCRATCH | {"objective.augment": True, "data.size": 32, "data.fit": "shorter"}
    found = {}
    for decode in ("once", "always"):
        run = trained("decisionnce_t-videos", data, tmp_path / decode, **changes, **{"data.decode": decode})
        found[decode] = load_file(run.model / "model.safetensors")
        assert bool(list((tmp_path / "cache").glob("*/store.json"))) == (decode == "once")
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert all(value.equal(found["always"][name]) for name, value in found["once"].items())


@pytest.mark.release
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_tower_trains_as_a_plain_one_does(tmp_path: Path) -> None:
    store = episodes(6, ["open the box", "close the box"])
    gentle = {"optimizer.lr": 0.01, "optimizer.eps": 1.0}  # training magnifies rounding
    small = {"encoder.image_size": 32, "encoder.embed_dim": 16, "train.steps": 3, "train.batch_size": 4}
    found, frames = {}, torch._dynamo.utils.counters["frames"]
    for compiled in (False, True):
        frames.clear()
        run = train(
            "decisionnce_t-demo", store, tmp_path / str(compiled), overrides=small | gentle | {"compile": compiled}
        )
        assert bool(frames) == compiled
        found[compiled] = load_file(run.model / "model.safetensors")
    assert found[True].keys() == found[False].keys()
    for name, value in found[False].items():
        torch.testing.assert_close(found[True][name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_compiling_and_computing_again_exclude_each_other() -> None:
    with pytest.raises(BadInputError, match=r"compile and memory\.recompute exclude each other"):
        load_recipe("decisionnce_t-demo", {"compile": True, "memory.recompute": True})


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name.endswith("-clip")])
def test_a_twin_starts_from_clip_and_is_its_sibling_otherwise(recipe: str) -> None:
    twin, sibling = (load_recipe(name).model_dump() for name in (recipe, recipe.replace("-clip", "-videos")))
    assert twin["encoder"]["image"] == twin["encoder"]["text"] == "open_clip"
    assert twin["encoder"]["pretrained"] == "openai"
    assert {key: value for key, value in twin.items() if key != "encoder"} == {
        key: value for key, value in sibling.items() if key != "encoder"
    }


def test_a_folder_of_videos_is_split_by_instruction(tmp_path: Path) -> None:
    folder = write_videos(tmp_path / "videos", count=6)
    manifest = folder / "manifest.csv"
    manifest.write_text(re.sub(r"task \d", "open the box", manifest.read_text()))
    trained("vip-videos", folder, tmp_path / "run", **{"data.holdout": 0.2})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["held_out"]
    trained("vip-videos", folder, tmp_path / "all")
    assert not {"held_out", "judged"} & json.loads((tmp_path / "all" / "config.json").read_text()).keys()
    with pytest.raises(BadInputError, match=r"data\.fold: found 2; expected 0 to 1"):
        trained("vip-videos", folder, tmp_path / "no", **{"data.folds": 2, "data.fold": 2})
    with pytest.raises(BadInputError, match=r"data\.fold: found 0; expected none"):
        trained("vip-videos", folder, tmp_path / "no", **{"data.fold": 0})


def test_augmented_rows_are_trained_on(tmp_path: Path) -> None:
    run = trained("decisionnce_t-videos", episodes(6, ["a", "b"]), tmp_path / "run", **{"data.augmented_rows": 2})
    assert run.model.is_dir()
    with pytest.raises(BadInputError, match=r"and data\.augmented_rows"):
        trained("decisionnce_t-videos", episodes(6, ["a", "b"]), tmp_path / "no", **{"objective.augment": True})


@pytest.mark.parametrize(("name", "extra"), [("decisionnce_t", True), ("clip", True), ("liv", False), ("r3m", False)])
def test_one_instruction_has_nothing_to_be_contrasted_with(name: str, extra: bool, tmp_path: Path) -> None:
    store = episodes(6, ["open the box"])
    with pytest.raises(BadInputError, match="actol-videos, vip-videos or tcn-videos") as refused:
        trained(f"{name}-videos", store, tmp_path / "run")
    assert ("--extra-instructions" in str(refused.value)) == extra
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", quick(["vip"], ["actol", "vip", "tcn"]))
def test_progress_is_learned_from_one_instruction(name: str, tmp_path: Path) -> None:
    assert trained(f"{name}-videos", episodes(6, ["open the box"]), tmp_path / "run").model.is_dir()


def test_further_instructions_are_negatives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, file = episodes(6, ["open the box"]), tmp_path / "others.txt"
    file.write_text("close the box\n\nopen the box\nnone\n")
    trained("decisionnce_t-videos", store, tmp_path / "run", extra_instructions=str(file))
    said = capsys.readouterr().out
    assert said.count("3 instructions: cosines of their embeddings") == 1
    assert said.count("Placeholders, which name no task: 'none'; to replace them") == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] > 0 for line in lines if "loss" in line)
    with pytest.raises(BadInputError, match="one of decisionnce_p, decisionnce_t, clip_goal"):
        trained("vip-videos", store, tmp_path / "vip", extra_instructions=str(file))
    file.write_text("open the box\n")
    with pytest.raises(BadInputError, match="no further instruction"):
        trained("decisionnce_t-videos", store, tmp_path / "none", extra_instructions=str(file))


def test_every_camera_is_a_sample_of_its_own(tmp_path: Path) -> None:
    store = episodes(6, ["a", "b"], cameras=("front", "wrist"))
    apart = CamerasApart(store, store.cameras)
    assert len(apart.episodes) == 12
    for episode in range(6):
        steps = np.arange(3)
        assert np.array_equal(apart.frames(episode, steps), store.frames(episode, steps, "front"))
        assert np.array_equal(apart.frames(6 + episode, steps), store.frames(episode, steps, "wrist"))
    for cameras in (("all",), ("wrist",), ("wrist", "front")):
        assert trained("vip-videos", store, tmp_path / "-".join(cameras), **{"data.cameras": cameras}).model.is_dir()
    with pytest.raises(BadInputError, match="'top'"):
        trained("vip-videos", store, tmp_path / "top", **{"data.cameras": ("top",)})


def test_a_run_ends_at_the_same_heads_whatever_was_computed_before(tmp_path: Path) -> None:
    store = episodes(6, ["a", "b"])
    first = DualEncoder.from_pretrained(trained("vip-videos", store, tmp_path / "one").model)
    second = DualEncoder.from_pretrained(trained("vip-videos", store, tmp_path / "two").model)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def worded(*texts: str, segments: tuple[Segment, ...] = ()) -> MemoryStore:
    """One episode of six steps for each text, all with these segments."""
    frames = {"front": np.zeros((6, 32, 40, 3), np.uint8)}
    return MemoryStore([Episode(frames, text, np.arange(6) / 5, segments=segments) for text in texts])


def test_episodes_without_an_instruction_are_left_out_of_language(capsys: pytest.CaptureFixture[str]) -> None:
    data = worded("open", "", "close", "\u200b ", "open", "close")
    train, held_out = open_clips(data, DataConfig(holdout=0.5), language=True)
    assert isinstance(train, SubsetStore)
    assert isinstance(held_out, SubsetStore)
    assert sorted((*train.indices, *held_out.indices)) == [0, 2, 4, 5]
    assert "Left out 2 of 6 episodes: they have no instruction" in capsys.readouterr().out
    whole, _ = open_clips(data, DataConfig(), language=False)
    assert len(whole.episodes) == 6
    with pytest.raises(BadInputError, match="no episode with an instruction"):
        open_clips(worded("", ""), DataConfig(), language=True)


@pytest.mark.parametrize(("recipe", "left_out"), [("actol-videos", True), ("vip-videos", False), ("r3m-videos", False)])
def test_only_language_needs_instructions(recipe: str, left_out: bool, capsys: pytest.CaptureFixture[str]) -> None:
    opened: Any = load_recipe(recipe, SMALL)
    opened.open(Given((worded("open", "", "close"),)))
    assert ("Left out 1 of 3" in capsys.readouterr().out) == left_out


def test_one_instruction_beside_empty_ones_is_one() -> None:
    opened: Any = load_recipe("decisionnce_t-videos", SMALL)
    with pytest.raises(BadInputError, match="found one instruction, 'open'"):
        opened.open(Given((worded("open", "", "open"),)))


def test_segments_are_clips_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    data = worded("reach; grasp", segments=((0, "reach"), (4, "grasp")))
    clips, _ = open_clips(data, DataConfig(segments="task"), language=True)
    assert [(info.instruction, info.length) for info in clips.episodes] == [("reach", 4), ("grasp", 2)]
    assert capsys.readouterr().out == ""
    whole, _ = open_clips(data, DataConfig(), language=True)
    assert [info.instruction for info in whole.episodes] == ["reach; grasp"]
    assert "1 of 1 episodes have several tasks" in capsys.readouterr().out


def test_training_frames_keep_their_shape_and_short_clips_are_dropped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    store: Any = MemoryStore(
        [
            Episode({"front": rng.integers(0, 256, (T, 32, 57, 3), dtype=np.uint8)}, "open", np.arange(T) / 5)
            for T in (9, 10, 30)
        ]
    )
    config = DataConfig(size=16, fit="shorter", min_length=10, cache=str(tmp_path))
    found, _ = prepared_clips(store, config)
    assert found.lengths.tolist() == [10, 30]
    assert found.frames(0, np.arange(10)).shape == (10, 16, round(57 / 2), 3)  # 16 x 16 when squeezed
