from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.data.augment import Jitter, ResizedCrop, Transform
from counterpoint.data.draws import SortedUniform, StartGoal
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Features
from counterpoint.objectives.clip_goal import CLIPGoal, CLIPGoalConfig
from counterpoint.objectives.decisionnce import (
    STILL,
    DecisionNCEConfig,
    DecisionNCEP,
    DecisionNCET,
    decisionnce_p_loss,
    decisionnce_p_loss_halves,
    decisionnce_t_loss,
    potential_rewards,
    transition_rewards,
)
from tests.contracts.tiny import Pixels
from tests.golden.load import golden
from tests.reference.decisionnce import decisionnce_loss, potential_reward, transition_reward

Loss = Callable[..., Tensor]
LOSSES: list[Loss] = [decisionnce_p_loss, decisionnce_t_loss]
ORACLES = {decisionnce_p_loss: potential_reward, decisionnce_t_loss: transition_reward}


def clips(B: int = 5, F: int = 2, D: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, F, D), (B, D))
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("B", "F"), [(1, 2), (4, 2), (4, 3), (4, 9)])
@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2]])
def test_plain_loop(loss: Loss, F: int, B: int, labels: list[int] | None) -> None:
    frames, text = clips(B, F)
    names = None if labels is None else torch.tensor(labels[:B])
    ours = loss(frames, text, temperature=0.3, labels=names)
    plain = decisionnce_loss(frames, text, ORACLES[loss], 0.3, None if labels is None else labels[:B])
    exact = loss is decisionnce_p_loss  # -T has the authors' 1e-6 in the norm of a difference
    torch.testing.assert_close(ours, plain, rtol=1e-10 if exact else 1e-5, atol=1e-12 if exact else 1e-9)
    for mine, theirs in zip(gradients(ours, frames, text), gradients(plain, frames, text), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8 if exact else 1e-4, atol=1e-12 if exact else 1e-6)


@pytest.mark.parametrize(
    ("name", "loss"),
    [("P_F2", decisionnce_p_loss), ("P_F2", decisionnce_p_loss_halves), ("P_F4", decisionnce_p_loss_halves)]
    + [(f"T_F{F}", decisionnce_t_loss) for F in (2, 3, 4, 5)],
)
@pytest.mark.parametrize("scale", [10, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_authors_numbers(name: str, loss: Loss, scale: int, dtype: torch.dtype) -> None:
    arrays, _ = golden("decisionnce_a")
    frames = arrays[f"visual_{name[2:]}"].to(dtype).requires_grad_()
    text = arrays["text"].to(dtype).requires_grad_()
    wide = dtype == torch.float64
    ours = loss(frames, text, temperature=1 / scale)
    expected = arrays[f"{name}_s{scale}_loss"]
    torch.testing.assert_close(ours.double(), expected, rtol=1e-9 if wide else 1e-5, atol=0 if wide else 1e-5)
    for mine, which in zip(gradients(ours, frames, text), ("visual", "text"), strict=True):
        theirs = arrays[f"{name}_s{scale}_grad_{which}"]
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-7 if wide else 1e-3, atol=1e-10 if wide else 1e-4)


@pytest.mark.parametrize("F", [2, 3, 4, 5])
def test_authors_rewards(F: int) -> None:
    arrays, _ = golden("decisionnce_a")
    frames, text = arrays[f"visual_F{F}"], arrays["text"]
    torch.testing.assert_close(100 * transition_rewards(frames, text), arrays[f"T_F{F}_s100_reward_matrix"])
    if F == 2:
        torch.testing.assert_close(100 * potential_rewards(frames, text), arrays["P_F2_s100_reward_matrix"])


def test_halves_refuses_an_odd_number_of_frames() -> None:
    with pytest.raises(BadInputError, match="3 frames a clip"):
        decisionnce_p_loss_halves(*clips(F=3))


def test_potential_telescopes() -> None:
    frames, text = clips(F=6)
    torch.testing.assert_close(potential_rewards(frames, text), potential_rewards(frames[:, [0, 5]], text))
    assert not torch.allclose(decisionnce_p_loss(frames, text), decisionnce_p_loss_halves(frames, text))


@pytest.mark.parametrize("loss", [*LOSSES, decisionnce_p_loss_halves])
@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, 1])])
def test_gradcheck(loss: Loss, labels: Tensor | None) -> None:
    inputs = clips(B=3, F=4, D=4)
    assert torch.autograd.gradcheck(lambda f, t: loss(f, t, temperature=0.5, labels=labels), inputs)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), B=st.integers(1, 8), F=st.integers(2, 4))
