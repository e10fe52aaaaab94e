"""Farthest point sampling on a token grid: tokens of a mask that lie well apart (ICon, Algorithm 1).

    Algorithm 1    k_1 anywhere in the mask; k_{i+1} = argmax over the mask of min_{j <= i} |v - v_{k_j}|_1

Distances are between the tokens' places on the grid, never between features: which tokens are chosen depends on the
mask alone. Equal distances are common on a grid. Of several farthest tokens the first in the order given is taken;
another order of `mask` and `positions` breaks ties another way.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from counterpoint.errors import BadInputError

__all__ = ["farthest_point_sampling", "grid_positions", "random_point_sampling"]


def grid_positions(height: int, width: int, *, device: torch.device | None = None) -> Int[Tensor, "P 2"]:
    """Row and column of every token of a grid in raster order: int64, P = height * width."""
    return torch.cartesian_prod(
        torch.arange(height, device=device), torch.arange(width, device=device)
    ).reshape(height * width, 2)


@torch.no_grad()
def farthest_point_sampling(
    mask: Bool[Tensor, "B P"],
    count: int,
    *,
    positions: Shaped[Tensor, "P 2"],
    start: Int[Tensor, " B"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B count"]:
    """Tokens of each row's mask, each as far from those before it as can be (Algorithm 1; L1 distance).

    Args:
        mask: Which tokens may be chosen.
        count: Tokens a row.
        positions: Place of every token, one for all rows.
        start: The first choice of every row, in its mask. `None`: uniform over the mask.
        generator: Source of the random start; the default one where none is given.

    Returns:
        int64 indices into P, no two of a row alike. A row whose mask has fewer than `count` tokens has all of them
        and then its first one again and again; an empty row has none to choose from and holds zeros.

    Raises:
        BadInputError: Shapes that do not pair up, or a `count` that is not from 1 to P.
    """
    _check(mask, count)
    if positions.shape != (mask.shape[1], 2):
        raise BadInputError(
            "positions",
            found=f"shape {tuple(positions.shape)}",
            expected=f"[{mask.shape[1]}, 2], a place for every token of the mask",
            mend="pass grid_positions(height, width)",
        )
    pick = _priorities(mask, generator).argmax(1) if start is None else start
    # Whole numbers below 2048 are exact in half precision and sums of two in single: grids are far smaller.
    places = positions.to(device=mask.device, dtype=torch.float32)
    distances = (places[:, None] - places).abs().sum(-1)
    # Tokens outside the mask stay nearest to what is chosen, whatever it is.
    nearest = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask, torch.inf).sub_(1)
    picks = [pick]
    for _ in range(count - 1):
        torch.minimum(nearest, distances[pick], out=nearest)
        pick = nearest.argmax(1)
        picks.append(pick)
    return torch.stack(picks, 1)


@torch.no_grad()
def random_point_sampling(
    mask: Bool[Tensor, "B P"], count: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "B count"]:
    """Tokens of each row's mask, uniformly and without replacement: what Fig. 5 compares with ("w/o FPS").

    Takes `mask`, `count` and `generator` of `farthest_point_sampling`.

    Returns:
        int64 indices into P, no two of a row alike. A row whose mask has fewer than `count` tokens has all of them
        and then one of them again and again; an empty row holds any one index.

    Raises:
        BadInputError: A mask that is not boolean [B, P], or a `count` that is not from 1 to P.
    """
    _check(mask, count)
    drawn, picks = _priorities(mask, generator).topk(count, dim=1)
    return picks.where(drawn >= 0, picks[:, :1])


def _priorities(mask: Bool[Tensor, "B P"], generator: torch.Generator | None) -> Float[Tensor, "B P"]:
    """Uniform numbers inside the mask, -1 outside."""
    device = mask.device if generator is None else generator.device
    drawn = torch.rand(mask.shape, generator=generator, device=device).to(mask.device)
    return drawn.masked_fill_(~mask, -1)


def _check(mask: Tensor, count: int) -> None:
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise BadInputError(
            "mask",
            found=f"{mask.dtype} of shape {tuple(mask.shape)}",
            expected="bool [B, P]",
            mend="pass patch_mask(...)",
        )
    if not 1 <= count <= mask.shape[1]:
        raise BadInputError(
            "count",
            found=f"{count} of {mask.shape[1]} tokens",
            expected="from 1 to the number of tokens",
            mend="ask for fewer, or use smaller patches",
        )
