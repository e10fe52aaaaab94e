"""Comparisons with ICon that come with the package, by name: small ones to run anywhere, and the paper's experiments.

Sizes of the small ones are ours, for the machine a preset says. The others are the paper's sizes, to be made smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studies.icon.config import ComparisonConfig, Evaluations, IconData, Measures, Method, Transfer
from studies.parts import named_preset

__all__ = ["PRESETS", "preset"]

ROBOSUITE = ("robosuite/Lift", "robosuite/Door", "robosuite/Stack")
RLBENCH = (
    "rlbench/close_microwave",
    "rlbench/close_drawer",
    "rlbench/take_lid_off_saucepan",
    "rlbench/open_box",
    "rlbench/put_rubbish_in_bin",
)
TRANSFORMER = {"diffusion": {"network": "transformer"}}

DIFF_C = Method(name="Diff-C")
DIFF_T = Method(name="Diff-T", training=TRANSFORMER)
CROSSWAY = Method(name="Crossway-Diff-C", training={"crossway": {}})
ICON_C = Method(name="ICon-Diff-C", training={"icon": {}})
ICON_T = Method(name="ICon-Diff-T", training=TRANSFORMER | {"icon": {}})

PAPER_TRAINING: dict[str, Any] = {
    "encoder": {"kind": "vit", "size": 224, "cameras": 2},
    "train": {"epochs": 600, "batch_size": 64},
}
HALF = {"steps": 1100, "batch_size": 16, "save_every": 1100}
"""Of the preset `cpu`'s training."""

UNVERIFIED = (
    "RLBench's tasks need CoppeliaSim, which these presets were never run with: their adapter is tested on a stand-in. "
    "Their demonstrations are read from data.path"
)
THEIR_DATA = (
    "The paper's demonstrations are people's and its masks SAM's; robosuite's are recorded here from scripted experts, "
    "with the simulator's own masks"
)


def _paper(**changes: Any) -> ComparisonConfig:
    settings: dict[str, Any] = {
        "title": "diffusion policies with and without ICon, the paper's Tables 1 and 2",
        "data": IconData(tasks=(*ROBOSUITE, *RLBENCH), path="demonstrations"),
        "training": PAPER_TRAINING,
        "methods": (DIFF_C, DIFF_T, CROSSWAY, ICON_C, ICON_T),
        "evaluation": Evaluations(ensemble=0.01),
        "notes": (THEIR_DATA, UNVERIFIED),
    }
    return ComparisonConfig(**settings | changes)


def _robosuite() -> ComparisonConfig:
    return _paper(
        title="diffusion policies with and without ICon, the paper's Table 2",
        data=IconData(tasks=ROBOSUITE),
        notes=(THEIR_DATA,),
    )


def _transfer() -> ComparisonConfig:
    return _paper(
        title="transfer across robots, the paper's Table 3",
        data=IconData(tasks=("robosuite/Lift", "robosuite/Stack")),
        methods=(DIFF_C, ICON_C),
        transfer=Transfer(
            targets={task: (f"{task}-Kinova3", f"{task}-IIWA") for task in ("robosuite/Lift", "robosuite/Stack")},
            training={"train": {"epochs": 300}},
        ),
        notes=(THEIR_DATA,),
    )


def _ablated(**keys: int) -> tuple[Method, ...]:
    """Figure 5: without ICon, with it, without farthest point sampling, and without contrast in every layer."""
    return (
        DIFF_C,
        Method(name="ICon-Diff-C", training={"icon": {**keys}}),
        Method(name="ICon-Diff-C-random-keys", training={"icon": {"keys": "random", **keys}}),
        Method(name="ICon-Diff-C-last-layer", training={"icon": {"levels": "last", **keys}}),
    )


def _ablation() -> ComparisonConfig:
    return _paper(
        title="what ICon is made of, the paper's Figure 5",
        data=IconData(tasks=("robosuite/Door", "robosuite/CloseDrawer")),
        methods=_ablated(),
        notes=(THEIR_DATA, "The paper's figure is of Open Box, which needs CoppeliaSim"),
    )


def _stability() -> ComparisonConfig:
    return _paper(
        title="stability of training, the paper's Figure 4",
        data=IconData(tasks=("robosuite/Door",)),
        methods=(DIFF_C, CROSSWAY, ICON_C),
        notes=(THEIR_DATA,),
    )


def _small_vit(size: int, width: int, depth: int, heads: int, cameras: int) -> dict[str, Any]:
    """An encoder with patches of 8 pixels."""
    vit = {"patch": 8, "embed_dim": width, "depth": depth, "heads": heads}
    return {"kind": "vit", "size": size, "cameras": cameras, "vit": vit}


