from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

from counterpoint.training import train as training
from counterpoint.training.distributed import accelerator_of
from tests.policies.demos import demonstrations
from tests.training.runs import clone, cloning, pretrain
from tests.training.step_data import control_store, write_recipe
from tests.training.test_cloning import encoder


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def test_each_accelerator_has_the_precision_asked_for() -> None:
    for precision in ("no", "bf16", "bf16", "no"):
        assert accelerator_of(precision).mixed_precision == precision


def test_devices_and_process_group_stay() -> None:
    accelerator_of("no")
    before = dict(PartialState._shared_state)
    accelerator_of("bf16")
    assert PartialState._shared_state == before


@pytest.mark.parametrize(
    ("device", "count", "index"), [("cpu", 0, None), ("cuda", 1, None), ("cuda:0", 1, 0), ("cuda:1", 2, 1)]
)
def test_a_device_is_set_where_it_has_a_number(
    device: str, count: int, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    accelerator_of("no", device)
    assert chosen == ([] if index is None else [index])


def test_cloning_after_half_precision_is_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = str(write_recipe(tmp_path / "curl.toml", "curl"))
    used: list[str] = []

    def kept(precision: str, device: str | None = None) -> Accelerator:
        made = accelerator_of(precision, device)
        used.append(made.mixed_precision)
        return made

    monkeypatch.setattr(training, "accelerator_of", kept)
    config = cloning(6, hidden=16, shift=0)
    first = clone(encoder(), demonstrations(2), config, tmp_path / "first").state_dict()
    pretrain(recipe, control_store(), tmp_path / "half", {"train.precision": "bf16"})  # after one in full
    second = clone(encoder(), demonstrations(2), config, tmp_path / "second").state_dict()
    assert used == ["no", "bf16", "no"]
    for name, value in first.items():
        assert torch.equal(value, second[name])
