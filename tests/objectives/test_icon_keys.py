from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.icon import farthest_point_sampling, grid_positions, random_point_sampling
from tests.golden.load import golden
from tests.reference.icon import farthest_points


def random_masks(B: int, P: int, seed: int, share: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(B, P, generator=generator) < share


def test_grid_positions_are_in_raster_order() -> None:
    assert grid_positions(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("order", ["identity", "perm0", "perm1"])
@pytest.mark.parametrize("side", ["agent", "env"])
def test_authors_numbers(order: str, side: str) -> None:
    arrays, meta = golden("icon_fps_a")
    permutation, expected = arrays[f"{order}_perm"], arrays[f"{order}_{side}_idx"]
    mask = arrays["mask"].bool() if side == "agent" else ~arrays["mask"].bool()
    positions = grid_positions(meta["hyper"]["grid"], meta["hyper"]["grid"])
    # Ties go to the first in the order given, so the tokens are given in the authors' order.
    picks = farthest_point_sampling(
        mask[:, permutation],
        expected.shape[1],
        positions=positions[permutation],
        start=permutation.argsort()[expected[:, 0]],
    )
    assert torch.equal(permutation[picks], expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 7), width=st.integers(1, 7), share=st.floats(0.1, 1))
def test_plain_loop(seed: int, height: int, width: int, share: float) -> None:
    P = height * width
    mask = random_masks(3, P, seed, share)
    mask[:, seed % P] = True
    order = torch.randperm(P, generator=torch.Generator().manual_seed(seed))
    positions = grid_positions(height, width)[order]
    count = int(mask.sum(1).min())
    picks = farthest_point_sampling(mask, count, positions=positions, generator=torch.Generator().manual_seed(seed))
    places = [(int(k), int(j)) for k, j in positions.tolist()]
    for inside, row in zip(mask.tolist(), picks.tolist(), strict=True):
        assert row == farthest_points(inside, places, count, row[0])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 20))
def test_every_pick_is_as_far_as_can_be(seed: int, count: int) -> None:
    mask = random_masks(4, 36, seed)
    mask[:, :count] = True
    positions = grid_positions(6, 6)
    picks = farthest_point_sampling(mask, count, positions=positions)
    distance = (positions[:, None] - positions).abs().sum(-1)
    for inside, row in zip(mask, picks, strict=True):
        assert inside[row].all()
        assert len(set(row.tolist())) == count
        for i in range(1, count):
            nearest = distance[row[:i]].min(0).values
            assert nearest[row[i]] == nearest[inside].max()


def test_rows_do_not_touch_each_other() -> None:
    mask = random_masks(5, 25, 3)
    start = mask.float().argmax(1)
    positions = grid_positions(5, 5)
    together = farthest_point_sampling(mask, 6, positions=positions, start=start)
    for b in range(5):
        alone = farthest_point_sampling(mask[b : b + 1], 6, positions=positions, start=start[b : b + 1])
        assert torch.equal(alone[0], together[b])


def test_too_few_tokens() -> None:
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, [4, 8]] = True
    picks = farthest_point_sampling(mask, 4, positions=grid_positions(3, 3), start=torch.tensor([8, 0]))
    assert picks.tolist() == [[8, 4, 4, 4], [0, 0, 0, 0]]
    drawn = random_point_sampling(mask, 4)
    assert set(drawn[0].tolist()) == {4, 8}
    assert len(set(drawn[1].tolist())) == 1


@pytest.mark.parametrize("kind", ["farthest", "random"])
def test_starts_are_uniform_over_the_mask_and_repeatable(kind: str) -> None:
    mask = torch.zeros(4000, 9, dtype=torch.bool)
    mask[:, [1, 5, 6, 8]] = True

    def sample(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if kind == "random":
            return random_point_sampling(mask, 2, order=torch.rand(mask.shape, generator=generator))
        return farthest_point_sampling(mask, 2, positions=grid_positions(3, 3), generator=generator)

    picks = sample(0)
    assert torch.equal(picks, sample(0))
    assert not torch.equal(picks, sample(1))
    shares = picks[:, 0].bincount(minlength=9) / len(mask)
    torch.testing.assert_close(shares[[1, 5, 6, 8]], torch.full((4,), 0.25), atol=0.04, rtol=0)
    assert mask[0][picks].all()


def test_random_tokens_are_uniform_and_distinct() -> None:
    mask = torch.zeros(4000, 12, dtype=torch.bool)
    mask[:, 2:10] = True
    order = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0))
    picks = random_point_sampling(mask, 5, order=order)
    assert (picks.sort(1).values.diff(dim=1) > 0).all()
    shares = picks.flatten().bincount(minlength=12) / len(mask)
    torch.testing.assert_close(shares[2:10], torch.full((8,), 5 / 8), atol=0.04, rtol=0)
    assert shares[[0, 1, 10, 11]].sum() == 0


def test_farther_apart_than_random_tokens() -> None:
    mask = random_masks(64, 144, 0)
    positions = grid_positions(12, 12).float()

    def closest(picks: Tensor) -> Tensor:
        apart = torch.cdist(positions[picks], positions[picks], p=1)
        return (apart + 1e3 * torch.eye(picks.shape[1])).amin((1, 2)).mean()

    assert closest(farthest_point_sampling(mask, 12, positions=positions)) > 1.5 * closest(
        random_point_sampling(mask, 12)
    )


@pytest.mark.parametrize("count", [0, 10])
def test_impossible_counts_are_refused(count: int) -> None:
    mask = torch.ones(2, 9, dtype=torch.bool)
    with pytest.raises(BadInputError, match="count"):
        farthest_point_sampling(mask, count, positions=grid_positions(3, 3))
    with pytest.raises(BadInputError, match="count"):
        random_point_sampling(mask, count)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(BadInputError, match="bool"):
        farthest_point_sampling(torch.ones(2, 9), 2, positions=grid_positions(3, 3))
    with pytest.raises(BadInputError, match="positions"):
        farthest_point_sampling(torch.ones(2, 9, dtype=torch.bool), 2, positions=grid_positions(3, 4))


def test_makes_nothing_on_another_device() -> None:
    mask = torch.ones(2, 9, dtype=torch.bool, device="meta")
    assert farthest_point_sampling(mask, 3, positions=grid_positions(3, 3)).is_meta