def _cpu() -> ComparisonConfig:
    """Sized for about an hour of two cores: two views of 96 pixels, 144 tokens each."""
    return ComparisonConfig(
        title="Diff-C with and without ICon, CPU",
        data=IconData(tasks=("robosuite/Lift",), frame=112, demonstrations=50, validation=10),
        training={
            "encoder": _small_vit(96, 64, 4, 2, 2),
            "diffusion": {"down_dims": [64, 128, 256]},
            "optimizer": {"lr": 5e-4, "warmup_steps": 100},
            "train": {"steps": 2200, "batch_size": 16, "save_every": 550},
        },
        methods=_ablated(agent_keys=5, environment_keys=20)[:2],
        evaluation=Evaluations(checkpoints=4, between=10),
    )


def _ablation_cpu() -> ComparisonConfig:
    """Sized for about an hour of two cores: half of the preset `cpu`'s steps."""
    whole = _cpu()
    return whole.model_copy(
        update={
            "title": "what ICon is made of, CPU",
            "data": whole.data.model_copy(update={"tasks": ("robosuite/CloseDrawer",)}),
            "training": whole.training | {"train": HALF},
            "methods": _ablated(agent_keys=5, environment_keys=20),
            "evaluation": Evaluations(checkpoints=1),
        }
    )


def _methods_cpu() -> ComparisonConfig:
    """Sized for 40 minutes of two cores: the five methods of Tables 1 and 2, one seed, half of `cpu`'s steps."""
    whole = _cpu()
    keys = {"icon": {"agent_keys": 5, "environment_keys": 20}}
    transformer = {"diffusion": {"network": "transformer", "layers": 6, "width": 192}}
    return whole.model_copy(
        update={
            "title": "five diffusion policies, CPU",
            "training": whole.training | {"train": HALF},
            "methods": (
                DIFF_C,
                Method(name="Diff-T", training=transformer),
                CROSSWAY,
                Method(name="ICon-Diff-C", training=keys),
                Method(name="ICon-Diff-T", training=transformer | keys),
            ),
            "seeds": (0,),
            "evaluation": Evaluations(checkpoints=1),
        }
    )


def _transfer_cpu() -> ComparisonConfig:
    """Sized for half an hour of two cores: Table 3's robots on Lift, one seed, half of `cpu`'s steps."""
    whole = _cpu()
    fine_tuning = {"train": {"steps": 400, "save_every": 400}, "optimizer": {"warmup_steps": 50}}
    return whole.model_copy(
        update={
            "title": "transfer across robots, CPU",
            "training": whole.training | {"train": HALF},
            "seeds": (0,),
            "evaluation": Evaluations(checkpoints=1),
            "transfer": Transfer(
                targets={"robosuite/Lift": ("robosuite/Lift-Kinova3", "robosuite/Lift-IIWA")}, training=fine_tuning
            ),
        }
    )


def _gpu() -> ComparisonConfig:
    """Sized for twice ten minutes of one large GPU and 16 cores: the paper's encoder, as many steps as fit."""
    return ComparisonConfig(
        title="Diff-C with and without ICon, GPU",
        data=IconData(tasks=("robosuite/Lift",), workers=14),
        training=PAPER_TRAINING | {"train": {"epochs": None, "batch_size": 64, "precision": "bf16", "workers": 8}},
        methods=(DIFF_C, ICON_C),
        seeds=(0,),
        evaluation=Evaluations(checkpoints=3, between=10, envs=12, processes=True),
        minutes=6,
        processes=1,
    )


def _quick() -> ComparisonConfig:
    return ComparisonConfig(
        title="Diff-C with and without ICon, quick look",
        data=IconData(tasks=("robosuite/Lift",), cameras=("agentview",), frame=64, demonstrations=3, validation=2),
        training={
            "encoder": _small_vit(56, 24, 2, 2, 1),
            "diffusion": {"down_dims": [16, 32], "step_dim": 16},
            "train": {"steps": 20, "batch_size": 8},
        },
        methods=(DIFF_C, Method(name="ICon-Diff-C", training={"icon": {"agent_keys": 2, "environment_keys": 4}})),
        seeds=(0, 42),
        evaluation=Evaluations(checkpoints=2, episodes=4, between=2, steps=24, envs=4),
        measures=Measures(frames=4, probe_frames=12, pictures=2),
    )


PRESETS: Mapping[str, Callable[[], ComparisonConfig]] = {
    "quick": _quick,
    "cpu": _cpu,
    "gpu": _gpu,
    "paper": _paper,
    "robosuite": _robosuite,
    "transfer": _transfer,
    "ablation": _ablation,
    "stability": _stability,
    "ablation-cpu": _ablation_cpu,
    "methods-cpu": _methods_cpu,
    "transfer-cpu": _transfer_cpu,
}
"""By name. `quick`, `gpu` and those that end in `cpu` are sized to be run; the others are the paper's sizes."""


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> ComparisonConfig:
    """A preset with overrides.

    Args:
        name: One of `PRESETS`.
        overrides: Dotted keys and their values, such as `training.train.steps`.

    Raises:
        BadInputError: When the name or a key is unknown.
    """
    return named_preset(PRESETS, ComparisonConfig, name, overrides or {})
