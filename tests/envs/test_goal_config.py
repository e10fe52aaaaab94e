from __future__ import annotations

import pytest
from pydantic import ValidationError

from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.errors import BadInputError

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("slider")]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(name="MuteSlider-v0"), ["no distance", "give success_distance"]),
        (EnvConfig(name="Slider-v0", success_distance=1, observations="image"), ["FetchReach", "state"]),
        (EnvConfig(name="Slider-v0", success_distance=1, goals="state"), ["coordinates"]),
        (EnvConfig(name="Slider-v0", success_distance=1, goals="state_zero_padded"), ["coordinates"]),
        (EnvConfig(name="EndlessSlider-v0", success_distance=1), ["without an end", "max_episode_steps"]),
        (EnvConfig(name="FetchReach-v4", goal_cells=((1, 1),)), ["no maze", "PointMaze"]),
        (EnvConfig(name="PointMaze_UMaze-v3", start_cells=((1, 1), (2, 2))), ["in a wall: [(2, 2)]"]),
    ],
    ids=lambda value: value.name if isinstance(value, EnvConfig) else "",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_form_that_a_simulation_cannot_take_is_told(config: EnvConfig, words: list[str]) -> None:
    with pytest.raises(BadInputError) as told:
        make_goal_env(config)
    assert all(word in str(told.value) for word in words), told.value


def test_an_impossible_configuration_is_refused() -> None:
    with pytest.raises(ValidationError, match="goals are images"):
        EnvConfig(name="FetchReach-v4", observations="image", goals="state_zero_padded")
    with pytest.raises(ValidationError, match="greater than or equal to 36"):
        EnvConfig(name="FetchReach-v4", observations="image", image_size=35)
