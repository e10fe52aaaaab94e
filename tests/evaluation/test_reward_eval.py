from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store, spread
from counterpoint.evaluation.reward_eval import (
    Evaluation,
    evaluate_embedded,
    evaluate_encoder,
    one_frame_scores,
    segment_scores,
    verdict,
)
from counterpoint.evaluation.scenes import Scenes, linear_scores
from counterpoint.evaluation.statistics import Estimate, wilson
from counterpoint.rewards.model import SegmentScore, cosine, potential_gain, transition_score
from tests.evaluation.fake import INSTRUCTIONS, RandomEncoder, SeeingEncoder, store

PARAPHRASES = {text: [f"please {text}", f"{text} now"] for text in INSTRUCTIONS}


@pytest.fixture(scope="module")
def seeing() -> Evaluation:
    return evaluate_encoder(SeeingEncoder(), store(), form="potential", paraphrases=PARAPHRASES)


@pytest.fixture(scope="module")
def blind() -> Evaluation:
    return evaluate_encoder(RandomEncoder(), store())


def test_an_encoder_that_understands_scores_high(seeing: Evaluation) -> None:
    for name in (
        "accuracy_whole_video",
        "triples_whole_video",
        "triples_one_word_apart_whole_video",
        "accuracy_paraphrases",
    ):
        assert seeing[name].value == 1.0
    assert seeing["accuracy_random_segments"].value > 0.9
    assert seeing["voc"].value > 0.99
    assert seeing["voc_reversed"].value == pytest.approx(-seeing["voc"].value)
    assert seeing["voc_wrong_instruction"].value < 0.0
    assert abs(seeing["voc_shuffled"].value) < 0.3
    assert seeing["ordering"].value > 0.9
    assert seeing["bridge_residual"].value < 0.5 * seeing["bridge_residual_shuffled"].value


def test_an_untrained_encoder_guesses(blind: Evaluation) -> None:
    assert blind.chance == 0.25
    assert blind["accuracy_whole_video"].low <= 0.25 <= blind["accuracy_whole_video"].high
    assert blind["first_frame_similarity"].value > 0.95  # no evidence of anything by itself
    assert blind["ordering_shuffled"].value == pytest.approx(0.5, abs=0.1)


def test_controls_are_what_they_must_be(blind: Evaluation) -> None:
    assert blind["voc_of_a_ramp"].value == pytest.approx(1.0)
    assert blind["voc_of_a_constant"].value == 0.0


def test_a_frozen_video_goes_nowhere_and_a_reversed_one_shows_the_opposite(seeing: Evaluation) -> None:
    assert seeing["voc_frozen"].value == 0.0
    assert seeing["accuracy_reversed"].value == 0.0
    assert seeing["triples_one_word_apart_reversed"].value < 0.5


def test_one_frame_is_scored_alone(embedded: EmbeddedVideos) -> None:
    for name, place in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        found = one_frame_scores(embedded)[name]
        for row, video in zip(found, embedded.videos, strict=True):
            at = min(int(place * len(video)), len(video) - 1)
            np.testing.assert_allclose(row, cosine(video[at : at + 1], embedded.text)[0])


