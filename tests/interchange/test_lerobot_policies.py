"""Parts of policies beside LeRobot's of the same kind: the same weights give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

configuration = pytest.importorskip(
    "lerobot.policies.diffusion.configuration_diffusion",
    reason="run by `make interchange`, in an environment of its own",
)

from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402  (after importorskip)
from lerobot.policies.act.modeling_act import ACTTemporalEnsembler  # noqa: E402
from lerobot.policies.diffusion.modeling_diffusion import DiffusionConditionalUnet1d  # noqa: E402

from counterpoint.policies.chunking import TemporalEnsemble  # noqa: E402
from counterpoint.policies.networks import ConditionalUnet1d, DiffusionConfig  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def theirs(action: int, condition: int, **settings: Any) -> nn.Module:
    """LeRobot's network; `condition` is of all observations together."""
    config = configuration.DiffusionConfig(use_film_scale_modulation=True, **settings)
    config.output_features = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(action,))}
    made: nn.Module = DiffusionConditionalUnet1d(config, global_cond_dim=condition)
    return made


def blocks(network: Any) -> Iterator[Any]:
    """LeRobot's residual blocks in the order in which they are used."""
    for first, second, _ in network.down_modules:
        yield from (first, second)
    yield from network.mid_modules
    for first, second, _ in network.up_modules:
        yield from (first, second)


def copy_weights(network: Any, made: ConditionalUnet1d) -> None:
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (nn.Sequential(*list(network.diffusion_step_encoder)[1:]), made.step_encoder)
    ]
    for block, ours in zip(blocks(network), made._blocks(), strict=True):
        pairs += [
            (block.conv1.block, ours.first),
            (block.conv2.block, ours.second),
            (block.cond_encoder[1], ours.film),
            (block.residual_conv, ours.shortcut),
        ]
    pairs += [(level[2], ours) for level, ours in zip(network.down_modules[:-1], made.shrink, strict=True)]
    pairs += [(level[2], ours) for level, ours in zip(network.up_modules, made.grow, strict=True)]
    pairs += [(network.final_conv[0].block, made.last[0]), (network.final_conv[1], made.last[1])]
    for source, target in pairs:
        target.load_state_dict(source.state_dict())


@pytest.mark.parametrize("widths", [(16, 32), (16, 24, 40)])
def test_the_same_weights_give_the_same_actions(widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = theirs(3, 10, down_dims=widths, diffusion_step_embed_dim=12, n_groups=8, horizon=16)
    made = ConditionalUnet1d(3, 5, DiffusionConfig(down_dims=widths, groups=8, step_dim=12))
    copy_weights(network, made)
    noisy, steps, seen = torch.randn(4, 16, 3), torch.tensor([0, 3, 50, 99]), torch.randn(4, 2, 5)
    wanted: Tensor = network(noisy, steps, global_cond=seen.flatten(1))
    found, _ = made(noisy, made.conditioning(steps, seen))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("action", "condition"), [(2, 132), (7, 2 * (2 * 384 + 9))])
def test_as_many_parameters(action: int, condition: int) -> None:
    config = DiffusionConfig(down_dims=(512, 1024, 2048))  # LeRobot's own
    with torch.device("meta"):
        network, made = theirs(action, condition), ConditionalUnet1d(action, condition // 2, config)
    assert sum(p.numel() for p in made.parameters()) == sum(p.numel() for p in network.parameters())


def test_ensembles_of_plans_are_the_same() -> None:
    steps, rows, horizon = 12, [0, 1], 5
    plans = torch.randn(steps, len(rows), horizon, 3, generator=torch.Generator().manual_seed(0))
    theirs, ours = ACTTemporalEnsembler(0.01, horizon), TemporalEnsemble(0.01)
    ours.reset(rows)
    for plan in plans:
        ours.give(rows, plan.numpy())
        found = torch.from_numpy(ours.take(rows))
        torch.testing.assert_close(found, theirs.update(plan.clone()), rtol=1e-5, atol=1e-6)
