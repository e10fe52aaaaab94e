"""Training criteria, one file per paper: pure loss functions, and the objectives built on them.

The functions can be used in any training loop. They take raw embeddings (not normalised) and raise `BadInputError` if
tensor shapes do not match. `OBJECTIVES` lists the objectives that a recipe can train.
"""

from __future__ import annotations

from typing import TypeVar, cast

from counterpoint.errors import require
from counterpoint.objectives.actol import actol_loss, brownian_bridge_loss, directed_vlo_loss, vlo_loss, vlo_lower_bound
from counterpoint.objectives.base import Batch, ClipConfig, ClipObjective, Features, LossOutput, Objective
from counterpoint.objectives.c_learning import c_learning_loss
from counterpoint.objectives.clip_goal import clip_goal_loss
from counterpoint.objectives.contrastive_rl import contrastive_nce_loss
from counterpoint.objectives.decisionnce import (
    decisionnce_p_loss,
    decisionnce_t_loss,
    potential_rewards,
    transition_rewards,
)
from counterpoint.objectives.icon import (
    ICon,
    IConConfig,
    farthest_point_sampling,
    icon_loss,
    multi_level_weights,
    patch_mask,
)
from counterpoint.objectives.liv import liv_loss
from counterpoint.objectives.premier_taco import PremierTACO, PremierTACOConfig, premier_taco_loss
from counterpoint.objectives.r3m import r3m_loss
from counterpoint.objectives.steps import StepConfig, StepObjective
from counterpoint.objectives.tcn import tcn_loss
from counterpoint.objectives.td_infonce import goal_reaching_loss, mc_infonce_loss, td_infonce_loss
from counterpoint.objectives.vip import vip_loss
from counterpoint.registry import LazyTable

__all__ = [
    "OBJECTIVES",
    "Batch",
    "ClipConfig",
    "ClipObjective",
    "Features",
    "ICon",
    "IConConfig",
    "LossOutput",
    "Objective",
    "PremierTACO",
    "PremierTACOConfig",
    "StepConfig",
    "StepObjective",
    "actol_loss",
    "brownian_bridge_loss",
    "c_learning_loss",
    "clip_goal_loss",
    "contrastive_nce_loss",
    "decisionnce_p_loss",
    "decisionnce_t_loss",
    "directed_vlo_loss",
    "farthest_point_sampling",
    "goal_reaching_loss",
    "icon_loss",
    "liv_loss",
    "mc_infonce_loss",
    "multi_level_weights",
    "objective_class",
    "objective_names",
    "patch_mask",
    "potential_rewards",
    "premier_taco_loss",
    "r3m_loss",
    "tcn_loss",
    "td_infonce_loss",
    "transition_rewards",
    "vip_loss",
    "vlo_loss",
    "vlo_lower_bound",
]

OBJECTIVES = LazyTable(
    "objective",
    {
        "decisionnce_p": "counterpoint.objectives.decisionnce:DecisionNCEP",
        "decisionnce_t": "counterpoint.objectives.decisionnce:DecisionNCET",
        "actol": "counterpoint.objectives.actol:AcTOL",
        "directed_actol": "counterpoint.objectives.actol:DirectedAcTOL",
        "clip_goal": "counterpoint.objectives.clip_goal:CLIPGoal",
        "liv": "counterpoint.objectives.liv:LIV",
        "vip": "counterpoint.objectives.vip:VIP",
        "r3m": "counterpoint.objectives.r3m:R3M",
        "tcn": "counterpoint.objectives.tcn:TCN",
        "premier_taco": "counterpoint.objectives.premier_taco:PremierTACO",
        "taco": "counterpoint.objectives.taco:TACO",
        "curl": "counterpoint.objectives.curl:CURL",
        "atc": "counterpoint.objectives.atc:ATC",
        "spr": "counterpoint.objectives.spr:SPR",
        "inverse_dynamics": "counterpoint.objectives.action_prediction:InverseDynamics",
        "multitask_cloning": "counterpoint.objectives.action_prediction:MultitaskCloning",
        "td3_bc": "counterpoint.objectives.td3_bc_pretraining:TD3BCPretraining",
        "smart": "counterpoint.objectives.smart:SMART",
    },
    "counterpoint.objectives",
)
"""Name in a recipe -> class; `OBJECTIVES[name] = MyObjective` registers an objective in the running program."""

Kind = TypeVar("Kind", bound=Objective)


def objective_class(name: object, kind: type[Kind], where: str = "objective") -> type[Kind]:
    """Import the objective with this name; it must be a subclass of `kind`.

    Raises:
        BadInputError: If the name is unknown, or the objective is not a subclass of `kind`.
    """
    found = f"objective.name = {name!r}"
    entry = OBJECTIVES.find(name, where, found)
    require(issubclass(entry, kind), where, found, f"a {kind.__name__}", "choose a recipe of the other kind")
    return cast("type[Kind]", entry)


def objective_names(kind: type[Objective] = Objective) -> list[str]:
    """Return the names of all objectives of a kind: `ClipObjective` or `StepObjective`."""
    return [name for name, found in OBJECTIVES.items() if issubclass(found, kind)]