def test_symmetries(loss: Loss, seed: int, B: int, F: int) -> None:
    frames, text = clips(B, F, seed=seed)
    value = loss(frames, text, temperature=0.2)
    shuffle = torch.randperm(B, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(loss(frames[shuffle], text[shuffle], temperature=0.2), value)
    # Cosines: neither the length of an instruction's embedding nor the unit of length matters,
    lengths = torch.rand(B, 1, dtype=torch.float64) + 0.5
    torch.testing.assert_close(loss(frames * 3, text * lengths, temperature=0.2), value, rtol=1e-5, atol=1e-7)
    # nor does a rotation of the space; and a segment played backwards earns the opposite reward.
    rotation = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64)).Q
    torch.testing.assert_close(loss(frames @ rotation, text @ rotation, temperature=0.2), value)
    torch.testing.assert_close(loss(frames.flip(1), -text, temperature=0.2), value, msg="time and instruction reversed")
    assert value >= 0
    if B == 1:
        assert value == 0


@pytest.mark.parametrize(("rewards", "bound"), [(potential_rewards, 2), (transition_rewards, 4)])
def test_rewards_are_bounded(rewards: Loss, bound: int) -> None:
    frames, text = clips(B=64, F=5, D=3)
    assert rewards(frames, text).abs().max() <= bound


def test_transitions_ignore_where_a_segment_starts_and_potentials_do_not() -> None:
    frames, text = clips()
    moved = frames + 5 * torch.ones(7, dtype=torch.float64)
    torch.testing.assert_close(transition_rewards(moved, text), transition_rewards(frames, text))
    assert not torch.allclose(potential_rewards(moved, text), potential_rewards(frames, text))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2])
def test_gradient_is_bounded_at_nearly_equal_frames(loss: Loss, dtype: torch.dtype, length: float) -> None:
    frames, text = clips(dtype=dtype)
    with torch.no_grad():
        frames[0, 1] = frames[0, 0] + length * frames[0, 1]
    (gradient,) = gradients(loss(frames, text), frames)
    size = frames[0].detach().square().sum(1).mean().sqrt()
    assert gradient.isfinite().all()
    # 2 B rows and columns pull with at most 1 / (2 B temperature) each, 1.54 / still is the steepest slope.
    assert gradient[0].norm() <= 2 * 2 * 100 * 1.54 / (STILL * size)
    if length <= 1e-12 and loss is decisionnce_t_loss:
        assert gradient[0].norm() < 1e-3


def test_equal_frames_have_no_direction() -> None:
    frames, text = clips()
    with torch.no_grad():
        frames[2, 1] = frames[2, 0]
    assert (transition_rewards(frames, text)[2] == 0).all()


def test_zero_embeddings_stay_finite() -> None:
    frames, text = (torch.zeros_like(x).requires_grad_() for x in clips())
    for loss in LOSSES:
        for gradient in gradients(loss(frames, text), frames, text):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_lift_false_negatives(loss: Loss) -> None:
    frames, text = clips(B=4)
    with torch.no_grad():
        text[1] = text[0]
    labels = torch.tensor([0, 0, 1, 2])
    assert loss(frames, text, labels=labels) < loss(frames, text)


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_and_autocast(loss: Loss) -> None:
    frames, text = clips(dtype=torch.float32)
    expected = loss(frames, text)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(frames, text), expected)
    half = loss(frames.half(), text.half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("loss", [*LOSSES, decisionnce_p_loss_halves])
def test_wrong_shapes_are_refused(loss: Loss) -> None:
    with pytest.raises(BadInputError):
        loss(torch.zeros(3, 1, 4), torch.zeros(3, 4))
    with pytest.raises(BadInputError):
        loss(torch.zeros(3, 2, 4), torch.zeros(2, 4))


@pytest.mark.parametrize("loss", [*LOSSES, decisionnce_p_loss_halves])
def test_makes_nothing_on_another_device(loss: Loss) -> None:
    frames, text, labels = (x.to("meta") for x in (*clips(), torch.arange(5)))
    assert loss(frames, text, labels=labels).is_meta


def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "frames": torch.randint(0, 256, (3, 2, 4, 4, 3), dtype=torch.uint8, generator=generator),
        "instruction": ["open door", "close", "open door"],
        "instruction_id": torch.tensor([0, 1, 0]),
    }


