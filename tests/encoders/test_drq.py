from __future__ import annotations

import pytest
import torch

from counterpoint.encoders.observation import DrQConvNet


def test_the_papers_size_has_the_papers_number_of_parameters() -> None:
    # Appendix C: "around 3.95 million". 32 channels of 35 x 35 go into the trunk.
    net = DrQConvNet(9, 84, 100)
    convolutions = (9 * 9 + 1) * 32 + 3 * (32 * 9 + 1) * 32
    trunk = 32 * 35 * 35 * 100 + 100 + 2 * 100
    assert sum(parameter.numel() for parameter in net.parameters()) == convolutions + trunk == 3_950_668


@pytest.mark.parametrize("size", [15, 42, 64, 84])
def test_any_size_and_every_output_within_one(size: int) -> None:
    torch.manual_seed(0)
    out = DrQConvNet(3, size, 7, width=4)(torch.randn(2, 3, size, size) * 10)
    assert out.shape == (2, 7)
    assert out.abs().max() <= 1
