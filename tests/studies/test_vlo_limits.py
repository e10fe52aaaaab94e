from __future__ import annotations

import pytest
import torch

from studies.vlo_limits import greatest_gap, minimised, property_of


@pytest.mark.parametrize("T", [3, 5, 10])
def test_a_steady_rise_has_the_greatest_gap_and_even_ties(T: int) -> None:
    steady = torch.linspace(-1, 1, T, dtype=torch.float64)
    for temperature in (1.0, 0.01):
        gap, tie = property_of(steady, temperature)
        assert gap == pytest.approx(greatest_gap(T, temperature))
        assert tie == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("T", [3, 4, 5])
def test_no_cosines_have_a_greater_gap(T: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = 2 * torch.rand(3000, T, generator=generator, dtype=torch.float64) - 1
    rising = drawn.sort(1).values
    assert max(property_of(row, 1.0)[0] for row in torch.cat([drawn[:500], rising[:500]])) <= greatest_gap(T, 1.0)
    assert greatest_gap(T, 1.0) <= 1  # where the definition asks for more than 1 / delta > 1


def test_raw_cosines_at_the_minimum_do_not_have_the_property_and_divided_ones_do() -> None:
    raw, above = minimised(5, 1.0, starts=16, steps=400)
    assert above > 0.3
    assert property_of(raw, 1.0)[0] < 1
    divided, above = minimised(5, 0.01, starts=16, steps=400)
    gap, tie = property_of(divided, 0.01)
    assert above < 1e-6
    assert gap > 1
    assert tie < 1
