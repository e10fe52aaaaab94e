from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import check_episode
from counterpoint.errors import BadInputError

STATE = Spaces(observation=(3,), goal=(2,), action=2)
PICTURE = Spaces(observation=(4, 4, 3), goal=(4, 4, 3), action=3, discrete=True)


def test_an_episode_takes_the_types_it_is_stored_in() -> None:
    found = check_episode(
        STATE, GoalEpisode(np.zeros((3, 3)), np.zeros((3, 2)), np.zeros(2), np.ones((2, 2)), np.zeros(2))
    )
    for name in ("observations", "actions", "achieved", "commanded", "rewards"):
        assert getattr(found, name).dtype == np.float32
    assert found.rewards.tolist() == [0, 0]


def test_pictures_stay_bytes_and_discrete_actions_become_int64() -> None:
    pictures = np.zeros((3, 4, 4, 3), np.uint8)
    found = check_episode(PICTURE, GoalEpisode(pictures, pictures, pictures[0], np.array([0, 2], np.int8), np.zeros(2)))
    assert found.observations.dtype == found.commanded.dtype == np.uint8
    assert found.actions.dtype == np.int64


def test_pictures_of_another_type_are_refused() -> None:
    pictures = np.zeros((3, 4, 4, 3))
    with pytest.raises(BadInputError, match="observations: found float64; expected images as uint8"):
        check_episode(PICTURE, GoalEpisode(pictures, pictures, pictures[0], np.array([0, 2]), np.zeros(2)))


@pytest.mark.parametrize("observations", [np.zeros((0, 3)), np.zeros((1, 3)), np.array(1.0)])
def test_two_states_are_the_least(observations: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(BadInputError, match="expected at least 2"):
        check_episode(STATE, GoalEpisode(observations, np.zeros((1, 2)), np.zeros(2), np.zeros((0, 2)), np.zeros(2)))


@pytest.mark.parametrize(("value", "good"), [(1 + 1e-7, True), (1 + 1e-5, False), (-1 - 1e-5, False)])
def test_actions_may_leave_the_box_by_rounding_alone(value: float, good: bool) -> None:
    episode = GoalEpisode(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.full((1, 2), value), np.zeros(1))
    if good:
        assert np.abs(check_episode(STATE, episode).actions).max() == 1
    else:
        with pytest.raises(BadInputError, match=r"actions, step 0: found .*; expected actions from -1 to 1"):
            check_episode(STATE, episode)
