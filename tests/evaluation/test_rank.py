from __future__ import annotations

import csv
import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rank import Seen, edit_command, longest_stall, look, rank, scores_of, signs_of
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.rewards.sources import Curves, Frames, FunctionReward, Prediction
from tests.evaluation.fake_run import quick_words, write_data
from tests.hub_here import hub_cache
from tests.rewards.labelling import save_model

RED, GREEN = "make it red", "make it green"
RAMP = np.linspace(0, 1, 20)
CURVES = {
    "good": RAMP,
    "stops": np.minimum(RAMP, 0.4),
    "undone": np.minimum(RAMP, 1.6 - 1.6 * RAMP),
    "swapped": RAMP,  # under the other instruction
}


def channel(frames: NDArray[np.uint8], text: str) -> NDArray[np.float64]:
    """Progress of an instruction: how red or green the picture is."""
    return np.asarray(frames[..., 0 if text == RED else 1].mean(axis=(1, 2)) / 255)


channel.progress = True  # type: ignore[attr-defined]


def write_episodes(root: Path) -> Path:
    """Write eight good episodes, four of each instruction, then one of every other kind under the first instruction."""
    writer = LeRobotWriter(
        root, fps=10, cameras={"front": (32, 32)}, action_dim=None, state_dim=None, robot_type="table"
    )
    kinds = ["good"] * 8 + ["stops", "undone", "swapped"]
    for number, kind in enumerate(kinds):
        text = (RED, GREEN)[number % 2] if kind == "good" else RED
        frames = np.zeros((20, 32, 32, 3), np.uint8)
        painted = 0 if (text == RED) != (kind == "swapped") else 1
        frames[..., painted] = (255 * CURVES[kind]).astype(np.uint8)[:, None, None]
        success = kind == "good"
        writer.add_episode(Episode({"front": frames}, text, np.arange(20) / 10, success=success))
    writer.finalize()
    return root


SOURCE = "tests.evaluation.test_rank:channel"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    return write_episodes(tmp_path / "balls")