def test_a_linear_classifier_of_one_frame_is_the_stronger_bar(embedded: EmbeddedVideos) -> None:
    """Frames in which the outcome lies in plain sight, and first frames in which nothing has happened."""
    rng = np.random.default_rng(0)
    places = np.eye(4) * 3.0

    def frames(
        own: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        noise = rng.normal(0.0, 0.1, (len(own), 3, 4))
        noise[:, 2] += places[own]
        return noise

    labels = np.repeat(np.arange(3), 5)  # no training episode carries out the last instruction
    scenes = Scenes(frames(labels), labels, frames(embedded.own))
    scores = linear_scores(scenes, 4)
    assert (scores["last"][embedded.own != 3].argmax(axis=1) == embedded.own[embedded.own != 3]).all()
    assert np.isneginf(scores["last"][:, 3]).all()
    found = evaluate_embedded(embedded, scenes=scenes)
    assert found["accuracy_linear_last_frame"].value == 0.75
    assert found["accuracy_linear_first_frame"].value <= 0.5
    assert found["accuracy_over_linear_last_frame"].value == found["accuracy_whole_video"].value - 0.75


def test_the_verdict_says_plainly_what_was_learned(seeing: Evaluation, blind: Evaluation) -> None:
    gain, none = Estimate(0.5, 0.2, 0.8, 18, ""), Estimate(0.1, -0.2, 0.4, 18, "")
    told = verdict(wilson(11, 18), 9, ("the last frame", 0.11, gain))
    assert told.startswith(
        "Tells the right instruction from the others in 61 % of 18 held-out videos (95 % interval 39"
    )
    assert told.endswith("to 80 %, chance 11 %); the last frame alone gets 11 %.")
    assert "cannot settle" in verdict(wilson(11, 18), 9, ("the last frame", 0.5, none))
    scene = verdict(wilson(11, 18), 9, ("the first frame", 0.67, none))
    assert scene.startswith("Recognises the scene")
    assert "the first frame alone does as well (67 %)" in scene
    assert verdict(wilson(2, 9), 9, ("the last frame", 0.9, none)).startswith("No better than chance")
    assert verdict(wilson(0, 90), 9, ("the last frame", 0.9, none)).startswith("Worse than chance")
    assert "18 videos it was trained on" in verdict(wilson(11, 18), 9, ("the last frame", 0.1, gain), held_out=False)
    assert blind.verdict().startswith("No better than chance")
    assert "12 held-out videos" in seeing.verdict()


def test_several_cameras_are_fused_by_the_mean_of_scores() -> None:
    one = store(each=2)
    views = {n: one.frames(n, np.arange(info.length)) for n, info in enumerate(one.episodes)}
    made = [
        Episode({"front": views[n], "back": 255 - views[n]}, info.instruction, one.timestamps(n))
        for n, info in enumerate(one.episodes)
    ]
    two = MemoryStore(made)
    both = embed_store(RandomEncoder(), two, cameras=("front", "back"))
    apart = [embed_store(RandomEncoder(), two, cameras=name) for name in ("front", "back")]
    assert both.videos[0].shape == (len(views[0]), 2, 16)
    whole = [segment_scores(part, potential_gain, 1.0, 0) for part in (both, *apart)]
    np.testing.assert_allclose(whole[0], (whole[1] + whole[2]) / 2)
    found = evaluate_embedded(both)
    assert found["accuracy_whole_video"].n == 8
    assert 1.0 <= found["effective_rank"].value <= 32.0
    with pytest.raises(BadInputError, match="camera"):
        embed_store(RandomEncoder(), two, cameras=("front", "top"))


def test_names_follow_the_form(seeing: Evaluation) -> None:
    assert seeing["voc"] is seeing.estimates["voc.potential"]
    assert seeing["accuracy_whole_video"] is seeing.estimates["accuracy_whole_video.potential"]
    assert seeing["ordering"] is seeing.estimates["ordering"]
    with pytest.raises(KeyError):
        seeing["luck"]


def test_every_number_says_n_and_how_its_interval_was_made(seeing: Evaluation, blind: Evaluation) -> None:
    for evaluation in (seeing, blind):
        for name, estimate in evaluation.estimates.items():
            assert estimate.n == evaluation.videos == 12, name
            assert estimate.low <= estimate.value <= estimate.high, name
            assert estimate.method, name


def test_json_holds_everything(seeing: Evaluation) -> None:
    again = Evaluation.from_json(seeing.to_json())
    assert again == seeing
    odd = replace(seeing, estimates={"x": replace(seeing["voc"], low=math.nan)})
    assert "NaN" not in odd.to_json()
    assert math.isnan(Evaluation.from_json(odd.to_json()).estimates["x"].low)
    for text in ("", "[]", '{"estimates": {}}'):
        with pytest.raises(BadInputError, match=r"Evaluation\.to_json"):
            Evaluation.from_json(text)


def test_evaluation_is_a_function_of_the_seed() -> None:
    embedded = embed_store(RandomEncoder(), store(each=2))
    assert evaluate_embedded(embedded, seed=5) == evaluate_embedded(embedded, seed=5)
    assert evaluate_embedded(embedded, seed=5) != evaluate_embedded(embedded, seed=6)


@pytest.fixture
def embedded() -> EmbeddedVideos:
    return embed_store(RandomEncoder(), store(each=2))


@pytest.mark.parametrize("score", [potential_gain, transition_score])
def test_whole_segments_run_from_first_to_last(embedded: EmbeddedVideos, score: SegmentScore) -> None:
    whole = segment_scores(embedded, score, 1.0, seed=0)
    assert whole.shape == (8, 1, 4)
    np.testing.assert_allclose(whole[:, 0], score(embedded.frames_at(0), embedded.frames_at(-1), embedded.text))


def test_random_segments_follow_the_papers_rule(embedded: EmbeddedVideos) -> None:
    """Goals of every length occur, starts never reach the last frame, and samples are keyed on the video."""
    sampled: list[tuple[int, int]] = []

    def record(start: object, goal: object, text: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        assert isinstance(start, np.ndarray)
        assert isinstance(goal, np.ndarray)
        sampled.extend(zip(start[:, 0].astype(int), goal[:, 0].astype(int), strict=True))
        return np.zeros((len(start), 4))

    numbered = replace(
        embedded,
        videos=tuple(np.arange(len(video), dtype=float)[:, None] + 100 * n for n, video in enumerate(embedded.videos)),
    )
    segment_scores(numbered, record, None, seed=0, count=64)
    first = [(start, goal) for start, goal in sampled if goal < 100]
    assert len(first) == 64
    assert all(0 <= start < goal < len(embedded.videos[0]) for start, goal in first)
    assert {start for start, _ in first} == set(range(len(embedded.videos[0]) - 1))
    before = list(sampled)
    sampled.clear()
    segment_scores(numbered, record, 0.2, seed=0, count=8)
    assert {goal - start for start, goal in sampled} == {2, 3}
    assert sampled != before


def test_heatmaps_average_the_segments_of_an_instruction(seeing: Evaluation) -> None:
    short, whole = seeing.heatmaps
    assert (short.name, whole.name) == ("short segments", "whole videos")
    assert short.rows == short.columns == INSTRUCTIONS
    values = np.array(whole.values)
    assert (values.argmax(axis=1) == np.arange(4)).all()
    for row, column in itertools.permutations(range(4), 2):
        assert values[row, column] < values[row, row]


def test_candidates_without_videos_are_columns_only() -> None:
    more = (*INSTRUCTIONS, "push the green ball right")
    found = evaluate_encoder(SeeingEncoder(), store(each=1), instructions=more)
    assert found.chance == 0.2
    assert found.heatmaps[0].rows == INSTRUCTIONS
    assert found.heatmaps[0].columns == more


def test_long_videos_are_thinned_and_keep_their_ends() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread(100, 4).tolist() == [0, 33, 66, 99]
    thin = embed_store(SeeingEncoder(), store(each=1), max_frames=5)
    assert all(len(video) == 5 for video in thin.videos)
    assert all(steps[-1] == info.length - 1 for steps, info in zip(thin.steps, store(1).episodes, strict=True))


def test_videos_of_two_frames_leave_some_numbers_undefined() -> None:
    frames = store(each=1)
    short = [
        Episode({"front": frames.frames(n, np.array([0, 11]))}, info.instruction, np.arange(2.0))
        for n, info in enumerate(frames.episodes)
    ]
    found = evaluate_encoder(SeeingEncoder(), MemoryStore(short))
    assert found["ordering"].n == 0
    assert math.isnan(found["ordering"].value)
    assert found["accuracy_whole_video"].value == 1.0


@pytest.mark.parametrize(
    ("instructions", "length", "candidates", "word"),
    [
        (["push", ""], 4, None, "instruction ''"),
        (["push", "pull"], 1, None, "1 step"),
        (["push", "push"], 4, None, "two or more"),
        (["push", "pull"], 4, ["push", "push"], "each once"),
        (["push", "pull"], 4, ["push", "lift"], "'pull'"),
    ],
)
def test_stores_that_cannot_be_evaluated_are_refused(
    instructions: list[str], length: int, candidates: list[str] | None, word: str
) -> None:
    frames = np.zeros((length, 32, 32, 3), np.uint8)
    made = MemoryStore([Episode({"front": frames}, text, np.arange(length) * 1.0) for text in instructions])
    with pytest.raises(BadInputError, match=word):
        evaluate_encoder(RandomEncoder(), made, instructions=candidates)


def test_paraphrases_must_cover_every_instruction() -> None:
    with pytest.raises(BadInputError, match="paraphrases"):
        evaluate_encoder(RandomEncoder(), store(each=1), paraphrases={INSTRUCTIONS[0]: ["shove"]})
