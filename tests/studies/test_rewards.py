from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from pydantic import ValidationError

from counterpoint.data.episode import Episode, EpisodeInfo, task_of
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.writer import LeRobotWriter
from studies.claims.rewards import UNTRAINED
from studies.harness import load_preset
from studies.rewards.clips import PICKS, FeatureStore, padded
from studies.rewards.config import RewardsConfig
from studies.rewards.measures import alignment_change, means, short_segments, slope, trend, two_actions
from studies.rewards.rewordings import PAPER, REWORDINGS, last_part_first, reworded, synonym
from studies.rewards.run import parts, rewards_study, row_recipe, stores_of
from tests.conftest import moving_square_store, write_robot_set
from tests.data.reading import read_episode
from tests.evaluation.fake_run import quick_words


def test_trend_of_known_curves() -> None:
    assert trend(np.array([0.0, 1, 2, 5])) == {"voc": pytest.approx(1), "gain": 5, "rises": 1, "variation": 1}
    assert trend(np.array([3.0, 2, 1])) == {"voc": pytest.approx(-1), "gain": -2, "rises": 0, "variation": 1}
    assert trend(np.zeros(4)) == {"voc": 0, "gain": 0, "rises": 0, "variation": 1}
    assert trend(np.array([0.0, 4, 2, 3]))["variation"] == pytest.approx(7 / 4)


def test_slope_is_that_of_a_fitted_line() -> None:
    rng = np.random.default_rng(0)
    for length in (2, 3, 17):
        curve = rng.normal(size=length)
        assert slope(curve) == pytest.approx(np.polyfit(np.arange(length), curve, 1)[0])
    assert slope(np.ones(1)) == 0


def test_an_ideal_reward_and_its_controls_on_two_actions() -> None:
    up, down = np.linspace(0, 1, 10), np.linspace(1, 0, 12)
    ideal = two_actions(np.concatenate([up, down]), np.concatenate([-up, 0.1 - down]), 10)
    assert ideal == {"peak": 1, "falls": 1, "rises": 1, "both": 1, "retrieved": 1}
    ramp = np.arange(22.0)
    assert two_actions(ramp, ramp, 10) == {"peak": 0, "falls": 0, "rises": 1, "both": 0, "retrieved": 0}
    constant = np.zeros(22)
    assert two_actions(constant, constant, 10) == {"peak": 0, "falls": 0, "rises": 0, "both": 0, "retrieved": 0}


def test_two_random_peaks_lie_in_their_own_parts_in_a_quarter_of_clips() -> None:
    found = [two_actions(np.eye(20)[a], np.eye(20)[b], 10)["retrieved"] for a in range(20) for b in range(20)]
    assert np.mean(found) == 0.25


def test_a_peak_at_random_lies_near_the_boundary_in_a_fifth_of_clips() -> None:
    peaks = [two_actions(np.eye(100)[at], np.zeros(100), 50)["peak"] for at in range(100)]
    assert np.mean(peaks) == pytest.approx(0.2, abs=0.015)


def test_alignment_changes_within_theorem_4_4() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        frames, text = rng.normal(size=(6, 5)), rng.normal(size=5)
        other = text + rng.choice([0.01, 0.3, 3]) * rng.normal(size=5)

        def score(v: np.ndarray, w: np.ndarray, words: np.ndarray) -> float:
            def s(x: np.ndarray) -> float:
                return float(x @ words / (math.sqrt(x @ x) * math.sqrt(words @ words)))

            return -abs(s(v) - s(w))

        changes = [
            abs(score(frames[i], frames[j], other) - score(frames[i], frames[j], text))
            for i in range(6)
            for j in range(i)
        ]
        most, mean, bound = alignment_change(frames, text, other)
        assert (most, mean) == pytest.approx((max(changes), float(np.mean(changes))))
        assert most <= bound
    assert alignment_change(frames, text, 2 * text) == pytest.approx((0, 0, 0))


@pytest.mark.parametrize("length", [2, 6, 50])
def test_short_segments_lie_inside_their_video(length: int) -> None:
    found = short_segments(length, 3, 0)
    assert found == short_segments(length, 3, 0) != short_segments(length, 4, 0) or length == 2
    assert all(
        0 <= start < stop < length and stop - start == max(1, round(0.2 * (length - 1))) for start, stop in found
    )