def test_bad_episodes_come_first_and_the_command_leaves_them_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = rank(data, model=SOURCE, out=tmp_path / "out", worst=3).read_text()
    with (tmp_path / "out" / "rank.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    assert {row["episode"] for row in rows[:3]} == {"8", "9", "10"}
    found = {row["episode"]: row for row in rows}
    assert float(found["8"]["end"]) == pytest.approx(0.4, abs=0.02)
    assert float(found["8"]["stall"]) > 0.5
    assert float(found["9"]["fall"]) > 0.5
    assert found["10"]["rival_instruction"] == GREEN
    assert float(found["10"]["rival"]) > 0.8
    assert (found["0"]["success"], found["8"]["success"]) == ("true", "false")
    assert "unlike" not in rows[0]  # a model of others does not say
    said = capsys.readouterr().out
    assert '--operation.type delete_episodes --operation.episode_indices "[8, 9, 10]"' in said
    assert f"--root {data} --new_repo_id balls_kept" in said
    assert page.count("<article>") == 8
    assert "http://" not in page


def test_a_run_says_which_frames_are_unlike_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    data = write_data(tmp_path / "data")
    model = save_model(tmp_path / "drawer", data)
    rank(data, model=model, out=tmp_path / "out", rivals=1)
    with (tmp_path / "out" / "rank.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    assert all(0 <= float(row["unlike"]) <= 1 for row in rows)
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_signs_are_those_of_a_loop() -> None:
    seen = [Seen(curve, np.nan, "", np.nan) for curve in CURVES.values()]
    signs = signs_of(seen, unit=True)
    assert list(signs) == ["end", "fall", "stall"]
    for at, curve in enumerate(CURVES.values()):
        fall = max(curve[s] - curve[t] for t in range(20) for s in range(t + 1))
        assert signs["fall"][at] == pytest.approx(fall)
        assert signs["end"][at] == pytest.approx(curve[-2:].mean())
        furthest, longest = np.maximum.accumulate(curve), 0
        for first in range(20):
            last = first
            while last < 20 and furthest[last] < furthest[first] + 0.02:
                last += 1
            longest = max(longest, last - first)
        assert longest_stall(curve) == pytest.approx(longest / 20)
    twice = signs_of([Seen(10 * one.curve, np.nan, "", np.nan) for one in seen], unit=False)
    for name, values in twice.items():  # other values are scaled by their range
        np.testing.assert_allclose(values, signs[name])


def test_a_score_is_the_mean_share_of_episodes_that_look_better() -> None:
    signs = {"end": np.array([0.9, 0.1, 0.9]), "fall": np.array([0.0, 0.5, np.nan])}
    # end: the second is worse than both others (2/3, and ties with itself, 1/6); fall: the third is unknown.
    np.testing.assert_allclose(scores_of(signs), [(1 / 3 + 1 / 6) / 2, (5 / 6 + 1 / 2) / 2, (1 / 3 + 1 / 2) / 2])


def test_scores_are_those_of_all_pairs_of_episodes() -> None:
    values = np.random.default_rng(0).integers(0, 9, 200) / 8  # with ties
    values[::7] = np.nan
    better = (values[None] > values[:, None]).mean(axis=1) + (values[None] == values[:, None]).mean(axis=1) / 2
    np.testing.assert_array_equal(scores_of({"end": values}), np.where(np.isnan(values), 0.5, better))


def test_scores_take_memory_for_every_episode_and_not_for_every_pair() -> None:
    values = np.random.default_rng(0).random(2000)
    tracemalloc.start()
    scores_of({"end": values})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 * values.nbytes  # a byte for every pair would be 250 times


def test_rivals_are_other_instructions() -> None:
    asked: list[list[str]] = []

    class Asked(FunctionReward):
        def predict(self, frames: Frames, instruction: str) -> Prediction:
            asked[-1].append(instruction)
            return Prediction(RAMP)

        def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
            asked.append([])
            return super().watch(frames, shared)

    texts = [f"task {number}" for number in range(5)]
    episodes = [Episode({"front": np.zeros((20, 4, 4, 3), np.uint8)}, text, np.arange(20) / 10) for text in texts]
    store = MemoryStore(episodes)
    look(Asked(channel, "asked"), store, ("front",), rivals=4)
    assert asked == [[text, *(other for other in texts if other != text)] for text in texts]
    asked.clear()
    look(Asked(channel, "asked"), store, ("front",), rivals=2)
    assert [own[0] for own in asked] == texts
    assert all(len(set(own)) == 3 for own in asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"worst": -1}, "--worst: found -1"),
        ({"model": "tests.evaluation.test_rank:nothing"}, "a function"),
        ({"cameras": ["side"]}, "side"),
    ],
)
def test_bad_input_is_refused_first(data: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {"model": SOURCE, "out": tmp_path / "out"} | changes
    with pytest.raises(BadInputError, match=said):
        rank(data, **settings)
    assert not (tmp_path / "out").exists()


def test_the_command_survives_a_shell(tmp_path: Path) -> None:
    data = write_episodes(tmp_path / "two words")
    words = shlex.split(edit_command(data, [2, 0], open_dataset(data)))
    assert words[words.index("--root") + 1] == str(data)
    assert words[words.index("--new_repo_id") + 1] == "two words_kept"
    assert words[words.index("--new_root") + 1] == f"{data}_kept"
    assert words[-1] == "[0, 2]"


def test_other_formats_have_no_command_of_lerobot(data: Path, tmp_path: Path) -> None:
    store = open_dataset(data)
    assert edit_command(data, [], store) == ""
    (tmp_path / "manifest.csv").write_text("video,instruction\n")
    assert edit_command(tmp_path / "manifest.csv", [1], store) == ""


def test_the_command_for_a_data_set_of_the_hub_reads_the_download(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_cache(monkeypatch, tmp_path / "hub").add("lab/balls", data)
    command = edit_command(Path("lab/balls"), [1], open_dataset("lab/balls"))
    assert f"--repo_id lab/balls --root {snapshot} --new_repo_id lab/balls_kept --new_root balls_kept " in command
