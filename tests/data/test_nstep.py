from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.data.spec import NearNegatives, NStepSpec
from counterpoint.errors import BadInputError


def servable(spec: NStepSpec, length: int) -> list[int]:
    """Anchors by the definition: every later step exists, and a negative where one is asked for."""
    found = []
    for t in range(length):
        later = [*(t + offset for offset in spec.offsets), t + max(0, spec.actions - 1)]
        if max(later) > length - 1:
            continue
        if spec.near is not None:
            p = t + spec.offsets[-1]
            near = {p + d for d in range(-spec.near.window, spec.near.window + 1) if d != 0}
            near = {s for s in near if 0 <= s < length and not (spec.near.exclude_anchor and s == t)}
            if not near:
                continue
        found.append(t)
    return found


@given(
    K=st.integers(0, 6),
    W=st.integers(1, 6),
    length=st.integers(1, 20),
    near=st.booleans(),
    exclude=st.booleans(),
    offsets=st.sampled_from(["positive", "all", "before"]),
)
def test_anchors_are_those_that_can_be_served(
    K: int, W: int, length: int, near: bool, exclude: bool, offsets: str
) -> None:
    chosen = {"positive": (0, K), "all": tuple(range(K + 1)), "before": (-2, 0, K)}[offsets]
    spec = NStepSpec(chosen, K, NearNegatives(W, exclude) if near else None)
    expected = servable(spec, length)
    assert expected == list(range(len(expected)))
    assert spec.anchors(np.array([length])).tolist() == [len(expected)]
    assert (length >= spec.min_length) == bool(expected)


def test_views_count_offsets_and_negatives() -> None:
    assert NStepSpec((0, 3), 3).views == 2
    assert NStepSpec((0, 3), 3, NearNegatives(5)).views == 3
    assert NStepSpec((0, 3), 3, NearNegatives(5, every=True)).views == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offsets": ()}, "at least one offset"),
        ({"offsets": (0,), "stack": 0}, "one frame a stack"),
        ({"offsets": (0, 3), "near": NearNegatives(0)}, "1 or more"),
        ({"offsets": (0, -1), "near": NearNegatives(2)}, "a last offset of 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        NStepSpec(**{"actions": 1, **settings})  # type: ignore[arg-type]
