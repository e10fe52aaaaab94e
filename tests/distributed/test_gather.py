"""Two processes over gloo against one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterpoint.objectives.base import Features
from counterpoint.objectives.decisionnce import decisionnce_t_loss
from counterpoint.training.distributed import gather_batch, gather_features, rank, world_size
from tests.distributed.ranks import run_ranks

WORLD, B, F, D = 2, 8, 3, 5
Gradients = dict[str, Tensor]


def _across_rows(frames: Tensor, text: Tensor) -> Tensor:
    return decisionnce_t_loss(frames, text, temperature=0.1)


def _per_row(frames: Tensor, text: Tensor) -> Tensor:
    return (frames.diff(dim=1).square().sum((1, 2)) + (frames[:, 0] * text).sum(1).exp()).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"across_rows": _across_rows, "per_row": _per_row}


class _Linear(nn.Module):
    """Parameters before the gather (two towers) and after it (a scale), in double precision."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(4, D).double(), nn.Linear(3, D).double()
        self.scale = nn.Parameter(torch.ones(D, dtype=torch.float64))
        self.score = loss

    def forward(self, frames: Tensor, text: Tensor) -> Tensor:
        features = gather_features(Features({"frames": self.image(frames), "text": self.text(text)}))
        return self.score(features.rows["frames"] * self.scale, features.rows["text"])


def _inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(B, F, 4, generator=generator, dtype=torch.float64)
    return frames, torch.randn(B, 3, generator=generator, dtype=torch.float64)


def _gradients(module: nn.Module, loss: Tensor) -> Gradients:
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def _work(number: int, world: int, folder: Path) -> None:
    found: Gradients = {"rank": torch.tensor([rank(), world_size()])}
    share = slice(number * B // WORLD, (number + 1) * B // WORLD)
    for name, score in LOSSES.items():
        module = _Linear(score)
        wrapped = DistributedDataParallel(module)  # kept: its hooks die with it
        loss = wrapped(*(part[share] for part in _inputs()))
        found |= {f"{name}/{key}": grad for key, grad in _gradients(module, loss).items()}
    found |= {f"batch/{key}": value for key, value in gather_batch(_mixed_batch(number)).items()}
    flags = Features({"flag": torch.tensor([number == 0, True])}, {"table": torch.tensor([number])})
    gathered = gather_features(flags)
    found |= {"flag": gathered.rows["flag"], "table": gathered.shared["table"]}
    save_file({key: value.contiguous() for key, value in found.items()}, folder / f"{number}.safetensors")


def _mixed_batch(number: int) -> dict[str, Any]:
    return {
        "sample": torch.tensor([2 * number, 2 * number + 1]),
        "clip.valid": torch.tensor([[True, number == 0], [False, True]]),
        "actions": torch.full((2, 3, 4), float(number)),
        "frames": torch.zeros(2, 3, 8, 8, 3, dtype=torch.uint8),
        "floats": torch.zeros(2, 3, 8, 8, 3),
        "instruction": ["a", "b"],
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Gradients]:
    folder = tmp_path_factory.mktemp("gather")
    run_ranks(_work, WORLD, folder)
    return [load_file(folder / f"{number}.safetensors") for number in range(WORLD)]


@pytest.mark.parametrize("name", LOSSES)
def test_two_ranks_have_the_gradient_of_one_process(name: str, found: list[Gradients]) -> None:
    module = _Linear(LOSSES[name])
    expected = _gradients(module, module(*_inputs()))
    assert expected.keys() == {"image.weight", "image.bias", "text.weight", "text.bias", "scale"}
    for of_rank in found:
        for key, grad in expected.items():
            torch.testing.assert_close(of_rank[f"{name}/{key}"], grad, rtol=1e-12, atol=1e-14)


def test_negatives_of_the_other_rank_count() -> None:
    frames, text = _inputs()
    module = _Linear(_across_rows)
    whole = module(frames, text)
    halves = (module(frames[:4], text[:4]) + module(frames[4:], text[4:])) / 2
    assert whole > halves


def test_both_ranks_hold_the_same_gradients(found: list[Gradients]) -> None:
    for key, value in found[0].items():
        if key not in ("rank", "table"):
            torch.testing.assert_close(value, found[1][key])


def test_a_batch_is_gathered_in_rank_order_without_images_and_text(found: list[Gradients]) -> None:
    for of_rank in found:
        batch = {key[6:]: value for key, value in of_rank.items() if key.startswith("batch/")}
        assert batch.keys() == {"sample", "clip.valid", "actions"}
        assert batch["sample"].tolist() == [0, 1, 2, 3]
        assert batch["clip.valid"].tolist() == [[True, True], [False, True], [True, False], [False, True]]
        assert batch["actions"][:, 0, 0].tolist() == [0, 0, 1, 1]


def test_flags_are_gathered_and_shared_tensors_are_not(found: list[Gradients]) -> None:
    for number, of_rank in enumerate(found):
        assert of_rank["flag"].tolist() == [True, True, False, True]
        assert of_rank["table"].tolist() == [number]
        assert of_rank["rank"].tolist() == [number, WORLD]


def test_one_process_gathers_nothing() -> None:
    features = Features({"frames": torch.zeros(2, 3)})
    assert gather_features(features) is features
    assert gather_batch(_mixed_batch(0)).keys() == {"sample", "clip.valid", "actions"}
    assert (rank(), world_size()) == (0, 1)
