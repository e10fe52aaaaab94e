"""Two measures inside a ViT: its attention on the robot, and how well a linear probe separates the robot's tokens.

The attention of the class token in the last block (ICon, Fig. 6), averaged over heads, is summed over the tokens that
the robot fills (Eq. 2) and divided by its sum over all patch tokens. Uniform attention gives the robot's share of the
tokens.

ICon separates the robot from its surroundings in the space of features (section 3). A logistic regression on
standardised tokens of training episodes is evaluated on tokens of other episodes. The score is the balanced accuracy,
because most tokens are not the robot's; 0.5 is chance. If the robot is often at one location, position embeddings
reveal it, so an untrained ViT scores far above chance. It is the baseline of trained ViTs. The control is
`position_separability`, which sees only positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.encoders.tokens import vit_parts
from counterpoint.errors import BadInputError, import_extra, require

Array = NDArray[np.float64]


def attention_share(
    attention: Float[Array, "n P"], robot: Bool[NDArray[np.bool_], "n P"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the robot's share of the attention on patch tokens, and the robot's share of the tokens.

    Attention to the class token and to registers is left out. Both shares are nan for an image in which no token, or
    every token, is the robot's.

    Args:
        attention: Attention of each image's class token on its patch tokens, mean over heads, not negative.
        robot: The token masks.

    Raises:
        BadInputError: If shapes differ, or attention is negative, not finite, or nothing at all in an image.
    """
    attention, robot = np.asarray(attention, np.float64), np.asarray(robot, bool)
    ok, found = attention.ndim == 2 and attention.shape == robot.shape, f"shape {robot.shape} beside {attention.shape}"
    require(ok, "token masks", found, "one row an image, one column a patch token", "use the ViT's input size")
    total = attention.sum(1)
    ok = bool(np.isfinite(attention).all() and (attention >= 0).all() and (total > 0).all())
    found = "weights that are negative, not finite, or zero throughout an image"
    require(ok, "attention", found, "weights of a softmax", "check that the encoder's weights are finite")
    area = robot.mean(1)
    area[(area == 0) | (area == 1)] = np.nan
    return np.where(np.isnan(area), np.nan, (attention * robot).sum(1) / total), area


def episode_means(values: Float[Array, " n"], episodes: Sequence[int] | NDArray[np.int64]) -> Float[Array, " episodes"]:
    """Return the mean of each episode's images, in the order of episodes; nan if all values of an episode are nan.

    Images of one episode are nearly alike, so intervals are over episodes.

    Args:
        values: One value per image; nan if it is not defined.
        episodes: The episode of each image.
    """
    numbers, index = np.unique(np.asarray(episodes), return_inverse=True)
    defined = ~np.isnan(values)
    sums = np.bincount(index, np.where(defined, values, 0.0), minlength=len(numbers))
    counts = np.bincount(index, defined, minlength=len(numbers))
    means: Array = np.divide(sums, counts, out=np.full(len(numbers), np.nan), where=counts > 0)
    return means


Tokens = Float[np.ndarray[Any, np.dtype[np.float32]], "n P D"]  # numpy 2.5's NDArray is no class
Masks = Bool[np.ndarray[Any, np.dtype[np.bool_]], "n P"]  # numpy 2.5's NDArray is no class

MOST_TOKENS = 4000
"""Number of tokens on which a probe is fitted, sampled at random; half of them are the robot's if there are enough."""


def separability(
    train: Tokens, train_robot: Masks, test: Tokens, test_robot: Masks, *, seed: int = 0, most: int = MOST_TOKENS
) -> float:
    """Return the balanced accuracy, on `test`, of a linear probe fitted on `train`.

    Args:
        train: Patch tokens.
        train_robot: True for tokens that the robot fills.
        test: Patch tokens of other images.
        test_robot: True for tokens that the robot fills.
        seed: Random seed for the choice of tokens.
        most: Maximum number of tokens to fit on.

    Raises:
        BadInputError: If shapes differ, or there are tokens of only one kind.
    """
    for name, tokens, robot in (("train", train, train_robot), ("test", test, test_robot)):
        _check(name, tokens, robot)
    linear, pipeline, scaling, metrics = (
        import_extra(f"sklearn.{name}", "report") for name in ("linear_model", "pipeline", "preprocessing", "metrics")
    )
    chosen = _chosen(train_robot.ravel(), seed, most)
    fitted = pipeline.make_pipeline(
        scaling.StandardScaler(), linear.LogisticRegression(class_weight="balanced", max_iter=500)
    )
    with warnings.catch_warnings():  # separable tokens have no optimum to converge to
        warnings.simplefilter("ignore", import_extra("sklearn.exceptions", "report").ConvergenceWarning)
        fitted.fit(train.reshape(-1, train.shape[-1])[chosen], train_robot.ravel()[chosen])
    guessed = fitted.predict(test.reshape(-1, test.shape[-1]))
    return float(metrics.balanced_accuracy_score(test_robot.ravel(), guessed))


