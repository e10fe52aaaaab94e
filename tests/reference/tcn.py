"""TCN in its InfoNCE form, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.reference.vip import Vector, distance


def tcn_loss(anchor: Sequence[Vector], positive: Sequence[Vector], negatives: Sequence[Sequence[Vector]]) -> float:
    total = 0.0
    for a, p, others in zip(anchor, positive, negatives, strict=True):
        near = math.exp(-distance(a, p))
        total += -math.log(near / (near + sum(math.exp(-distance(a, n)) for n in others)))
    return total / len(anchor)
