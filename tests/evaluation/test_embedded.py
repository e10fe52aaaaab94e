from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.comparison import compare
from counterpoint.evaluation.embedded import CENTRED, RECORDED, SHUFFLED, embed_store, measure_space, spread
from counterpoint.evaluation.statistics import Estimate
from counterpoint.rewards.model import RewardModel, potential_gain
from counterpoint.rewards.sources import EncoderReward
from tests.evaluation.fake import RandomEncoder, SeeingEncoder, store

Space = dict[str, dict[str, Estimate]]


@pytest.fixture(scope="module")
def seeing() -> Space:
    return measure_space(embed_store(SeeingEncoder(), store()))


@pytest.fixture(scope="module")
def blind() -> Space:
    return measure_space(embed_store(RandomEncoder(), store()))


def test_an_encoder_that_understands_moves_with_time(seeing: Space) -> None:
    assert seeing[RECORDED]["ordering"].value > 0.9
    assert seeing[RECORDED]["bridge_residual"].value < 0.5 * seeing[SHUFFLED]["bridge_residual"].value


def test_an_untrained_encoder_has_similar_first_frames(blind: Space) -> None:
    assert blind[RECORDED]["first_frame_similarity"].value > 0.95  # no evidence of anything by itself
    assert blind[CENTRED]["first_frame_similarity"].value < blind[RECORDED]["first_frame_similarity"].value
    assert blind[SHUFFLED]["ordering"].value == pytest.approx(0.5, abs=0.1)


def test_every_number_says_n_and_how_its_interval_was_made(seeing: Space, blind: Space) -> None:
    for space in (seeing, blind):
        assert set(space) == {RECORDED, SHUFFLED, CENTRED}
        for name, estimate in [item for numbers in space.values() for item in numbers.items()]:
            assert estimate.n == 12, name
            assert estimate.low <= estimate.value <= estimate.high, name
            assert estimate.method, name


def test_a_space_is_a_function_of_the_seed() -> None:
    embedded = embed_store(RandomEncoder(), store(each=2))
    assert measure_space(embedded, seed=5) == measure_space(embedded, seed=5)
    assert measure_space(embedded, seed=5) != measure_space(embedded, seed=6)


def test_an_encoder_without_words_is_not_compared_with_them() -> None:
    space = measure_space(embed_store(RandomEncoder(), store(each=2)), words=False)
    assert not {"ordering", "first_frame_to_language"} & {name for numbers in space.values() for name in numbers}


@pytest.mark.slow
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
    whole = [potential_gain(part.frames_at(0), part.frames_at(-1), part.text) for part in (both, *apart)]
    np.testing.assert_allclose(whole[0], (whole[1] + whole[2]) / 2)
    model = RewardModel(RandomEncoder())
    asked = [
        compare({"one": [EncoderReward(model, "one")]}, two, cameras=views, about={}).rows[0].heatmaps[0].values
        for views in (("front", "back"), "front", "back")
    ]
    np.testing.assert_allclose(asked[0], (np.array(asked[1]) + asked[2]) / 2)
    assert 1.0 <= measure_space(both)[RECORDED]["effective_rank"].value <= 32.0
    with pytest.raises(BadInputError, match="camera"):
        embed_store(RandomEncoder(), two, cameras=("front", "top"))


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
    made = MemoryStore(short)
    space = measure_space(embed_store(SeeingEncoder(), made))
    assert "ordering" not in space[RECORDED]
    assert space[RECORDED]["step_norm"].n == 4
    seeing = EncoderReward(RewardModel(SeeingEncoder()), "seeing")
    assert compare({"seeing": [seeing]}, made).rows[0].inputs[RECORDED]["accuracy"].value == 1.0


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
        embed_store(RandomEncoder(), made, instructions=candidates)
