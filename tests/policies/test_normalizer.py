from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.data.statistics import Statistics
from counterpoint.errors import BadInputError
from counterpoint.policies.normalizer import LinearNormalizer


def fitted(values: list[list[float]]) -> LinearNormalizer:
    made = LinearNormalizer(len(values[0]))
    made.normalise_by(Statistics.of(np.array(values)))
    return made


def test_range_becomes_minus_one_to_one() -> None:
    made = fitted([[0.0, -3.0], [10.0, 5.0], [2.5, 1.0]])
    normalised = made(torch.tensor([[0.0, -3.0], [10.0, 5.0], [2.5, 1.0]]))
    torch.testing.assert_close(normalised, torch.tensor([[-1.0, -1.0], [1.0, 1.0], [-0.5, 0.0]]))


def test_what_stands_still_is_not_blown_up() -> None:
    made = fitted([[5.0, 0.0], [5.0, 9e-5]])
    torch.testing.assert_close(made(torch.tensor([5.0, 0.0])), torch.zeros(2))
    torch.testing.assert_close(made(torch.tensor([5.5, 9e-5])), torch.tensor([0.5, 9e-5]))
    restored = made.restore(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    torch.testing.assert_close(restored, torch.tensor([[5.0, 9e-5], [5.0, 0.0]]))


def test_before_it_is_told_it_changes_nothing() -> None:
    values = torch.tensor([-1.0, 0.25, 1.0])
    torch.testing.assert_close(LinearNormalizer(3)(values), values)
    torch.testing.assert_close(LinearNormalizer(3).restore(values), values)


@given(
    low=st.floats(-1e3, 1e3),
    spread=st.one_of(st.just(0.0), st.floats(1e-6, 1e3)),
    share=st.floats(0, 1),
    outside=st.floats(-10, 10),
)
def test_there_and_back(low: float, spread: float, share: float, outside: float) -> None:
    made = fitted([[low], [low + spread]])
    value = torch.tensor([low + share * spread])
    normalised = made(value)
    # float32 knows a number near 1000 to 6e-5, and a range is at least 1e-4 where it is divided by.
    assert bool((normalised.abs() <= 1 + 4e-7 * (abs(low) + spread) / max(spread, 1e-4)).all())
    # The way back adds and multiplies numbers as large as the range's ends, whatever the value's own size.
    rounding = 4 * torch.finfo(torch.float32).eps * (abs(low) + spread)
    torch.testing.assert_close(made.restore(normalised), value, rtol=0, atol=rounding)
    restored = made.restore(torch.tensor([outside]))
    assert bool((made.low <= restored).all() & (restored <= made.high).all())


def test_it_is_saved_with_the_module() -> None:
    made, empty = fitted([[0.0, -3.0], [10.0, 5.0]]), LinearNormalizer(2)
    empty.load_state_dict(made.state_dict())
    values = torch.tensor([[7.0, 1.5]])
    torch.testing.assert_close(empty(values), made(values))
    torch.testing.assert_close(empty.restore(values), made.restore(values))


def test_bad_statistics_are_named() -> None:
    with pytest.raises(BadInputError, match="3 dimensions; expected 2"):
        LinearNormalizer(2).normalise_by(Statistics.of(np.zeros((4, 3))))
    for broken in (np.nan, np.inf):
        with pytest.raises(BadInputError, match="not finite in dimension 1"):
            LinearNormalizer(2).normalise_by(
                Statistics.model_construct(mean=(0.5, 0.0), deviation=(0.5, 0.0), low=(0.0, broken), high=(1.0, 2.0))
            )
