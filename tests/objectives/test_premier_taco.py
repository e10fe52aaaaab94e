from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.spec import Spec
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import contrast_metrics, infonce
from counterpoint.objectives.premier_taco import (
    PremierTACO,
    PremierTACOConfig,
    premier_taco_loss,
    premier_taco_mixed_loss,
    premier_taco_window_loss,
    premier_taco_window_softmax_loss,
    window_accuracy,
)
from tests.golden.load import golden
from tests.objectives.steps import assert_ranks_agree, small_encoder, step_batch, train
from tests.reference import premier_taco as plain

LOG2 = math.log(2)


def pair_softmax(predicted: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return premier_taco_window_softmax_loss(predicted, positive, negative[:, None])


PAIRS: list[Callable[..., Tensor]] = [premier_taco_loss, pair_softmax]
WINDOWS: list[Callable[..., Tensor]] = [
    premier_taco_window_loss,
    premier_taco_window_softmax_loss,
    premier_taco_mixed_loss,
]
SMALL = {"hidden": 64, "shift": 2}


def rows(B: int = 5, N: int = 3, D: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g, h, h~ and which are there: row 0 has all, row 1 none, the others some."""
    generator = torch.Generator().manual_seed(seed)
    g, h, near = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((B, D), (B, D), (B, N, D))
    )
    valid = torch.rand(B, N, generator=generator) > 0.4
    valid[0] = True
    valid[1:2] = False
    return g, h, near, valid


def gradients(loss: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("number", [0, 1])
def test_plain_loop(number: int) -> None:
    g, h, near, _ = rows()
    inputs = (g, h, near)
    ours = PAIRS[number](g, h, near[:, 0])
    oracle = (plain.binary, plain.softmax)[number](g, h, near[:, 0])
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients(ours, inputs), gradients(oracle, inputs), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_plain_loop_of_windows(number: int, seed: int) -> None:
    g, h, near, valid = rows(seed=seed)
    inputs = (g, h, near)
    ours = WINDOWS[number](g, h, near, valid=valid)
    oracle = (plain.window_binary, plain.window_softmax, plain.mixed)[number](g, h, near, valid)
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients(ours, inputs), gradients(oracle, inputs), rtol=1e-10, atol=1e-14)
    accuracy = window_accuracy(g, h, near, valid=valid)
    assert accuracy.item() == pytest.approx(plain.accuracy(g, h, near, valid))


def test_authors_loss() -> None:
    arrays, _ = golden("premier_taco_loss_a")
    g, positive, negative = (arrays[name].requires_grad_() for name in ("g", "h_pos", "h_neg"))
    loss = premier_taco_loss(g, positive, negative)
    close: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-14}
    torch.testing.assert_close(loss, arrays["loss"], **close)
    expected = [arrays[name] for name in ("grad_g", "grad_h_pos_if_not_stopped", "grad_h_neg_if_not_stopped")]
    for mine, theirs in zip(torch.autograd.grad(loss, (g, positive, negative)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    softmax = pair_softmax(g, positive, negative)
    torch.testing.assert_close(softmax, arrays["info_two_way_softmax_loss_NOT_official"], **close)


PLACES = {  # the authors' names -> ours
    "encoder.convnet": "encoder.body.convnet",
    "encoder.trunk": "encoder.body.trunk",
    "proj_sa": "heads.G",
    "proj_aseq.0": "heads.psi.1",
    "proj_aseq.1": "heads.psi.2",
    "proj_s": "heads.H",
}


def ours(name: str) -> str:
    theirs = next(prefix for prefix in PLACES if name.startswith(prefix))
    return PLACES[theirs] + name.removeprefix(theirs)


def test_authors_whole_step() -> None:
    """Every activation, the loss, every gradient and every parameter after one Adam step of the authors' network."""
    arrays, meta = golden("premier_taco_full_a")
    hyper = meta["hyper"]
    encoder = ObservationEncoder(ObservationConfig(size=84, stack=3, embed_dim=hyper["feature_dim"]))
    config = PremierTACOConfig(steps=hyper["nstep"], heads="released", hidden=hyper["hidden_dim"], shift=0)
    objective = PremierTACO(encoder, hyper["action_dim"], config)
    unused = ("W.W", "W.policy")
    weights = {
        ours(name.removeprefix("W.")): value
        for name, value in arrays.items()
        if name.startswith("W.") and not name.startswith(unused)
    }
    missing, unexpected = objective.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not set(missing) & {name for name, _ in objective.named_parameters()}

    views = torch.stack([arrays[f"{name}obs_7x7"] for name in ("", "next_", "neg_")], 1)
    images = views.repeat_interleave(12, -1).repeat_interleave(12, -2)  # [B, V, 9, 84, 84]
    batch = {
        "frames": images.view(4, 3, 3, 3, 84, 84).permute(0, 1, 2, 4, 5, 3),
        "actions": arrays["action_seq"].view(4, 3, 3),
        "near_valid": torch.ones(4, 1, dtype=torch.bool),
    }
    features = objective.encode(batch).rows
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(encoder(batch["frames"][:, 0]), arrays["enc_obs"], **close)
    torch.testing.assert_close(features["predicted"], arrays["g"], **close)
    torch.testing.assert_close(features["positive"], arrays["h_pos"], **close)
    torch.testing.assert_close(features["negatives"][:, 0], arrays["h_neg"], **close)

    optimizer = torch.optim.Adam(objective.parameters(), hyper["lr"])
    loss = objective(batch).loss
    torch.testing.assert_close(loss, arrays["loss"], **close)
    torch.autograd.backward([loss])
    optimizer.step()
    parameters = dict(objective.named_parameters())
    steep: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-6}
    compared = 0
    for name, value in arrays.items():
        kind, _, rest = name.partition(".")
        if kind not in ("grad", "gradnorm", "after_adam"):
            continue
        parameter = parameters[ours(rest)]
        assert parameter.grad is not None
        if kind == "grad":
            torch.testing.assert_close(parameter.grad, value, **steep)
        elif kind == "gradnorm":
            torch.testing.assert_close(parameter.grad.norm(), value, rtol=1e-3, atol=1e-6, check_dtype=False)
        else:
            torch.testing.assert_close(parameter.detach(), value, **steep)
        compared += 1
    assert compared == 2 * len(parameters) - 1  # of the trunk's weight only the gradient's norm is kept


@pytest.mark.parametrize("loss", WINDOWS + PAIRS)
def test_gradcheck(loss: Callable[..., Tensor]) -> None:
    g, h, near, valid = rows(B=3, N=2, D=2)
    if loss in PAIRS:
        assert torch.autograd.gradcheck(lambda *x: loss(*x), (g, h, near[:, 0].detach().requires_grad_()))
    else:
        assert torch.autograd.gradcheck(lambda *x: loss(*x, valid=valid), (g, h, near))


@pytest.mark.parametrize("number", [0, 1])
def test_one_valid_negative_is_the_paper_s_loss(number: int) -> None:
    g, h, near, _ = rows()
    one = near[:, :1]
    window = WINDOWS[number](g, h, one, valid=torch.ones(5, 1, dtype=torch.bool))
    torch.testing.assert_close(window, PAIRS[number](g, h, one[:, 0]))


def test_mixed_lies_between_its_parts() -> None:
    g, h, near, valid = rows()
    nothing = torch.zeros_like(valid)
    in_batch = infonce(g @ h.T)
    torch.testing.assert_close(premier_taco_mixed_loss(g, h, near, valid=nothing), in_batch)
    assert premier_taco_mixed_loss(g, h, near, valid=valid) > in_batch
    first = slice(0, 1)  # a batch of one has no other rows
    alone = premier_taco_mixed_loss(g[first], h[first], near[first], valid=valid[first])
    window = premier_taco_window_softmax_loss(g[first], h[first], near[first], valid=valid[first])
    torch.testing.assert_close(alone, window)
    thrice = plain.mixed(g, h, near, valid, copies=3)
    torch.testing.assert_close(premier_taco_mixed_loss(g, h, near, valid=valid, weight=3.0), thrice)


@pytest.mark.parametrize("loss", WINDOWS)
def test_absent_negatives_do_nothing(loss: Callable[..., Tensor]) -> None:
    g, h, near, valid = rows()
    moved = (near + 100 * ~valid[..., None]).detach().requires_grad_()
    value = loss(g, h, moved, valid=valid)
    torch.testing.assert_close(value, loss(g, h, near, valid=valid))
    (gradient,) = torch.autograd.grad(value, moved)
    assert (gradient[~valid] == 0).all()
    assert (gradient[valid] != 0).any()


@pytest.mark.parametrize("loss", WINDOWS)
@pytest.mark.parametrize("N", [1, 3])
def test_finite_without_any_negative(loss: Callable[..., Tensor], N: int) -> None:
    g, h, near, _ = rows(N=N)
    valid = torch.zeros(5, N, dtype=torch.bool)
    value = loss(g, h, near, valid=valid)
    assert value.isfinite()
    for gradient in gradients(value, (g, h, near)):
        assert gradient.isfinite().all()
    assert window_accuracy(g, h, near, valid=valid) == 0


@pytest.mark.parametrize("loss", WINDOWS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_order_of_rows_and_of_negatives_does_not_matter(loss: Callable[..., Tensor], seed: int) -> None:
    g, h, near, valid = rows(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    row, place = torch.randperm(5, generator=generator), torch.randperm(3, generator=generator)
    moved = loss(g[row], h[row], near[row][:, place], valid=valid[row][:, place])
    torch.testing.assert_close(moved, loss(g, h, near, valid=valid))


@pytest.mark.parametrize("loss", PAIRS)
def test_rotations_and_swaps(loss: Callable[..., Tensor]) -> None:
    g, h, near, _ = rows()
    other = near[:, 0]
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    torch.testing.assert_close(loss(g @ turn, h @ turn, other @ turn), loss(g, h, other))
    # A prediction of the opposite direction turns positives into negatives.
    torch.testing.assert_close(loss(-g, other, h), loss(g, h, other))


def test_chance_and_limits() -> None:
    g, h, near, _ = rows()
    everywhere = torch.ones(5, 3, dtype=torch.bool)
    nowhere = torch.zeros_like(g)
    for loss in PAIRS:
        assert loss(nowhere, h, near[:, 0]).item() == pytest.approx(LOG2)
        assert loss(1000 * h, h, -h) < 1e-6
        assert loss(g, h, near[:, 0]) > 0
    chance = [WINDOWS[i](nowhere, h, near, valid=everywhere).item() for i in range(3)]
    assert chance == pytest.approx([LOG2, math.log(4), math.log(8)])
    # What the two have in common pushes the binary form, and leaves the softmax alone.
    shift = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(pair_softmax(g, h + shift, near[:, 0] + shift), pair_softmax(g, h, near[:, 0]))


def test_equal_scores_are_chance() -> None:
    g, h, near, valid = rows()
    same = h[:, None].expand_as(near)
    assert window_accuracy(g, h, same, valid=valid) == 0.5
    assert window_accuracy(h, 2 * h, -same, valid=valid) == 1
    assert window_accuracy(h, -h, 2 * same, valid=valid) == 0


@pytest.mark.parametrize("loss", WINDOWS + PAIRS)
def test_half_precision(loss: Callable[..., Tensor]) -> None:
    g, h, near, valid = rows()
    half = [x.detach().bfloat16() for x in (g, h, near)]
    arguments: dict[str, Tensor] = {} if loss in PAIRS else {"valid": valid}
    if loss in PAIRS:
        half[2] = half[2][:, 0]
    wide = [x.float() for x in half]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(*half, **arguments), loss(*wide, **arguments))
    assert loss(*(1000 * x for x in wide), **arguments).isfinite()


def test_refuses_other_shapes() -> None:
    g, h, near, valid = rows()
    for loss in PAIRS:
        with pytest.raises(BadInputError, match="predicted, positive, negative"):
            loss(g, h, near)
        with pytest.raises(BadInputError, match="predicted, positive, negative"):
            loss(g, h[:4], near[:, 0])
    for window in WINDOWS:
        with pytest.raises(BadInputError, match="negatives, valid"):
            window(g, h, near[:, 0], valid=valid)
        with pytest.raises(BadInputError, match="negatives, valid"):
            window(g, h, near, valid=valid[:, :2])
        with pytest.raises(BadInputError, match="predicted, positive, negative"):
            window(g, h[:, :2], near, valid=valid)
    with pytest.raises(BadInputError, match="weight"):
        premier_taco_mixed_loss(g, h, near, valid=valid, weight=0.0)


def test_asks_for_what_the_paper_samples() -> None:
    expected = Spec.steps((0, 3), 3, NearNegatives(5), stack=2, shift=4)
    assert PremierTACO(small_encoder(), 3).sampling() == expected
    config = PremierTACOConfig(steps=2, window=7, every=True, exclude_anchor=True)
    near = NearNegatives(7, exclude_anchor=True, every=True)
    assert near.count == 14
    assert PremierTACO(small_encoder(), 3, config).sampling() == Spec.steps((0, 2), 2, near, stack=2, shift=4)


def test_paper_s_heads() -> None:
    heads = PremierTACO(small_encoder(embed_dim=32), 4).heads
    shapes = [list(p.shape) for part in (heads.psi, heads.G, heads.H) for p in part.parameters() if p.ndim == 2]
    assert shapes == [[64, 4], [4, 64], [1024, 44], [32, 1024], [1024, 32], [32, 1024]]


@pytest.mark.parametrize("heads", ["paper", "released"])
@pytest.mark.parametrize("stop", [True, False])
def test_where_gradients_stop(heads: str, stop: bool) -> None:
    config = PremierTACOConfig.model_validate({**SMALL, "heads": heads, "stop_gradient": stop})
    objective = PremierTACO(small_encoder(), 3, config)
    features = objective.encode(step_batch(objective.sampling())).rows
    targets = features["positive"].sum() + features["negatives"].sum()
    encoder = list(objective.encoder.parameters())
    if stop and heads == "released":
        assert not targets.requires_grad
    else:
        reached = torch.autograd.grad(targets, encoder, retain_graph=True, allow_unused=True)
        assert all((gradient is None) == stop for gradient in reached)
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(targets, list(objective.heads.H.parameters())))
    # Every parameter learns from the loss, so that data-parallel training has none it waits for in vain.
    torch.autograd.backward([objective(step_batch(objective.sampling())).loss])
    assert all(p.grad is not None for p in objective.parameters())


@pytest.mark.parametrize("heads", ["paper", "released"])
def test_one_pass_or_two_give_one_loss(heads: str) -> None:
    losses = []
    for stop in (True, False):
        config = PremierTACOConfig.model_validate({**SMALL, "heads": heads, "stop_gradient": stop})
        objective = PremierTACO(small_encoder(), 3, config)
        losses.append(objective(step_batch(objective.sampling())).loss)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_objective_is_its_loss_of_its_rows(number: int, every: bool) -> None:
    kind = ("binary", "softmax", "mixed")[number]
    config = PremierTACOConfig.model_validate({**SMALL, "loss": kind, "every": every, "exclude_anchor": every})
    objective = PremierTACO(small_encoder(), 3, config)
    batch = step_batch(objective.sampling())
    f = objective.encode(batch).rows
    output = objective(batch)
    g, h, near, valid = f["predicted"], f["positive"], f["negatives"], batch["near_valid"]
    assert near.shape == (8, 10 if every else 1, 32)
    torch.testing.assert_close(output.loss, WINDOWS[number](g, h, near, valid=valid))
    torch.testing.assert_close(output.metrics["window_accuracy"], window_accuracy(g, h, near, valid=valid))
    assert output.metrics.items() >= contrast_metrics(g @ h.T).items()
    chance = WINDOWS[number](torch.zeros_like(g), h, near, valid=valid)
    torch.testing.assert_close(output.metrics["chance_gap"], (chance - output.loss).detach())
    assert_ranks_agree(objective, batch)


def test_actions_of_another_width_are_refused() -> None:
    objective = PremierTACO(small_encoder(), 4)
    with pytest.raises(BadInputError, match=r"\[B, 3, 4\]"):
        objective(step_batch(objective.sampling(), action_dim=3))


def trained(*, centred: bool = False, weights: str = "drq", **settings: Any) -> tuple[PremierTACO, list[float], float]:
    """An objective after 140 steps, its first and last few steps' mean loss, and the last's window accuracy."""
    config = PremierTACOConfig.model_validate({"hidden": 64, "shift": 0, **settings})
    objective = PremierTACO(small_encoder(size=24, centred=centred), 3, config)
    if weights == "torch":
        for module in objective.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()
    outputs = train(objective, steps=140, batch=48, size=24)
    losses = [sum(out.loss.item() for out in end) / 8 for end in (outputs[:8], outputs[-8:])]
    return objective, losses, sum(out.metrics["window_accuracy"].item() for out in outputs[-8:]) / 8


@pytest.mark.slow
def test_mixed_training_leaves_chance() -> None:
    objective, (first, last), accuracy = trained(loss="mixed")
    start = PremierTACO(small_encoder(size=24), 3, objective.config)
    pairs = zip(objective.encoder.parameters(), start.encoder.parameters(), strict=True)
    assert all((moved != old).any() for moved, old in pairs)
    assert last < first / 2
    assert accuracy > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_window_loss_starts_with_the_authors_weights(centred: bool) -> None:
    _, (_, last), accuracy = trained(centred=centred)
    assert last < LOG2 - 0.1
    assert accuracy > 0.75


@pytest.mark.slow
def test_window_loss_does_not_start_in_as_many_steps_with_torchs_weights() -> None:
    _, (_, last), accuracy = trained(weights="torch")
    assert last == pytest.approx(LOG2, abs=0.03)
    assert accuracy < 0.65