@pytest.mark.parametrize(("kind", "loss"), [(DecisionNCEP, decisionnce_p_loss), (DecisionNCET, decisionnce_t_loss)])
@pytest.mark.parametrize("multi_positive", [False, True])
def test_objective(kind: type[DecisionNCEP | DecisionNCET], loss: Loss, multi_positive: bool) -> None:
    encoder: Any = Pixels()
    objective = kind(encoder, DecisionNCEConfig(temperature=0.1, multi_positive=multi_positive))
    out = objective(batch())
    features = objective.encode(batch())
    labels = batch()["instruction_id"] if multi_positive else None
    expected = loss(features.rows["frames"], features.rows["text"], temperature=0.1, labels=labels)
    torch.testing.assert_close(out.loss, expected)
    assert set(out.metrics) == {"categorical_accuracy", "logits_pos", "logits_neg"}
    out.loss.backward()
    assert encoder.scale.grad.isfinite().all()
    assert objective.exports() == {"encoder": encoder}


@pytest.mark.parametrize(("kind", "loss"), [(DecisionNCEP, decisionnce_p_loss), (DecisionNCET, decisionnce_t_loss)])
@pytest.mark.parametrize("words", [0, 2])
def test_clip_term_is_the_mean_over_frames(kind: type[DecisionNCEP | DecisionNCET], loss: Loss, words: int) -> None:
    encoder: Any = Pixels()
    frames, text = clips(4, 3, 7)
    shared = {"extra": clips(words, 3, 7, seed=1)[1]} if words else {}
    labels = torch.tensor([0, 1, 0, 2])
    found = []
    for weight in (0.0, 0.7):
        config = DecisionNCEConfig(temperature=0.3, multi_positive=True, clip_weight=weight)
        objective = kind(encoder, config)
        found.append(
            objective.loss(Features({"frames": frames, "text": text}, shared), {"instruction_id": labels}).loss
        )
    clip = CLIPGoal(encoder, CLIPGoalConfig(temperature=0.3, multi_positive=True))
    each = [
        clip.loss(Features({"frames": frames[:, f : f + 1], "text": text}, shared), {"instruction_id": labels}).loss
        for f in range(3)
    ]
    torch.testing.assert_close(found[1] - found[0], 0.7 * sum(each) / 3)
    if not words:
        torch.testing.assert_close(found[0], loss(frames, text, temperature=0.3, labels=labels))


def test_loss_is_pure() -> None:
    encoder: Any = Pixels()
    objective = DecisionNCET(encoder)
    frames, text = clips()
    first = objective.loss(Features({"frames": frames, "text": text}), {})
    assert torch.equal(first.loss, objective.loss(Features({"frames": frames, "text": text}), {}).loss)
    torch.testing.assert_close(first.loss, decisionnce_t_loss(frames, text))


def test_sampling() -> None:
    encoder: Any = Pixels()
    spec = DecisionNCEP(encoder).sampling()
    assert spec == Spec.clips(StartGoal(2))
    config = DecisionNCEConfig(
        frames=5, draw="sorted_uniform", unique_instructions=True, augment=True, augment_jitter=0.5
    )
    spec = DecisionNCET(encoder, config).sampling()
    transforms: dict[str, Transform] = {"frames.crop": ResizedCrop(scale=(0.2, 1.0)), "frames.jitter": Jitter(0.5)}
    assert spec == Spec.clips(SortedUniform(5), per_instruction=True, transforms=transforms)
