"""Training criteria, one file a paper: pure functions on raw embeddings, and the objectives built on them.

The functions stand alone: import one into any training loop. `OBJECTIVES` names what `counterpoint pretrain` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterpoint.config import FrozenConfig, validate
from counterpoint.errors import BadInputError
from counterpoint.objectives.actol import (
    AcTOL,
    AcTOLConfig,
    DirectedAcTOL,
    actol_loss,
    brownian_bridge_loss,
    directed_vlo_loss,
    vlo_loss,
    vlo_lower_bound,
)
from counterpoint.objectives.atc import ATC, ATCConfig
from counterpoint.objectives.base import Batch, ClipObjective, Features, LossOutput, Objective
from counterpoint.objectives.c_learning import c_learning_loss, c_learning_pairwise_loss
from counterpoint.objectives.clip_goal import CLIPGoal, CLIPGoalConfig, clip_goal_loss
from counterpoint.objectives.contrastive_rl import (
    awr_loss,
    contrastive_nce_loss,
    ddpgbc_loss,
    inner_product_logits,
    logsumexp_penalty,
    negative_distance_logits,
    row_column_infonce_loss,
    scaled_inner_product,
)
from counterpoint.objectives.curl import CURL, CURLConfig
from counterpoint.objectives.decisionnce import (
    DecisionNCEConfig,
    DecisionNCEP,
    DecisionNCET,
    decisionnce_p_loss,
    decisionnce_p_loss_halves,
    decisionnce_t_loss,
    potential_rewards,
    transition_rewards,
)
from counterpoint.objectives.icon import (
    ICon,
    IConConfig,
    farthest_point_sampling,
    icon_loss,
    info_nce,
    multi_level_weights,
    patch_mask,
)
from counterpoint.objectives.inverse_dynamics import InverseDynamics, InverseDynamicsConfig, inverse_dynamics_loss
from counterpoint.objectives.liv import LIV, LIVConfig, liv_loss
from counterpoint.objectives.multitask_cloning import MultitaskCloning, MultitaskCloningConfig, multitask_cloning_loss
from counterpoint.objectives.premier_taco import (
    PremierTACO,
    PremierTACOConfig,
    premier_taco_loss,
    premier_taco_mixed_loss,
    premier_taco_softmax_loss,
    premier_taco_window_loss,
    premier_taco_window_softmax_loss,
    window_accuracy,
)
from counterpoint.objectives.r3m import R3M, R3MConfig, r3m_language_loss, r3m_loss, r3m_time_contrastive_loss
from counterpoint.objectives.smart import (
    SMART,
    SMARTConfig,
    forward_prediction_loss,
    hindsight_loss,
    inverse_prediction_loss,
)
from counterpoint.objectives.spr import SPR, SPRConfig, spr_loss
from counterpoint.objectives.steps import StepConfig, StepObjective
from counterpoint.objectives.successor_representation import successor_loss, successor_targets
from counterpoint.objectives.taco import TACO, TACOConfig, taco_loss
from counterpoint.objectives.tcn import TCN, TCNConfig, tcn_loss
from counterpoint.objectives.td3_bc_pretraining import (
    TD3BCPretraining,
    TD3BCPretrainingConfig,
    td3_bc_actor_loss,
    td3_critic_loss,
)
from counterpoint.objectives.td_infonce import (
    cloned_actor_loss,
    goal_reaching_loss,
    goal_reaching_rows,
    mc_infonce_loss,
    td_infonce_loss,
    td_infonce_weights,
)
from counterpoint.objectives.vip import VIP, VIPConfig, vip_loss

__all__ = [
    "ATC",
    "CURL",
    "LIV",
    "OBJECTIVES",
    "R3M",
    "SMART",
    "SPR",
    "STEP_OBJECTIVES",
    "TACO",
    "TCN",
    "VIP",
    "ATCConfig",
    "AcTOL",
    "AcTOLConfig",
    "Batch",
    "CLIPGoal",
    "CLIPGoalConfig",
    "CURLConfig",
    "ClipObjective",
    "DecisionNCEConfig",
    "DecisionNCEP",
    "DecisionNCET",
    "DirectedAcTOL",
    "Entry",
    "Features",
    "ICon",
    "IConConfig",
    "InverseDynamics",
    "InverseDynamicsConfig",
    "LIVConfig",
    "LossOutput",
    "MultitaskCloning",
    "MultitaskCloningConfig",
    "Objective",
    "PremierTACO",
    "PremierTACOConfig",
    "R3MConfig",
    "SMARTConfig",
    "SPRConfig",
    "StepConfig",
    "StepEntry",
    "StepObjective",
    "TACOConfig",
    "TCNConfig",
    "TD3BCPretraining",
    "TD3BCPretrainingConfig",
    "VIPConfig",
    "actol_loss",
    "awr_loss",
    "brownian_bridge_loss",
    "c_learning_loss",
    "c_learning_pairwise_loss",
    "clip_goal_loss",
    "cloned_actor_loss",
    "contrastive_nce_loss",
    "ddpgbc_loss",
    "decisionnce_p_loss",
    "decisionnce_p_loss_halves",
    "decisionnce_t_loss",
    "directed_vlo_loss",
    "farthest_point_sampling",
    "forward_prediction_loss",
    "goal_reaching_loss",
    "goal_reaching_rows",
    "hindsight_loss",
    "icon_loss",
    "info_nce",
    "inner_product_logits",
    "inverse_dynamics_loss",
    "inverse_prediction_loss",
    "liv_loss",
    "logsumexp_penalty",
    "mc_infonce_loss",
    "multi_level_weights",
    "multitask_cloning_loss",
    "negative_distance_logits",
    "objective_config",
    "patch_mask",
    "potential_rewards",
    "premier_taco_loss",
    "premier_taco_mixed_loss",
    "premier_taco_softmax_loss",
    "premier_taco_window_loss",
    "premier_taco_window_softmax_loss",
    "r3m_language_loss",
    "r3m_loss",
    "r3m_time_contrastive_loss",
    "row_column_infonce_loss",
    "scaled_inner_product",
    "spr_loss",
    "successor_loss",
    "successor_targets",
    "taco_loss",
    "tcn_loss",
    "td3_bc_actor_loss",
    "td3_critic_loss",
    "td_infonce_loss",
    "td_infonce_weights",
    "transition_rewards",
    "vip_loss",
    "vlo_loss",
    "vlo_lower_bound",
    "window_accuracy",
]


@dataclass(frozen=True)
class Entry:
    """What a name in a recipe stands for.

    Attributes:
        objective: The class; called with a dual encoder and its configuration.
        config: Its configuration.
    """

    objective: type[Any]
    config: type[FrozenConfig]


OBJECTIVES: dict[str, Entry] = {
    "decisionnce_p": Entry(DecisionNCEP, DecisionNCEConfig),
    "decisionnce_t": Entry(DecisionNCET, DecisionNCEConfig),
    "actol": Entry(AcTOL, AcTOLConfig),
    "directed_actol": Entry(DirectedAcTOL, AcTOLConfig),
    "clip_goal": Entry(CLIPGoal, CLIPGoalConfig),
    "liv": Entry(LIV, LIVConfig),
    "vip": Entry(VIP, VIPConfig),
    "r3m": Entry(R3M, R3MConfig),
    "tcn": Entry(TCN, TCNConfig),
}


@dataclass(frozen=True)
class StepEntry:
    """An objective on transitions.

    Attributes:
        objective: The class; called with an observation encoder, the number of action dimensions where it looks at
            actions, and its configuration.
        config: Its configuration.
        actions: Whether it looks at actions. One that does not also learns from videos alone.
    """

    objective: type[Any]
    config: type[FrozenConfig]
    actions: bool = True


STEP_OBJECTIVES: dict[str, StepEntry] = {
    "premier_taco": StepEntry(PremierTACO, PremierTACOConfig),
    "taco": StepEntry(TACO, TACOConfig),
    "curl": StepEntry(CURL, CURLConfig, actions=False),
    "atc": StepEntry(ATC, ATCConfig, actions=False),
    "spr": StepEntry(SPR, SPRConfig),
    "inverse_dynamics": StepEntry(InverseDynamics, InverseDynamicsConfig),
    "multitask_cloning": StepEntry(MultitaskCloning, MultitaskCloningConfig),
    "td3_bc": StepEntry(TD3BCPretraining, TD3BCPretrainingConfig),
    "smart": StepEntry(SMART, SMARTConfig),
}


def objective_config(
    section: Mapping[str, Any], where: str, among: Mapping[str, Entry | StepEntry] = OBJECTIVES
) -> tuple[str, FrozenConfig]:
    """The name and the checked configuration of a recipe's `[objective]` section.

    Raises:
        BadInputError: When the name is missing or unknown, or a key is unknown or ill-typed.
    """
    name = section.get("name")
    if not isinstance(name, str) or name not in among:
        raise BadInputError(where, f"objective.name = {name!r}", f"one of {', '.join(among)}", "choose one of these")
    settings = {key: value for key, value in section.items() if key != "name"}
    return name, validate(among[name].config, settings, f"{where} [objective]")
