"""Agents with the parameters of OGBench's, and its batches, for the tests of goldens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.agents import make_agent
from counterpoint.agents.extraction import UnitGaussian
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.data.episode import Spaces
from tests.golden.load import golden

Arrays = dict[str, Tensor]
SPACES = Spaces(observation=(6,), goal=(6,), action=3)
KEYS = {
    "observation": "observations",
    "action": "actions",
    "next_observation": "next_observations",
    "value_goal": "value_goals",
    "subgoal": "low_actor_goals",
    "target": "high_actor_targets",
    "target_goal": "high_actor_targets",
}


def ogbench_agent(agent: str, name: str, **settings: Any) -> tuple[Any, Arrays, Arrays]:
    """Return a small agent in double precision, the batch, and the golden's arrays."""
    arrays, _ = golden(f"ogbench_{name}_a")
    made: Any = make_agent({"name": agent, "hidden": [16, 16], **settings}, SPACES)
    for module in made.modules.values():
        module.double()
    batch = {ours: arrays[theirs] for ours, theirs in KEYS.items()}
    batch["actor_goal"] = arrays["high_actor_goals" if agent == "hiql" else "actor_goals"]
    batch["value.reached"], batch["next_goal"] = arrays["masks"] == 0, batch["next_observation"]
    return made, batch, arrays


def places(network: EnsembleMLP, where: str) -> list[tuple[Tensor, str]]:
    """Return each parameter of a network with the name of OGBench's."""
    found = []
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        found += [(weight, f"{where}/Dense_{number}/kernel"), (bias, f"{where}/Dense_{number}/bias")]
    for number, (scale, shift) in enumerate(zip(network.scales, network.shifts, strict=True)):
        found += [(scale, f"{where}/LayerNorm_{number}/scale"), (shift, f"{where}/LayerNorm_{number}/bias")]
    return found


def policy_places(policy: UnitGaussian, where: str) -> list[tuple[Tensor, str]]:
    """Return each parameter of a policy with the name of OGBench's."""
    head = [(policy.head.weights[0], f"{where}/mean_net/kernel"), (policy.head.biases[0], f"{where}/mean_net/bias")]
    return places(policy.body, f"{where}/actor_net") + head


def fill(parameters: list[tuple[Tensor, str]], arrays: Arrays) -> None:
    """Copy OGBench's parameters."""
    with torch.no_grad():
        for parameter, name in parameters:
            parameter.copy_(arrays[f"p/{name}"].reshape(parameter.shape))


def assert_same_gradients(losses: Arrays, parameters: list[tuple[Tensor, str]], arrays: Arrays) -> None:
    """The sum of an agent's losses has OGBench's gradient in every parameter."""
    total = torch.stack([value for key, value in losses.items() if "/loss" in key]).sum()
    found = torch.autograd.grad(total, [parameter for parameter, _ in parameters])
    for gradient, (parameter, name) in zip(found, parameters, strict=True):
        expected = arrays[f"grad/{name}"].reshape(parameter.shape)
        close = torch.allclose(gradient, expected, rtol=1e-6, atol=1e-10)
        assert close, f"{name}: {(gradient - expected).abs().max()}"


def assert_same_updates(
    agent: Any,
    batch: Arrays,
    parameters: list[tuple[Tensor, str]],
    arrays: Arrays,
    targets: Sequence[tuple[Tensor, str]] = (),
) -> None:
    """The agent acts as OGBench's does, and three updates with the batch end at OGBench's parameters.

    OGBench's targets move towards the parameters before an update, ours towards those after it, so that ours are ahead
    by tau times the parameters' own way. This changes later updates by less than a hundredth of the learning rate.
    """
    acted = agent.choose(batch["observation"], batch["actor_goal"], (), None)
    torch.testing.assert_close(acted, arrays["acted"], rtol=1e-8, atol=1e-12)
    for step in range(3):
        agent.update(batch, step)
    for parameter, name in parameters:
        expected = arrays[f"after/{name}"].reshape(parameter.shape)
        assert torch.allclose(parameter, expected, rtol=0, atol=3e-6), f"{name}: {(parameter - expected).abs().max()}"
    for parameter, name in targets:
        online = name.replace("modules_target_", "modules_")
        ahead = agent.config.tau * (arrays[f"after/{online}"] - arrays[f"p/{online}"])
        expected = (arrays[f"after/{name}"] + ahead).reshape(parameter.shape)
        assert torch.allclose(parameter, expected, rtol=0, atol=1e-7), f"{name}: {(parameter - expected).abs().max()}"
