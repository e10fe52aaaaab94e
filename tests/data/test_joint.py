from __future__ import annotations

import pytest
import torch

from counterpoint.data.sampler import JointLoader, NStepLoader
from counterpoint.data.spec import NStepSpec
from tests.data.numbered import numbered_store


def loader(seed: int, actions: int, batch_size: int = 4) -> NStepLoader:
    spec = NStepSpec((0,), actions, stack=1)
    return NStepLoader(numbered_store([20, 30]), spec, batch_size=batch_size, seed=seed)


def test_the_others_batches_stand_beside_the_main_one_s() -> None:
    main, other = loader(0, 2), loader(1, 3)
    joint = JointLoader(main, {"curl": other})
    assert joint.epoch_size == main.epoch_size
    for number, batch in enumerate(joint.batches(5, 8), 5):
        mine, theirs = main[number], other[number]
        assert set(batch) == set(mine) | {f"curl.{key}" for key in theirs}
        for key, value in mine.items():
            assert batch[key] == value if key == "instruction" else torch.equal(batch[key], value)
        assert torch.equal(batch["curl.actions"], theirs["actions"])


def test_one_more_leaves_the_rest_alone() -> None:
    alone = next(iter(JointLoader(loader(0, 2), {}).batches(3, 4)))
    beside = next(iter(JointLoader(loader(0, 2), {"a": loader(1, 1)}).batches(3, 4)))
    assert torch.equal(alone["frames"], beside["frames"])


def test_every_part_splits_with_the_batch() -> None:
    batch = next(iter(JointLoader(loader(0, 2), {"a": loader(1, 1)}).batches(0, 1)))
    assert {len(value) for value in batch.values()} == {4}


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(workers: int) -> None:
    main = NStepLoader(numbered_store([20]), NStepSpec((0,), 1), batch_size=4, seed=0, workers=workers)
    found = [batch["step"].tolist() for batch in JointLoader(main, {"a": loader(1, 1)}).batches(0, 3)]
    assert found == [main[number]["step"].tolist() for number in range(3)]
