"""`Evaluation`: what was measured of an encoder, on what, with intervals; to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import Estimate
from counterpoint.rewards.model import RewardForm

__all__ = ["Evaluation", "Heatmap"]


@dataclass(frozen=True)
class Heatmap:
    """Mean segment scores: DecisionNCE's Figure 6.

    Attributes:
        name: Which segments.
        rows: Instructions that the segments carry out.
        columns: Instructions they are scored under.
        values: Mean score, one row a row.
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and on what.

    Attributes:
        form: Of the reward curves.
        segments: Of the scores of segments. Estimates of both forms are kept: `voc.potential`,
            `voc.direction`.
        seed: Of segments, shuffles and resamples.
        videos: How many.
        frames: How many were embedded.
        chance: Matched accuracy of a coin: one over the number of instructions.
        instructions: The candidates.
        fingerprint: Of the data.
        estimates: Name -> number with interval; `docs/methods/metrics.md` defines each name.
        heatmaps: Short segments, then whole videos, scored as `segments` says.
    """

    form: RewardForm
    segments: RewardForm
    seed: int
    videos: int
    frames: int
    chance: float
    instructions: tuple[str, ...]
    fingerprint: str
    estimates: Mapping[str, Estimate]
    heatmaps: tuple[Heatmap, ...]

    def __getitem__(self, name: str) -> Estimate:
        """An estimate by name; `voc` means `voc.potential` or `voc.direction`, as `form` says."""
        form = self.form if name.startswith(("voc", "kendall")) else self.segments
        return self.estimates[name if name in self.estimates else f"{name}.{form}"]

    def to_json(self) -> str:
        """Strict JSON: numbers that are not defined are null."""
        return json.dumps(_nan_to_none(asdict(self)), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """What `to_json` wrote.

        Raises:
            BadInputError: When the text is something else.
        """
        try:
            tree = json.loads(text)
            tree["estimates"] = {name: _estimate(parts) for name, parts in tree["estimates"].items()}
            tree["heatmaps"] = tuple(Heatmap(**_tuples(parts)) for parts in tree["heatmaps"])
            return cls(**{**tree, "instructions": tuple(tree["instructions"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                "evaluation", found=f"{error!r}", expected="JSON by Evaluation.to_json", mend="evaluate again"
            ) from None


def _nan_to_none(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _nan_to_none(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_nan_to_none(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _estimate(parts: Mapping[str, Any]) -> Estimate:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in parts.items()}
    return Estimate(**values)


def _tuples(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _tuples(value) for name, value in tree.items()}
    return tuple(_tuples(value) for value in tree) if isinstance(tree, list) else tree
