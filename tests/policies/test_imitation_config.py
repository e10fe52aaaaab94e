from __future__ import annotations

import pytest

from counterpoint.objectives.crossway import CrosswayConfig
from counterpoint.objectives.icon import IConConfig
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.imitation import ImitationRecipe
from tests.policies.masked_demos import small_imitation

ICON = IConConfig(agent_keys=2, environment_keys=6)
TRANSFORMER = DiffusionConfig(network="transformer", layers=2, width=32, train_steps=20)


def test_settings_that_do_not_fit_are_refused() -> None:
    for changes, message in (
        ({"frame": 30}, "smaller than the encoder"),
        ({"crossway": CrosswayConfig(), "diffusion": TRANSFORMER}, "bottleneck of a U-Net"),
    ):
        with pytest.raises(ValueError, match=message):
            small_imitation(**changes)
    with pytest.raises(ValueError, match="icon needs an encoder with tokens"):
        ImitationRecipe.model_validate({"icon": ICON, "encoder": {"kind": "drq", "stack": 1, "size": 84}, "frame": 84})
