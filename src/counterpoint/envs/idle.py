"""An environment that stands still once its episode is over, while others beside it go on."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from counterpoint.errors import MissingExtraError

try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtraError("gymnasium", "sim") from None

__all__ = ["IdleAfterEnd"]

Observation = dict[str, NDArray[Any]]
Answer = tuple[Observation, float, bool, bool, dict[str, Any]]


class IdleAfterEnd(gymnasium.Wrapper[Observation, Any, Observation, Any]):
    """Gives its last answer again after the end of an episode, until the next reset.

    Environments side by side get an action each at every step, the finished ones too. A simulation that is pushed on
    after its end costs time, and may end in states of which nothing good can be said.

    Args:
        env: Any environment.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any]) -> None:
        super().__init__(env)
        self._last: Answer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        self._last = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Answer:
        """Take one step; none after the end."""
        if self._last is not None:
            return self._last
        observation, reward, terminated, truncated, info = self.env.step(action)
        answer = (observation, float(reward), terminated, truncated, info)
        if terminated or truncated:
            self._last = answer
        return answer
