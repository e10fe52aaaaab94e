"""The protocol shared by agents, cloned policies, diffusion policies and scripted controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Policy(Protocol):
    """A controller of many environments at once. Each environment is a row, with a separate memory of its episode."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Begin an episode in each of these rows.

        Args:
            rows: Numbers of environments.
            seeds: Seed of each episode. Random numbers of an episode depend only on its seed, and not on episodes in
                other rows. Without seeds, the policy chooses them by numbering its episodes.
        """

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return True for each row whose images the next `act` reads; images that are not read may hold anything.

        A policy that executes several actions of a plan does not need the images in between, and rendering takes most
        of a simulation's time. State is always needed. The first observation after `reset` is always read.
        """

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        """Return actions for n given rows.

        Args:
            observation: The environments' observations, stacked: uint8 images [n, H, W, 3] by camera and float32
                "state" [n, P], or "observation", "achieved_goal" and "desired_goal" [n, ...].
            rows: Rows that the observations come from.
            explore: Sample from the policy, as for collecting data; otherwise return its mode, as for evaluation.

        Returns:
            float32 [n, A] in the environment's units, or int64 [n] if actions are discrete.
        """
