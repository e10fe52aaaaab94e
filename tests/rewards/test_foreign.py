from __future__ import annotations

import ast
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.rewards import foreign
from counterpoint.rewards.foreign import LeRobotScorer, as_scores, open_scorer, received, send, serve
from tests.evaluation.fake import INSTRUCTIONS, episode

FRAMES = episode(INSTRUCTIONS[0], 9, seed=0).frames["front"]
IMAGE = "observation.images.front"


class Model:
    """A reward model as LeRobot's: one number a sample."""

    def __init__(self, **config: Any) -> None:
        self.config = SimpleNamespace(image_key=IMAGE, task_key="task", **config)
        self.seen: list[dict[str, Any]] = []

    def compute_reward(self, batch: dict[str, Any]) -> Tensor:
        """Return the newest frame's brightness."""
        self.seen.append(batch)
        pixels: Tensor = batch[IMAGE]
        return pixels.flatten(1).mean(1) if pixels.ndim == 4 else pixels[:, -1].flatten(1).mean(1)


light = FRAMES.mean(axis=(1, 2, 3)) / 255


def numbers(frames: NDArray[np.uint8], text: str) -> list[float]:
    print("a model may print")
    return [float(len(text))] * len(frames)


def failing(frames: NDArray[np.uint8], text: str) -> list[float]:
    raise OSError(text)


def test_the_program_needs_nothing_of_this_library() -> None:
    tree = ast.parse(Path(foreign.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names} | {
        node.module for node in imported if isinstance(node, ast.ImportFrom)
    }
    assert not [name for name in names if name and name.startswith("counterpoint")]


def test_a_model_of_videos_is_given_growing_beginnings_in_batches() -> None:
    model = Model(reward_output="progress", max_frames=4)
    long = np.concatenate([FRAMES] * 8)
    scorer = LeRobotScorer(model)
    scores = scorer(long, "red")
    assert scorer.progress
    assert scores["known"].sum() == 16
    np.testing.assert_allclose(scores["progress"][scores["known"]], np.tile(light, 8)[scores["known"]], atol=1e-6)
    # Beginnings of at least four frames have four, the first and the newest among them; at most eight are one batch.
    shapes = [tuple(batch[IMAGE].shape[:2]) for batch in model.seen]
    assert shapes == [(1, 1), (8, 4), (7, 4)]
    assert model.seen[1]["task"] == ["red"] * 8
    assert torch.equal(model.seen[2][IMAGE][-1, 0], model.seen[0][IMAGE][0, 0])
    assert 0 < model.seen[1][IMAGE].max() <= 1


def test_a_classifier_is_given_every_frame_at_once() -> None:
    model = Model(num_classes=2, input_features={IMAGE: None, "observation.state": None})
    np.testing.assert_allclose(LeRobotScorer(model)(FRAMES, "red", np.zeros((9, 2)))["progress"], light, atol=1e-6)
    assert [tuple(batch[IMAGE].shape) for batch in model.seen] == [(9, 3, 32, 32)]
    assert model.seen[0]["observation.state"].shape == (9, 2)


def test_a_typed_prediction_has_success_stages_and_a_mask() -> None:
    class Typed(Model):
        def predict_progress(self, batch: dict[str, Any]) -> Any:
            frames = batch[IMAGE].shape[1]
            steps = torch.linspace(0, 1, frames)[None]
            stages = torch.stack([1 - steps, steps], -1)
            valid = torch.ones(1, frames, dtype=torch.bool)
            valid[0, 0] = False
            return SimpleNamespace(
                progress=steps, success_probability=steps, stage_probabilities=stages, valid_mask=valid
            )

    scores = LeRobotScorer(Typed(max_frames=5, success_threshold=0.75))(FRAMES, "red")
    np.testing.assert_allclose(scores["progress"], np.linspace(0, 1, 9))
    assert np.flatnonzero(scores["known"]).tolist() == [2, 4, 6, 8]
    assert scores["success"].tolist() == [False] * 6 + [True] * 3
    assert scores["stage"][[0, 8]].tolist() == [0, 1]


def test_a_model_of_windows_is_told_the_frame_and_read_in_the_middle() -> None:
    class Windows:
        config = SimpleNamespace(
            image_key=IMAGE,
            observation_delta_indices=[-2, -1, 0, 1, 2],
            n_obs_steps=4,
            sparse_subtask_names=["reach", "lift"],
        )

        def compute_reward(self, batch: dict[str, Any]) -> Tensor:
            raise AssertionError("SARM's own script does not call it")

        def calculate_rewards(
            self, *, video_embeddings: Tensor, lengths: Any, return_stages: bool, **_: Any
        ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            assert (lengths, return_stages) == (5, True)
            values = np.asarray(video_embeddings)[None]
            return values, np.stack([values < 0.5, values >= 0.5], axis=-1).astype(np.float64)

    asked = []

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        asked.append((sample["index"], sample["episode_index"], sample["task"], len(sample["observation.state"])))
        light = sample[IMAGE].flatten(1).mean(1)
        return {"text_features": None, "video_features": light, "lengths": 5}

    scorer = LeRobotScorer(Windows(), prepare)
    assert scorer.reads_state
    scores = scorer(FRAMES, "red", np.zeros((9, 2)))
    np.testing.assert_allclose(scores["progress"], light, atol=1e-6)
    assert scores["stage"].tolist() == (light >= 0.5).tolist()
    assert scorer.stages == ("reach", "lift")
    assert asked[3] == (3, 0, "red", 5)


def test_scores_are_arrays_by_name() -> None:
    assert as_scores([1, 2])["progress"].tolist() == [1, 2]
    assert list(as_scores({"progress": [1.0], "success": [True], "stage": None})) == ["progress", "success"]


def test_the_digest_is_the_name_s_and_that_of_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def digests(helper: str) -> list[str]:
        Path("a_helper.py").write_text(helper)
        Path("a_model.py").write_text("import a_helper\ndef one(f, t): ...\ndef two(f, t): ...\n")
        for name in ("a_helper", "a_model"):
            sys.modules.pop(name, None)
        return [open_scorer(f"a_model:{name}")[1] for name in ("one", "two")]

    before, again, after = digests("x = 1"), digests("x = 1"), digests("x = 22")
    assert before == again
    assert len({*before, *after}) == 4


def test_requests_are_answered_until_the_stream_ends() -> None:
    requests, answers = io.BytesIO(), io.BytesIO()
    for text in ("red", "green"):
        send(requests, {"frames": FRAMES, "text": text})
    requests.seek(0)
    serve(requests, answers, "tests.rewards.test_foreign:numbers", "cpu")
    answers.seek(0)
    hello, *found, end = (received(answers) for _ in range(4))
    assert hello is not None
    assert not hello["progress"]
    assert [one["progress"][0] for one in found if one is not None] == [3, 5]
    assert end is None


@pytest.mark.parametrize(
    ("source", "said"), [("tests.rewards.test_foreign:failing", "OSError: red"), ("no_such:thing", "no_such")]
)
def test_a_failure_is_an_answer(source: str, said: str) -> None:
    requests, answers = io.BytesIO(), io.BytesIO()
    send(requests, {"frames": FRAMES, "text": "red"})
    requests.seek(0)
    serve(requests, answers, source, "cpu")
    answers.seek(0)
    last = [message for _ in range(2) if (message := received(answers)) is not None][-1]
    assert said in str(last["error"])