def test_means_are_over_the_records_that_have_the_number() -> None:
    assert means([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2, "b": 5, "n": 2}


def test_the_papers_rewordings_and_twenty_more() -> None:
    words = "pick up the red cup and place it on the silver pan"
    assert [change("open cupboard") for change in PAPER.values()] == [
        "Please open cupboard for me.", "Help me open cupboard."
    ]  # fmt: skip
    assert sum(len(ways) for kind, ways in REWORDINGS.items() if kind != "the paper's") == 20
    for text in (words, "open the microwave", "move the pot from right to left", "turn on the faucet"):
        others = [other for ways in reworded(text).values() for other in ways.values()]
        assert len({*others, text}) == 23
    assert synonym(words) == "lift the red cup and place it on the silver pan"
    assert synonym("turn off the faucet") == "switch off the faucet"
    assert last_part_first("move the pot from right to left") == "from right to left, move the pot"
    assert last_part_first("open the microwave") == "now, open the microwave"


COLOURS = ("red", "green", "blue")
DATA = {"relations": {"contradictory": {"push the red block": ["pull the red block", "push the blue block"]}}}


def tiny(path: Path, rows: dict[str, object], **settings: object) -> RewardsConfig:
    small = {"encoder.image_size": 24, "encoder.embed_dim": 8, "data.size": 24, "train.steps": 2, "train.batch_size": 4}
    return RewardsConfig.model_validate({"data": str(path), "rows": rows, "overrides": small, "seeds": [0], **settings})


@pytest.fixture
def squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    write_robot_set(root, 12, 24, {"train": "0:6", "test": "6:12"})
    return root


def write_pairs(root: Path) -> Path:
    """Two clips in which a square of one colour follows one of another colour, as a LeRobot data set."""
    store = moving_square_store(3)
    writer = LeRobotWriter(root, fps=10, cameras={"front": (24, 24)}, action_dim=None, state_dim=None, robot_type="toy")
    for one, two in ((0, 1), (1, 2)):
        parts = [read_episode(store, number) for number in (one, two)]
        frames = np.concatenate([part.frames["front"] for part in parts])
        segments = ((0, parts[0].instruction), (len(parts[0]), parts[1].instruction))
        times = np.arange(len(frames)) / 10
        writer.add_episode(Episode({"front": frames}, task_of(segments), times, segments=segments))
    writer.finalize()
    return root


@pytest.mark.slow
def test_every_group_is_measured_and_an_interrupted_study_goes_on(squares: Path, tmp_path: Path) -> None:
    recipes = ("decisionnce_t-demo", "r3m-demo", "vip-demo")
    rows: dict[str, object] = {name: {"recipe": name} for name in recipes}
    rows["random"] = {"recipe": "decisionnce_t-demo", "trained": False}
    pairs = write_pairs(tmp_path / "pairs")
    config = tiny(squares, rows, others={"again": {"split": "train"}}, pairs=str(pairs), **DATA)
    found = rewards_study(config, tmp_path / "out")["rows"]
    assert list(found) == sorted(rows, key=lambda row: list(found).index(row))
    words = [f"words: {kind}" for kind in REWORDINGS]
    for row, groups in found.items():
        assert groups["own videos: matched"]["n"] == 6
        assert groups["own videos: identification"]["n"] == 6
        assert groups["two actions"]["n"] == 2
        assert -2 <= groups["own videos: identification"]["margin_common"]["mean"] <= 2
        if row == "vip-demo":  # it reads goal images: words that no episode carries out have none
            assert not set(words) & groups.keys()
            assert not any(group.startswith("again") for group in groups)
        else:
            assert groups["own videos: contradictory"]["n"] == 4
            assert groups["own videos: mismatched"]["n"] == 2 * 1 + 4 * 2
            assert groups["again: matched"]["n"] == 6
            for group in words:
                assert groups[group]["within_bound"]["mean"] == 1
                assert 0 <= groups[group]["share_of_bound"]["mean"] <= 1
        assert all(0 <= one["mean"] <= 1 for group, numbers in groups.items() for one in [numbers.get("rises")] if one)
    seconds = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "trials").iterdir()}
    assert rewards_study(config, tmp_path / "out")["rows"] == found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "trials").iterdir()} == seconds


def test_parts_measure_every_video_once_by_an_encoder_that_did_not_see_it() -> None:
    store = moving_square_store(11)
    config = tiny(Path("data"), {"row": {"recipe": "decisionnce_t-demo"}}, folds=2)
    found = list(parts(config, {"own videos": store}))
    tested = [index for _, test in found for index in cast(SubsetStore, test).indices]
    assert sorted(tested) == list(range(11))
    for train, test in found:
        assert not set(cast(SubsetStore, train).indices) & set(cast(SubsetStore, test).indices)
        assert {info.instruction for info in train.episodes} == {info.instruction for info in test.episodes}


def test_a_relation_of_words_that_the_data_lack_is_refused(squares: Path, tmp_path: Path) -> None:
    config = tiny(squares, {"row": {"recipe": "decisionnce_t-demo"}}, relations={"contradictory": {"fly": ["land"]}})
    with pytest.raises(BadInputError, match=r"contradictory: found \['fly'\]"):
        rewards_study(config, tmp_path / "out")


def numbered(lengths: tuple[int, ...], texts: tuple[str, ...]) -> EpisodeStore:
    """A store whose feature of step t of episode e is 100 e + t."""
    features = [(100.0 * e + np.arange(n))[:, None, None].astype(np.float32) for e, n in enumerate(lengths)]
    infos = [EpisodeInfo(n, text, 10.0) for n, text in zip(lengths, texts, strict=True)]
    return FeatureStore(infos, features, ("camera",))


