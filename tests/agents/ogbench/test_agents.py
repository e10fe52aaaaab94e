"""OGBench's agents: against OGBench's own agents on fixed parameters and batches, and as agents of ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.agents import make_agent
from counterpoint.agents.extraction import awr_loss, ddpg_bc_loss, log_likelihood
from counterpoint.agents.iql import expectile_loss
from counterpoint.agents.networks import EnsembleMLP
from counterpoint.agents.ogbench.hiql import at_length
from counterpoint.data.episode import Spaces
from counterpoint.data.transitions import GoalMix, Transitions
from counterpoint.errors import BadInputError
from tests.agents.baseline_batches import (
    CHOICE,
    IMAGE,
    STATE,
    WHOLE,
    assert_acts,
    assert_learns,
    assert_losses_are_apart,
    assert_refuses,
    assert_resumes,
    batch_of,
)
from tests.agents.ogbench.from_golden import (
    assert_same_gradients,
    assert_same_updates,
    fill,
    ogbench_agent,
    places,
    policy_places,
)
from tests.marks import quick

NAMES = ("ogbench_gcbc", "gcivl", "gciql", "ogbench_crl", "ogbench_qrl", "hiql", "ogbench_td_infonce")
EXTRACTIONS = ("ddpg_bc", "awr")
CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}


def make(name: str, seed: int = 0, spaces: Any = STATE, **changes: Any) -> Any:
    return make_agent({"name": name, "hidden": [32, 32], **changes}, spaces, seed=seed)


def test_gcivl_equals_ogbench_s() -> None:
    agent, batch, arrays = ogbench_agent("gcivl", "gcivl")
    trained = places(agent.value_network.body, "modules_value/value_net")
    trained += policy_places(agent.actor.head, "modules_actor")
    targets = places(agent.target_value.body, "modules_target_value/value_net")
    fill([*trained, *targets], arrays)
    found = agent.losses(batch)
    torch.testing.assert_close(found["value/loss"], arrays["info/value/value_loss"], **CLOSE)
    torch.testing.assert_close(found["actor/loss"], arrays["info/actor/actor_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays, targets)


@pytest.mark.parametrize("extraction", EXTRACTIONS)
def test_gciql_equals_ogbench_s(extraction: str) -> None:
    name, settings = ("gciql", {}) if extraction == "ddpg_bc" else ("gciql_awr", {"alpha": 3.0})
    agent, batch, arrays = ogbench_agent("gciql", name, extraction=extraction, **settings)
    trained = places(agent.value_network.body, "modules_value/value_net")
    trained += places(agent.critic.body, "modules_critic/value_net")
    trained += policy_places(agent.actor.head, "modules_actor")
    targets = places(agent.target_critic.body, "modules_target_critic/value_net")
    fill([*trained, *targets], arrays)
    found = agent.losses(batch)
    for ours, theirs in (("value", "value/value"), ("critic", "critic/critic"), ("actor", "actor/actor")):
        torch.testing.assert_close(found[f"{ours}/loss"], arrays[f"info/{theirs}_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays, targets)


@pytest.mark.parametrize("joint", [False, True])
def test_hiql_equals_ogbench_s(joint: bool) -> None:
    name = "hiql_joint" if joint else "hiql"
    agent, batch, arrays = ogbench_agent("hiql", name, representation=4, low_trains_phi=joint)
    trained = places(agent.value_network.phi.body, "modules_goal_rep/layers_0")
    trained += places(agent.value_network.twins.body, "modules_value/value_net")
    trained += policy_places(agent.actor.head, "modules_low_actor")
    trained += policy_places(agent.planner.head, "modules_high_actor")
    targets = places(agent.target_value.body, "modules_target_value/value_net")
    fill([*trained, *targets], arrays)
    found = agent.losses(batch)
    for ours, theirs in (("value", "value/value"), ("actor", "low_actor/actor"), ("planner", "high_actor/actor")):
        torch.testing.assert_close(found[f"{ours}/loss"], arrays[f"info/{theirs}_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays, targets)


def test_gcbc_equals_ogbench_s() -> None:
    agent, batch, arrays = ogbench_agent("ogbench_gcbc", "gcbc")
    trained = policy_places(agent.actor.head, "modules_actor")
    fill(trained, arrays)
    found = agent.losses(batch)
    torch.testing.assert_close(found["actor/loss"], arrays["info/actor/actor_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays)


@pytest.mark.parametrize("extraction", EXTRACTIONS)
def test_crl_equals_ogbench_s(extraction: str) -> None:
    name, settings = ("crl", {}) if extraction == "ddpg_bc" else ("crl_awr", {"alpha": 3.0})
    agent, batch, arrays = ogbench_agent("ogbench_crl", name, extraction=extraction, representation=8, **settings)
    trained = [one for part in ("phi", "psi") for one in places(getattr(agent.critic, part), f"modules_critic/{part}")]
    if extraction == "awr":
        trained += places(agent.value_network.phi, "modules_value/phi")
        trained += places(agent.value_network.psi, "modules_value/psi")
    trained += policy_places(agent.actor.head, "modules_actor")
    fill(trained, arrays)
    found = agent.losses(batch)
    torch.testing.assert_close(found["critic/loss"], arrays["info/critic/contrastive_loss"], **CLOSE)
    torch.testing.assert_close(found["actor/loss"], arrays["info/actor/actor_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays)


@pytest.mark.parametrize("extraction", EXTRACTIONS)
def test_qrl_equals_ogbench_s(extraction: str) -> None:
    name, settings = ("qrl", {}) if extraction == "ddpg_bc" else ("qrl_awr", {"alpha": 3.0})
    agent, batch, arrays = ogbench_agent("ogbench_qrl", name, extraction=extraction, latent=16, **settings)
    trained = places(agent.distance.phi, "modules_value/phi")
    if extraction == "ddpg_bc":
        trained += places(agent.model, "modules_dynamics")
    trained += [*policy_places(agent.actor.head, "modules_actor"), (agent.dual["log"], "modules_lam/log_value")]
    fill(trained, arrays)
    with torch.no_grad():  # OGBench's alpha is the share of the mean, ours that of the largest component
        agent.distance.between.mix.copy_(-arrays["p/modules_value/alpha/value"])
    found = agent.losses(batch)
    for ours, theirs in (("dual", "value/lam"), ("model", "dynamics/dynamics"), ("actor", "actor/actor")):
        if ours in agent.modules:
            torch.testing.assert_close(found[f"{ours}/loss"], arrays[f"info/{theirs}_loss"], **CLOSE)
    torch.testing.assert_close(found["distance/loss"], arrays["info/value/value_loss"], **CLOSE)
    assert_same_gradients(found, trained, arrays)
    assert_same_updates(agent, batch, trained, arrays)


@pytest.mark.parametrize("objective", ["softmax", "logit"])
def test_td_infonce_has_its_method_s_critic_and_ogbench_s_policy(objective: str) -> None:
    agent = make("ogbench_td_infonce", representation=4, spaces=WHOLE, actor_objective=objective)
    batch = batch_of(WHOLE, 6)
    found = agent.losses(batch)
    with torch.no_grad():
        phi, psi = agent.critic(batch["observation"], batch["action"], batch["value_goal"])
        after = agent.critic.encode_futures(batch["next_goal"])
        next_action = agent.actor(batch["next_observation"], batch["value_goal"]).clamp(-1, 1)
        weights = agent.target_critic(batch["next_observation"], next_action, batch["value_goal"])
        total = 0.0
        w = torch.einsum("eid,ejd->eij", *weights).amin(0).softmax(1)
        for twin in range(2):
            random, following = phi[twin] @ psi[twin].T, phi[twin] @ after[twin].T
            for i in range(6):
                total -= 0.01 * float(following.log_softmax(1)[i, i]) / 12
                total -= 0.99 * float((w[i] * random[i].log_softmax(0)).sum()) / 12
        goal, mean = batch["actor_goal"], agent.actor(batch["observation"], batch["actor_goal"])
        logits = torch.einsum("eid,ejd->eij", *agent.critic(batch["observation"], mean.clamp(-1, 1), goal)).amin(0)
        row = logits if objective == "logit" else logits.log_softmax(1)
        q = np.array([float(row[i, i]) for i in range(6)])
        cloned = float(log_likelihood(mean, batch["action"]).mean())
    assert found["critic/loss"].item() == pytest.approx(total, rel=1e-4)
    assert found["actor/loss"].item() == pytest.approx(-q.mean() / np.abs(q).mean() - 0.1 * cloned, rel=1e-4)


def test_losses_of_policies_equal_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, action = (torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    number = torch.linspace(-3, 3, 6, dtype=torch.float64)
    density = -((action - mean) ** 2 / 2 + np.log(2 * np.pi) / 2).sum(1)
    torch.testing.assert_close(log_likelihood(mean, action), density)
    weighted = [min(np.exp(2 * x), 100) * p for x, p in zip(number.tolist(), density.tolist(), strict=True)]
    assert awr_loss(mean, action, number, 2.0).item() == pytest.approx(-np.mean(weighted))
    expected = -number.mean() / number.abs().mean() - 0.3 * density.mean()
    assert ddpg_bc_loss(mean, action, number, 0.3).item() == pytest.approx(expected.item(), rel=1e-5)
    gaps = torch.stack([number, 2 * number])
    loop = sum(
        (0.9 if a >= 0 else 0.1) * g**2 for gap in gaps.tolist() for a, g in zip(number.tolist(), gap, strict=True)
    )
    assert expectile_loss(gaps, 0.9, number).item() == pytest.approx(loop / 12)


def test_a_value_of_a_goal_that_is_reached_looks_no_further() -> None:
    agent = make("gcivl", discount=0.5)
    batch = {"value.reached": torch.tensor([True, False])}
    assert agent.target_of(batch, torch.tensor([-4.0, -4.0])).tolist() == [0.0, -3.0]


def test_a_subgoal_has_the_length_of_a_random_vector() -> None:
    assert at_length(torch.randn(4, 9)).norm(dim=1).tolist() == pytest.approx([3.0] * 4)


@pytest.mark.parametrize("name", NAMES)
def test_policies_begin_near_zero_and_values_like_glorot(name: str) -> None:
    agent = make(name, hidden=[256, 256], spaces=WHOLE)
    head = agent.actor.head.head
    bound = 0.1 * (6 / (256 + 2)) ** 0.5
    assert head.weights[0].abs().max().item() == pytest.approx(bound, rel=0.05)
    for each in agent.modules.values():
        for network in (part for part in each.modules() if isinstance(part, EnsembleMLP) and part is not head):
            inside = [weight for weight in network.weights if weight.shape[1:] == (256, 256)]
            assert all(w.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=0.05) for w in inside)
            assert all(not bias.any() for bias in network.biases)


@pytest.mark.parametrize("name", NAMES)
def test_goals_are_drawn_as_the_settings_say(name: str) -> None:
    agent = make(name, spaces=WHOLE, actor_goals={"future": 0.5, "random": 0.5, "geometric": False})
    index = agent.sampling().index
    assert isinstance(index, Transitions)
    assert index.tail == "clip"
    assert index.goals["actor"] == GoalMix(future=0.5, random=0.5, geometric=False)
    values = {"ogbench_crl": GoalMix(future=1.0)}
    values |= dict.fromkeys(("ogbench_qrl", "ogbench_td_infonce"), GoalMix(random=1.0))
    own = values.get(name, GoalMix(current=0.2, future=0.5, random=0.3))
    assert index.goals.get("value") == (None if name == "ogbench_gcbc" else own)
    assert index.subgoal == (25 if name == "hiql" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_agents_learn_act_resume_and_refuse(name: str, tmp_path: Path) -> None:
    made = partial(make, name, spaces=WHOLE)
    assert_learns(made())
    assert_acts(made())
    assert_refuses(made())
    assert_resumes(lambda seed: made(seed=seed), tmp_path)
    with pytest.raises(BadInputError, match="continuous actions"):
        make(name, spaces=CHOICE)


@pytest.mark.parametrize("spaces", [WHOLE, IMAGE])
@pytest.mark.parametrize("name", NAMES)
def test_losses_reach_their_own_networks(name: str, spaces: Spaces) -> None:
    agent = make(name, spaces=spaces)
    names = {network: f"{network}/loss" for network in agent.optimizers}
    if name == "ogbench_qrl":  # the model's loss trains phi too, as in QRL
        del names["model"]
    assert_losses_are_apart(agent, agent.losses(batch_of(spaces)), names)


@pytest.mark.parametrize("name", quick(["hiql"], NAMES))
def test_images_are_read(name: str) -> None:
    assert_learns(make(name, spaces=IMAGE), steps=10)


@pytest.mark.parametrize("name", ["gciql", "ogbench_crl", "ogbench_qrl"])
def test_awr_trains_what_it_reads(name: str) -> None:
    assert_learns(make(name, spaces=WHOLE, extraction="awr"))


def test_a_latent_of_qrl_holds_whole_components() -> None:
    with pytest.raises(BadInputError, match="not a multiple"):
        make("ogbench_qrl", latent=20, component_width=8)
