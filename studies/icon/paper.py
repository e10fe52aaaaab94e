"""The numbers of the ICon paper, to compare ours with.

Success rates with their standard deviations over three training seeds, 50 initial conditions each (Wang and Lin,
"Grounding Bodily Awareness in Visual Representations for Efficient Policy Learning", 2025). The paper's demonstrations
were recorded by people, and its masks come from SAM. Its text has no numbers of Figures 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

METHODS = ("Diff-C", "Diff-T", "Crossway-Diff-C", "ICon-Diff-C", "ICon-Diff-T")
"""Methods of Table 1, by the paper's names."""
_THREE = ("Diff-C", "Crossway-Diff-C", "ICon-Diff-C")
_TWO = ("Diff-C", "ICon-Diff-C")


@dataclass(frozen=True)
class PaperNumber:
    """A cell of one of the paper's tables.

    Attributes:
        mean: Success rate.
        deviation: Standard deviation over the three seeds; 0 if the paper prints none.
        source: The table.
    """

    mean: float
    deviation: float
    source: str

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.deviation:.3f} ({self.source})"


def _row(source: str, methods: tuple[str, ...], *cells: tuple[float, float]) -> dict[str, PaperNumber]:
    return {name: PaperNumber(mean, deviation, source) for name, (mean, deviation) in zip(methods, cells, strict=True)}


def _transferred(*cells: tuple[float, float]) -> dict[str, PaperNumber]:
    return _row("Table 3", _TWO, *cells)


PAPER: Mapping[str, Mapping[str, PaperNumber]] = {
    "rlbench/close_microwave": _row(
        "Table 1", METHODS, (0.040, 0.016), (0.993, 0.009), (0.033, 0.019), (0.153, 0.034), (1.000, 0.0)
    ),
    "rlbench/close_drawer": _row(
        "Table 1", METHODS, (0.713, 0.034), (0.893, 0.025), (0.667, 0.041), (0.713, 0.050), (0.913, 0.047)
    ),
    "rlbench/take_lid_off_saucepan": _row(
        "Table 1", METHODS, (0.033, 0.019), (0.280, 0.075), (0.073, 0.025), (0.113, 0.050), (0.413, 0.151)
    ),
    "rlbench/open_box": _row(
        "Table 1", METHODS, (0.087, 0.074), (0.113, 0.090), (0.047, 0.066), (0.300, 0.043), (0.127, 0.019)
    ),
    "rlbench/put_rubbish_in_bin": _row(
        "Table 1", METHODS, (0.000, 0.0), (0.033, 0.025), (0.000, 0.0), (0.000, 0.0), (0.093, 0.082)
    ),
    "robosuite/Lift": _row("Table 2", _THREE, (0.527, 0.104), (0.573, 0.100), (0.487, 0.057)),
    "robosuite/Door": _row("Table 2", _THREE, (0.860, 0.028), (0.827, 0.082), (0.887, 0.034)),
    "robosuite/Stack": _row("Table 2", _THREE, (0.160, 0.016), (0.067, 0.025), (0.220, 0.016)),
    "robosuite/Lift-Kinova3": _transferred((0.233, 0.066), (0.260, 0.102)),
    "robosuite/Lift-IIWA": _transferred((0.060, 0.016), (0.040, 0.028)),
    "robosuite/Stack-Kinova3": _transferred((0.007, 0.009), (0.053, 0.025)),
    "robosuite/Stack-IIWA": _transferred((0.007, 0.009), (0.047, 0.025)),
}
"""Success by task and method. Policies of other robots were transferred, not trained from scratch."""


def paper_number(task: str, method: str, *, alone: bool = False) -> PaperNumber | None:
    """Return the paper's number of a method on `SUITE/TASK`; `None` if there is none, as for `alone`."""
    return None if alone else PAPER.get(task, {}).get(method)
