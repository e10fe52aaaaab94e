from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from counterpoint.data.augment import Noise, ResizedCrop
from counterpoint.data.draws import SortedFrames
from counterpoint.data.spec import Spec
from counterpoint.objectives.actol import (
    AcTOL,
    AcTOLConfig,
    DirectedAcTOL,
    actol_loss,
    brownian_bridge_loss,
    directed_vlo_loss,
    random_intervals,
    vlo_loss,
    vlo_lower_bound,
)
from counterpoint.objectives.base import Features
from tests.contracts.tiny import Pixels
from tests.objectives.test_actol_ordering import TIMES, VALID, videos

ENDS = torch.tensor([[1, 4], [0, 5], [0, 1], [2, 2]])


@pytest.mark.parametrize("interval", [None, ENDS])
def test_sum_of_its_two_losses(interval: Tensor | None) -> None:
    frames, text = videos()
    whole = actol_loss(frames, text, TIMES, temperature=0.1, bridge_weight=3.0, valid=VALID, interval=interval)
    order = vlo_loss(frames, text, TIMES, temperature=0.1, valid=VALID)
    parts = order + 3 * brownian_bridge_loss(frames, TIMES, valid=VALID, interval=interval, form="log_variance")
    torch.testing.assert_close(whole, parts)
    mine, theirs = (torch.autograd.grad(value, (frames, text)) for value in (whole, parts))
    torch.testing.assert_close(mine, theirs)


def test_gradcheck() -> None:
    def loss(frames: Tensor, text: Tensor) -> Tensor:
        return actol_loss(frames, text, TIMES, temperature=0.5, bridge_weight=2.0, valid=VALID, interval=ENDS)

    assert torch.autograd.gradcheck(loss, videos(D=3))


def test_second_backward_pass() -> None:
    frames, text = videos()
    loss = actol_loss(frames, text, TIMES, valid=VALID)
    first = torch.autograd.grad(loss, (frames, text), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, (frames, text)), first)


def test_single_precision() -> None:
    frames, text = (x.detach().float() for x in videos())
    expected = actol_loss(*videos(), TIMES, valid=VALID)
    torch.testing.assert_close(actol_loss(frames, text, TIMES, valid=VALID).double(), expected, rtol=1e-5, atol=0)


def test_makes_nothing_on_another_device() -> None:
    frames, text, times, valid, uniform = (x.to("meta") for x in (*videos(), TIMES, VALID, torch.rand(4, 2)))
    interval = random_intervals(uniform, valid)
    for direction in (vlo_loss, directed_vlo_loss):
        assert direction(frames, text, times, temperature=1e-4, valid=valid).is_meta
    assert actol_loss(frames, text, times, valid=valid, interval=interval).is_meta
    assert brownian_bridge_loss(frames, times, valid=valid, form="log_variance_as_trained").is_meta
    assert vlo_lower_bound(times, valid=valid).is_meta


def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "frames": torch.randint(0, 256, (4, 6, 4, 4, 3), dtype=torch.uint8, generator=generator),
        "clip.indices": TIMES,
        "clip.valid": VALID,
        "instruction": ["open door", "close", "open door", "push"],
        "sample": torch.tensor([5, 6, 17, 18]),
    }


BRIDGES = ("log_variance", "variance", "log_variance_as_trained", "variance_as_trained")


@pytest.mark.parametrize(("kind", "order"), [(AcTOL, vlo_loss), (DirectedAcTOL, directed_vlo_loss)])
@pytest.mark.parametrize("bridge", BRIDGES)
def test_objective(kind: type[AcTOL], order: Any, bridge: Any) -> None:
    encoder: Any = Pixels()
    objective = kind(encoder, AcTOLConfig(temperature=0.1, frames=6, bridge_weight=0.01, bridge=bridge))
    out = objective(batch())
    rows = objective.encode(batch()).rows
    vlo = order(rows["frames"], rows["text"], TIMES, temperature=0.1, valid=VALID)
    smoothness = brownian_bridge_loss(rows["frames"], TIMES, valid=VALID, form=bridge)
    torch.testing.assert_close(out.loss, vlo + 0.01 * smoothness)
    torch.testing.assert_close(out.metrics["vlo"], vlo.detach())
    torch.testing.assert_close(out.metrics["bridge"], smoothness.detach())
    excess = vlo.double() - vlo_lower_bound(TIMES, valid=VALID)
    torch.testing.assert_close(out.metrics["vlo_excess"].double(), excess.detach(), rtol=1e-4, atol=1e-5)
    assert {"categorical_accuracy", "logits_pos", "logits_neg"} < set(out.metrics)
    out.loss.backward()
    assert encoder.scale.grad.isfinite().all()
    assert objective.exports() == {"encoder": encoder}


def test_random_interval_is_a_function_of_the_batchs_numbers() -> None:
    encoder: Any = Pixels()
    objective = AcTOL(encoder, AcTOLConfig(frames=6, interval="random"))
    frames, text = videos()
    given = batch() | {"interval": torch.rand(len(frames), 2)}
    out = objective.loss(Features({"frames": frames, "text": text}), given)
    expected = brownian_bridge_loss(
        frames, TIMES, valid=VALID, interval=random_intervals(given["interval"], VALID), form="log_variance"
    )
    torch.testing.assert_close(out.metrics["bridge"], expected.detach())
    later = objective.loss(Features({"frames": frames, "text": text}), given | {"interval": 1 - given["interval"]})
    assert later.metrics["bridge"] != out.metrics["bridge"]


def test_sampling() -> None:
    encoder: Any = Pixels()
    spec = AcTOL(encoder).sampling()
    assert spec == Spec.clips(SortedFrames(10))
    spec = AcTOL(encoder, AcTOLConfig(frames=4, augment=True, augment_scale=(0.5, 1.0))).sampling()
    assert spec == Spec.clips(SortedFrames(4), transforms={"frames.crop": ResizedCrop(scale=(0.5, 1.0))})
    spec = AcTOL(encoder, AcTOLConfig(interval="random")).sampling()
    assert spec == Spec.clips(SortedFrames(10), transforms={"interval": Noise((2,), "uniform")})
    spec = AcTOL(encoder, AcTOLConfig(unique_instructions=True)).sampling()
    assert spec == Spec.clips(SortedFrames(10), per_instruction=True)
