"""Two ranks of a diffusion policy's objective, whose noise the sampler draws, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterpoint.data.store import MemoryStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.objectives.base import Objective
from counterpoint.objectives.icon import IConConfig
from counterpoint.objectives.smart import SMART, SMARTConfig
from counterpoint.training.imitation import build_imitation
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.run import load_checkpoint, save_checkpoint
from tests.data.sampling import sampler
from tests.distributed.ranks import run_ranks
from tests.policies.masked_demos import CAMERAS, SMALL_VIT, masked_demos, small_imitation

WORLD, B, STEPS, RESUMED = 2, 8, 4, 2
CASES = ("policy", "icon", "smart")


def _objective(name: str, store: MemoryStore) -> Objective:
    torch.manual_seed(0)
    if name == "smart":
        config = SMARTConfig(context=3, width=16, heads=2, layers=1, dropout=0, shift=2)
        return SMART(ObservationEncoder(SMALL_VIT), 2, config)
    # So few keys that all images count: each rank takes the mean over its own.
    terms = {"icon": IConConfig(agent_keys=1, environment_keys=1)} if name == "icon" else {}
    return build_imitation(small_imitation(**terms), store, CAMERAS)


def _trained(name: str, rank: int = 0, world: int = 1, resume: Path | None = None) -> dict[str, Tensor]:
    """Train a few steps, saved after the second into a folder, or continued from there when it is saved."""
    store = masked_demos()
    objective = _objective(name, store)
    spec = objective.sampling().with_crop(SMALL_VIT.size)
    batches = sampler(store, spec, batch_size=B, seed=5, camera=CAMERAS, rank=rank, world_size=world)
    learner = ObjectiveLearner(
        objective, OptimizerConfig(lr=0.1, eps=1.0), total_steps=STEPS, accelerator=Accelerator(cpu=True), seed=5
    )
    start = 0  # and a large eps, without which Adam would turn rounding of small gradients into whole steps
    if resume is not None and resume.exists():
        start, state = load_checkpoint(next(resume.glob("step-*")))
        learner.load_state(state)
    for step in range(start, STEPS):
        if resume is not None and step == RESUMED and not resume.exists():
            save_checkpoint(resume, step, learner.state())
        learner.update(batches[step], step)
    scores = learner.evaluate(batches[9])
    return {key: value.clone() for key, value in objective.state_dict().items()} | {
        "score": torch.tensor(scores["loss"])
    }


def _work(number: int, world: int, folder: Path) -> None:
    for name in CASES:
        for run in ("whole", "resumed"):
            found = _trained(name, number, WORLD, folder / f"{name}-{number}")
            save_file(found, folder / f"{name}-{run}-{number}.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("noise")
    run_ranks(_work, WORLD, made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_reach_the_parameters_of_one_process(name: str, folder: Path) -> None:
    alone = _trained(name)
    ranks = [load_file(folder / f"{name}-whole-{number}.safetensors") for number in range(WORLD)]
    for key, value in alone.items():
        # Ranks of a policy score their own rows.
        found = [torch.stack([rank[key] for rank in ranks]).mean()] if key == "score" else [rank[key] for rank in ranks]
        for one in found:
            torch.testing.assert_close(one, value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_resume_bit_for_bit(name: str, folder: Path) -> None:
    for number in range(WORLD):
        whole, resumed = (load_file(folder / f"{name}-{run}-{number}.safetensors") for run in ("whole", "resumed"))
        assert whole.keys() == resumed.keys()
        for key, value in whole.items():
            assert torch.equal(resumed[key], value), key
