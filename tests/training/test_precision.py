from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

from counterpoint.objectives.cloning import CloningConfig
from counterpoint.training import clone as cloning
from counterpoint.training.clone import CloneConfig, clone
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.pretrain_steps import load_step_config, pretrain_steps
from tests.policies.demos import demonstrations
from tests.policies.test_clone import encoder
from tests.training.step_data import control_store, write_recipe


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


def test_cloning_after_half_precision_is_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = str(write_recipe(tmp_path / "curl.toml", "curl"))
    used: list[Accelerator] = []

    def kept(precision: str) -> Accelerator:
        used.append(accelerator_of(precision))
        return used[-1]

    monkeypatch.setattr(cloning, "accelerator_of", kept)
    config = CloneConfig(steps=6, batch_size=16, cloning=CloningConfig(hidden=16, shift=0))
    first = clone(encoder(), demonstrations(2), config).state_dict()
    half = load_step_config(recipe, {"train.precision": "bf16"})
    pretrain_steps(half, control_store(), tmp_path / "half")  # after one in full
    second = clone(encoder(), demonstrations(2), config).state_dict()
    assert [one.mixed_precision for one in used] == ["no", "no"]
    for name, value in first.items():
        assert torch.equal(value, second[name])