def position_separability(train_robot: Masks, test_robot: Masks) -> float:
    """Return the balanced accuracy, on `test_robot`, of the best guess from only a token's position.

    A position counts as the robot's if its share of the robot's training tokens exceeds its share of other tokens.

    Args:
        train_robot: True for tokens that the robot fills, of training images.
        test_robot: The same for other images.
    """
    robot, other = train_robot.sum(0) / train_robot.sum(), (~train_robot).sum(0) / (~train_robot).sum()
    guessed = np.broadcast_to(robot > other, test_robot.shape)
    return float((guessed[test_robot].mean() + (~guessed)[~test_robot].mean()) / 2)


def _chosen(robot: Bool[NDArray[np.bool_], " N"], seed: int, most: int) -> NDArray[np.int64]:
    """Return the indices of at most `most` tokens, first of the rarer kind, so that few robot tokens are all used."""
    rng = np.random.default_rng(seed)
    kinds = sorted((np.flatnonzero(robot), np.flatnonzero(~robot)), key=len)
    rare = rng.permutation(kinds[0])[: max(1, most // 2)]
    common = rng.permutation(kinds[1])[: max(1, most - len(rare))]
    return np.sort(np.concatenate([rare, common]))


def _check(name: str, tokens: Tokens, robot: Masks) -> None:
    where, ok = f"{name} tokens", tokens.ndim == 3 and tokens.shape[:2] == robot.shape
    found = f"shape {tokens.shape} with masks of shape {robot.shape}"
    require(ok, where, found, "tokens [n, P, D] and masks [n, P]", "give the masks of the same images")
    found, finite = "values that are not finite", np.isfinite(tokens).all()
    require(finite, where, found, "finite features", "check that the encoder's weights are finite")
    found = "the robot's alone" if robot.all() else "none of the robot's"
    both = robot.any() and not robot.all()
    require(both, where, found, "tokens of both kinds", "take images of the robot and its surroundings")


@torch.no_grad()
def attention_maps(vit: nn.Module, images: Float[Tensor, "n 3 H W"]) -> Float[Tensor, "n heads P"]:
    """Return the attention of the last block's class token to each patch (ICon, Fig. 6, before the mean of heads).

    For a model without a class token, it is the mean over the queries of all patches. Fused kernels do not store
    attention, so it is recomputed from the block's input, without dropout.

    Args:
        vit: A Vision Transformer of timm or open_clip.
        images: Images, normalised as the model expects.

    Returns:
        Attention in raster order, float32; a row's sum, with the attention to class token and registers, is 1.

    Raises:
        BadInputError: If the model has no patch tokens, or its last block has another kind of attention (relative or
            rotary positions).
    """
    parts = vit_parts(vit)
    attention: Any = getattr(parts.blocks[-1], "attn", None)
    queries_and_keys = _reader(attention)
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        vit(images)
    finally:
        hook.remove()
    tokens = seen[0] if parts.batch_first else seen[0].transpose(0, 1)
    with torch.autocast(tokens.device.type, enabled=False):
        query, key = queries_and_keys(attention, tokens.to(next(attention.parameters()).dtype))
        query = query[:, :, :1] if parts.class_token else query[:, :, parts.prefix :]
        shares = (query.float() @ key.float().mT / key.shape[-1] ** 0.5).softmax(-1)
    maps: Tensor = shares.mean(2)[..., parts.prefix :]
    return maps


Reader = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def _reader(attention: object) -> Reader:
    """Return the function that computes queries and keys [n, heads, N, d] of this kind of attention."""
    if isinstance(attention, nn.MultiheadAttention) and attention.in_proj_weight is not None:
        return _of_torch
    if type(attention).__module__ == "timm.layers.attention" and type(attention).__name__ == "Attention":
        return _of_timm
    found = f"a last block with {type(attention).__name__}"
    expected = "timm's Attention or torch's MultiheadAttention, whose scores are scaled products of queries and keys"
    raise BadInputError("vit", found, expected, "use a plain Vision Transformer, such as vit_small_patch16_224")


def _of_timm(attention: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    both = attention.qkv(tokens).unflatten(-1, (3, attention.num_heads, -1))[:, :, :2]
    query, key = both.permute(2, 0, 3, 1, 4)
    return attention.q_norm(query), attention.k_norm(key)


def _of_torch(attention: nn.MultiheadAttention, tokens: Tensor) -> tuple[Tensor, Tensor]:
    width = 2 * attention.embed_dim
    bias = None if attention.in_proj_bias is None else attention.in_proj_bias[:width]
    both = functional.linear(tokens, attention.in_proj_weight[:width], bias)
    n, N = tokens.shape[:2]
    query, key = both.view(n, N, 2, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    return query, key
