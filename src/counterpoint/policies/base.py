"""The protocol that agents, cloned and diffusion policies and scripted controllers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Policy(Protocol):
    """A controller of many environments at once; each has a row, which keeps the policy's memory of the episode."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Begin an episode in each of these rows.

        Args:
            rows: Numbers of environments.
            seeds: Seed of each episode. Random numbers of an episode depend on its seed alone, and not on the episodes
                beside it. Without seeds, a policy numbers its episodes itself.
        """

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return, for each row, whether the next `act` reads its images; images that are not read may hold anything.

        A policy that executes several actions of a plan need not see the steps in between, and rendering is most of
        a simulation's work. State is always needed. The first observation after `reset` is always read.
        """

    def act(
        self, observation: Mapping[str, NDArray[Any]], *, rows: Sequence[int], explore: bool = False
    ) -> NDArray[Any]:
        """Return actions for n of the rows.

        Args:
            observation: The environments' observations, stacked: uint8 images [n, H, W, 3] by camera and float32
                "state" [n, P], or "observation", "achieved_goal" and "desired_goal" [n, ...].
            rows: Rows that the observations come from.
            explore: Sample from the policy, as when collecting data; otherwise take its mode, as when evaluating.

        Returns:
            float32 [n, A] in the environment's units, or int64 [n] where actions are discrete.
        """
