from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoint.envs.rendering import choose_backend

choose_backend()  # before any test imports a simulator


@pytest.fixture(scope="session")
def simulator() -> None:
    pytest.importorskip("metaworld", reason="needs the extra `sim`")


@pytest.fixture(scope="module")
def slider() -> Iterator[None]:
    """Environments of `toy_goals`, by names that gymnasium knows."""
    import gymnasium
    from gymnasium import spaces

    toy = "tests.envs.toy_goals:Slider"
    gymnasium.register("Slider-v0", toy, max_episode_steps=5)
    gymnasium.register("EndlessSlider-v0", toy)
    gymnasium.register("BreakingSlider-v0", toy, max_episode_steps=5, kwargs={"breaks": True})
    gymnasium.register("MuteSlider-v0", toy, max_episode_steps=5, kwargs={"judges": False})
    choices = {"actions": spaces.Discrete(3)}
    gymnasium.register("DiscreteSlider-v0", toy, max_episode_steps=5, kwargs=choices)
    from_five = {"actions": spaces.Discrete(3, start=5)}
    gymnasium.register("FromFiveSlider-v0", toy, max_episode_steps=5, kwargs=from_five)
    gymnasium.register("LongGoalSlider-v0", toy, max_episode_steps=5, kwargs={"goal": (2,)})
    gymnasium.register("SquareGoalSlider-v0", toy, max_episode_steps=5, kwargs={"goal": (1, 1)})
    unbounded = {"actions": spaces.Box(-np.inf, np.inf, (1,), np.float32)}
    gymnasium.register("UnboundedSlider-v0", toy, max_episode_steps=5, kwargs=unbounded)
    yield
    for name in [name for name in gymnasium.registry if "Slider-v0" in name]:
        del gymnasium.registry[name]