def shown(store: EpisodeStore) -> list[list[int]]:
    column, ends = store.column("features")[:, 0, 0].astype(int), np.cumsum(store.lengths)
    return [part.tolist() for part in np.split(column, ends[:-1])]


def test_padding_appends_the_beginning_of_the_next_episode_of_another_task() -> None:
    store = numbered((10, 10, 4), ("a", "a", "b"))
    found = padded(store, 0.6)
    own = [list(range(100 * e, 100 * e + n)) for e, n in enumerate((10, 10, 4))]
    assert shown(found) == [own[0] + own[2], own[1] + own[2], own[2] + own[0][:2]]  # round(.6 x 4) = 2
    assert [info.instruction for info in found.episodes] == ["a", "a", "b"]
    assert padded(store, 0) is store


@pytest.mark.parametrize(("name", "share"), [("a tenth", 0.1), ("half", 0.5), ("whole", 1.0)])
def test_segments_of_a_fixed_share_lie_anywhere_in_their_clip(name: str, share: float) -> None:
    lengths = np.array([2, 11, 51] * 200)
    start, goal = PICKS[name](lengths, np.random.default_rng(0)).T
    assert np.all((start >= 0) & (goal < lengths))
    assert np.array_equal(goal - start, np.maximum(1, np.round(share * (lengths - 1))))
    for length in (11, 51):
        free = length - max(1, round(share * (length - 1)))
        assert set(start[lengths == length]) <= set(range(free))
        assert start[lengths == length].max() >= 0.9 * (free - 1)


@pytest.mark.slow
def test_rows_continue_from_another_rows_weights(squares: Path, tmp_path: Path) -> None:
    still = {"optimizer.lr": 1e-300}
    rows: dict[str, object] = {
        "start": {"recipe": "decisionnce_t-demo"},
        "still": {"recipe": "decisionnce_t-demo", "start": "start", "overrides": still},
        "apart": {"recipe": "decisionnce_t-demo", "overrides": still},
    }
    rewards_study(tiny(squares, rows, gate=1), tmp_path / "out")
    found = {name: json.loads((tmp_path / f"out/trials/{name}-seed0.json").read_text())["result"] for name in rows}
    assert found["still"]["groups"] == found["start"]["groups"] != found["apart"]["groups"]
    own = found["start"]["tasks"]
    for key, group in (("voc", "matched"), ("accuracy", "identification")):
        mean = np.average([task[key] for task in own.values()], weights=[task["n"] for task in own.values()])
        assert mean == pytest.approx(found["start"]["groups"][f"own videos: {group}"][key])
    assert found["start"]["groups"]["training videos: identification"]["n"] == len(own)
    with pytest.raises(ValidationError, match="no row with weights of its own"):
        tiny(squares, rows | {"more": {"recipe": "decisionnce_t-demo", "start": "still"}})


@pytest.mark.parametrize("name", ["kitchen", "pairs", "arm", "segments", "padding", "videos_5", "videos_50"])
def test_methods_are_compared_at_searched_or_authors_settings(name: str) -> None:
    config = load_preset("rewards", RewardsConfig, name, {"data": "DATA"})
    trained = {row: one for row, one in config.rows.items() if one.trained and row != "clip start"}
    assert {one.settings for one in trained.values()} <= {"searched", "authors"}
    assert {row_recipe(config, row).train.batch_size for row in trained} == {32}
    assert len({one.start for one in trained.values() if one.start}) <= 1
    assert len(config.seeds) >= 5
    assert UNTRAINED in config.rows
    for row, one in trained.items():
        if one.settings == "authors":
            assert row_recipe(config, row).optimizer.lr == 1e-5


def test_the_authors_models_are_trained_whole_at_their_settings() -> None:
    config = load_preset("rewards", RewardsConfig, "gpu", {"data": "DATA"})
    recipes = {row: row_recipe(config, row) for row in config.rows}
    assert {(one.encoder.image_model, one.encoder.freeze_image) for one in recipes.values()} == {
        ("RN50-quickgelu", False)
    }
    assert recipes["decisionnce_t"].optimizer.lr == recipes["actol"].optimizer.lr == 1e-5


def test_a_share_of_the_training_videos_is_the_first_of_each_task(squares: Path) -> None:
    config = tiny(squares, {"row": {"recipe": "decisionnce_t-demo"}}, per_task=1)
    found = stores_of(config, "row")
    assert [info.instruction for info in found["train"].episodes] == [f"push the {one} block" for one in COLOURS]
    assert len(found["test"].episodes) == 6


@pytest.mark.parametrize("name", ["widowx", "metaworld", "robosuite"])
def test_presets_name_recipes_and_relations_that_exist(name: str) -> None:
    config = load_preset("rewards", RewardsConfig, name, {"data": "DATA"})
    steps = {row_recipe(config, row).train.steps for row in config.rows}
    assert len(steps) == 1  # a fair race
    texts = config.relations["contradictory"]
    assert texts.keys() == config.relations["indirectly relevant"].keys()
    assert all(key not in others for pairs in config.relations.values() for key, others in pairs.items())
