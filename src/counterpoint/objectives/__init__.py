"""Training criteria, one file a paper: pure functions on raw embeddings, and the objectives built on them.

The functions stand alone: import one into any training loop. `OBJECTIVES` names what `counterpoint pretrain` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from counterpoint.config import FrozenConfig, validate
from counterpoint.errors import BadInputError
from counterpoint.objectives.actol import AcTOL, AcTOLConfig, DirectedAcTOL, actol_loss
from counterpoint.objectives.base import Batch, ClipObjective, Features, LossOutput, Objective
from counterpoint.objectives.brownian_bridge import (
    brownian_bridge_log_loss,
    brownian_bridge_log_loss_as_trained,
    brownian_bridge_loss,
    brownian_bridge_loss_as_trained,
)
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
from counterpoint.objectives.liv import LIV, LIVConfig, liv_loss
from counterpoint.objectives.r3m import R3M, R3MConfig, r3m_language_loss, r3m_loss, r3m_time_contrastive_loss
from counterpoint.objectives.successor_representation import successor_loss, successor_targets
from counterpoint.objectives.tcn import TCN, TCNConfig, tcn_loss
from counterpoint.objectives.td_infonce import (
    cloned_actor_loss,
    goal_reaching_loss,
    goal_reaching_rows,
    mc_infonce_loss,
    td_infonce_loss,
    td_infonce_weights,
)
from counterpoint.objectives.vip import VIP, VIPConfig, vip_loss
from counterpoint.objectives.vlo import directed_vlo_loss, vlo_loss, vlo_lower_bound

__all__ = [
    "LIV",
    "OBJECTIVES",
    "R3M",
    "TCN",
    "VIP",
    "AcTOL",
    "AcTOLConfig",
    "Batch",
    "CLIPGoal",
    "CLIPGoalConfig",
    "ClipObjective",
    "DecisionNCEConfig",
    "DecisionNCEP",
    "DecisionNCET",
    "DirectedAcTOL",
    "Entry",
    "Features",
    "LIVConfig",
    "LossOutput",
    "Objective",
    "R3MConfig",
    "TCNConfig",
    "VIPConfig",
    "actol_loss",
    "awr_loss",
    "brownian_bridge_log_loss",
    "brownian_bridge_log_loss_as_trained",
    "brownian_bridge_loss",
    "brownian_bridge_loss_as_trained",
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
    "goal_reaching_loss",
    "goal_reaching_rows",
    "inner_product_logits",
    "liv_loss",
    "logsumexp_penalty",
    "mc_infonce_loss",
    "negative_distance_logits",
    "objective_config",
    "potential_rewards",
    "r3m_language_loss",
    "r3m_loss",
    "r3m_time_contrastive_loss",
    "row_column_infonce_loss",
    "scaled_inner_product",
    "successor_loss",
    "successor_targets",
    "tcn_loss",
    "td_infonce_loss",
    "td_infonce_weights",
    "transition_rewards",
    "vip_loss",
    "vlo_loss",
    "vlo_lower_bound",
]


@dataclass(frozen=True)
class Entry:
    """What a name in a recipe stands for.

    Attributes:
        objective: The class; called with a dual encoder and its configuration.
        config: Its configuration.
        segment_score: How a segment is scored against an instruction in evaluations: by the similarity gained
            (`potential`) or by the direction of the change (`direction`).
    """

    objective: type[Any]
    config: type[FrozenConfig]
    segment_score: Literal["potential", "direction"] = "potential"


OBJECTIVES: dict[str, Entry] = {
    "decisionnce_p": Entry(DecisionNCEP, DecisionNCEConfig),
    "decisionnce_t": Entry(DecisionNCET, DecisionNCEConfig, "direction"),
    "actol": Entry(AcTOL, AcTOLConfig),
    "directed_actol": Entry(DirectedAcTOL, AcTOLConfig),
    "clip_goal": Entry(CLIPGoal, CLIPGoalConfig),
    "liv": Entry(LIV, LIVConfig),
    "vip": Entry(VIP, VIPConfig),
    "r3m": Entry(R3M, R3MConfig),
    "tcn": Entry(TCN, TCNConfig),
}


def objective_config(section: Mapping[str, Any], where: str) -> tuple[str, FrozenConfig]:
    """The name and the checked configuration of a recipe's `[objective]` section.

    Raises:
        BadInputError: When the name is missing or unknown, or a key is unknown or ill-typed.
    """
    name = section.get("name")
    if name not in OBJECTIVES:
        raise BadInputError(
            where,
            found=f"objective.name = {name!r}",
            expected=f"one of {', '.join(OBJECTIVES)}",
            mend="choose one of these",
        )
    settings = {key: value for key, value in section.items() if key != "name"}
    return name, validate(OBJECTIVES[name].config, settings, f"{where} [objective]")
