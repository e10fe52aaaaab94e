"""Speed of an agent's update, and the effect of bfloat16 products on learning.

    python benchmarks/agents.py update                        one TD InfoNCE update on one thread, and in jitted JAX
    python benchmarks/agents.py ogbench --impls IMPLS         OGBench's agents, and its own code
    python benchmarks/agents.py update_gpu                    updates a second on a GPU: plain, compiled, one graph
    python benchmarks/agents.py collection                    steps a second of FetchPush, and gymnasium's
    python benchmarks/agents.py precision                     agents steer a point to a goal, in both precisions

`update`: networks of 4 x 512 with twins, d = 16, FetchReach's sizes, random inputs; also with PyTorch's own matrix
products in place of oneDNN's. JAX (left out if it is not installed) starts from the same weights and noise. All must
agree in both losses over three updates. `update` and `ogbench` keep to one processor, so that JAX has one thread. In
each round, every candidate runs twice and the second update is timed; numbers are medians over rounds. `scale` repeats
float32 for larger batches. `ogbench`: the sizes of `cube-single-play`, OGBench's batch and networks (1,024, 3 x 512)
and small ones (256, 3 x 256); IMPLS is the folder `impls` of OGBench's repository, whose requirements must be installed
beside this library. `collection`: random actions in whole episodes, two environments per core, each in a process of its
own; wall-clock time. `precision`: action a moves a point in [-1, 1]^2 by 0.2 a. The agent is evaluated in 500 episodes
of 20 steps; an episode succeeds if the point comes within 0.15 of the goal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.agents import make_agent, networks
from counterpoint.agents.base import Agent
from counterpoint.agents.networks import EnsembleMLP, GaussianActor
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.sampler import Sampler
from counterpoint.envs.goal.env import EnvConfig, make_goal_env
from counterpoint.envs.rendering import import_robotics
from counterpoint.envs.vector import VectorEnv
from counterpoint.training.agent import DeviceSampler
from measuring import in_turns, parser, processor_ms, write

FETCH = Spaces(observation=(10,), goal=(3,), action=4)
POINT = Spaces(observation=(2,), goal=(2,), action=2)
CUBE = Spaces(observation=(28,), goal=(28,), action=5)
FETCH_STEPS = 50
Candidate = Callable[[], Any]


def random_batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    widths = {"observation": 10, "action": 4, "next_observation": 10, "next_goal": 3, "random_goal": 3}
    return {key: torch.randn(rows, width, generator=generator).tanh() for key, width in widths.items()}


def library_update(batch: dict[str, Tensor], device: str = "cpu", **settings: Any) -> Candidate:
    agent, steps = TDInfoNCE(TDInfoNCEConfig(**settings), FETCH, device=device), iter(range(10**9))
    return lambda: agent.update(batch, next(steps))


def by_pytorch(run: Candidate) -> Candidate:
    """Return `run` with PyTorch's own matrix products."""

    def own() -> Any:
        before, networks.ONEDNN = networks.ONEDNN, False
        try:
            return run()
        finally:
            networks.ONEDNN = before

    return own


def jax_update(batch: dict[str, Tensor]) -> Candidate:
    """Return the same update in jitted JAX; old parameters and moments are donated, so XLA may reuse their memory."""
    import jax
    import jax.numpy as jnp
    import optax

    agent = TDInfoNCE(TDInfoNCEConfig(), FETCH)
    config, actor = agent.config, agent.actor
    assert isinstance(actor, GaussianActor)
    adams = {"critic": optax.adam(config.critic_lr), "actor": optax.adam(config.actor_lr)}

    def layers(network: EnsembleMLP) -> list[tuple[Any, Any]]:
        pairs = zip(network.weights, network.biases, strict=True)
        return [(jnp.array(weight.detach().numpy()), jnp.array(bias.detach().numpy())) for weight, bias in pairs]

    def mlp(network: Any, x: Any, activate_last: bool = False) -> Any:
        for number, (weight, bias) in enumerate(network):
            x = jnp.matmul(x, weight) + bias
            x = jax.nn.relu(x) if number < len(network) - 1 or activate_last else x
        return x

    def unit(vectors: Any) -> Any:
        return vectors / (jnp.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-8)

    def phi(critic: Any, *parts: Any) -> Any:
        return unit(mlp(critic["phi"], jnp.concatenate(parts, axis=-1)))

    def pairs(left: Any, right: Any) -> Any:
        return jnp.matmul(left, right.swapaxes(1, 2))

    def sample(actor: Any, observation: Any, goal: Any, noise: Any) -> Any:
        hidden = mlp(actor["body"], jnp.concatenate([observation, goal], axis=-1)[None], activate_last=True)
        loc, spread = jnp.split(mlp(actor["heads"], hidden)[0], 2, axis=-1)
        return jnp.tanh(loc + (jax.nn.softplus(spread) + 1e-6) * noise)

    def own(logits: Any) -> Any:
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.diagonal(logits, axis1=-2, axis2=-1))

    def critic_loss(critic: Any, target: Any, actor: Any, inputs: Any, noise: Any) -> Any:
        goal, rows = inputs["random_goal"], len(noise)
        left = phi(critic, inputs["observation"], inputs["action"], goal)
        futures = unit(mlp(critic["psi"], jnp.concatenate([inputs["next_goal"], goal])))
        after = sample(actor, inputs["next_observation"], goal, noise)
        left_after = phi(target, inputs["next_observation"], after, goal)
        weight_logits = pairs(left_after, unit(mlp(target["psi"], goal))).min(0)
        weights = jax.lax.stop_gradient(jax.nn.softmax(weight_logits, axis=-1))
        future_rows = jax.nn.log_softmax(pairs(left, futures[:, rows:]), axis=-1)
        second = -jnp.mean(jnp.sum(weights * future_rows, axis=-1))
        loss = (1 - config.discount) * own(pairs(left, futures[:, :rows])) + config.discount * second
        return loss, jax.lax.stop_gradient(futures[:, rows:])

    def actor_loss(actor: Any, critic: Any, psi: Any, inputs: Any, noise: Any) -> Any:
        goal = inputs["random_goal"]
        action = sample(actor, inputs["observation"], goal, noise)
        return own(pairs(phi(critic, inputs["observation"], action, goal), psi).min(0))

    def step(state: Any, inputs: Any, next_noise: Any, actor_noise: Any) -> Any:
        critic, actor, target = state["critic"], state["actor"], state["target"]
        (first, psi), critic_grad = jax.value_and_grad(critic_loss, has_aux=True)(
            critic, target, actor, inputs, next_noise
        )
        second, actor_grad = jax.value_and_grad(actor_loss)(actor, critic, psi, inputs, actor_noise)
        new: dict[str, Any] = {"moments": {}}
        for name, gradient in (("critic", critic_grad), ("actor", actor_grad)):
            change, new["moments"][name] = adams[name].update(gradient, state["moments"][name])
            new[name] = optax.apply_updates(state[name], change)
        new["target"] = jax.tree.map(lambda old, other: old + config.tau * (other - old), target, new["critic"])
        return new, jnp.stack([first, second])

    networks: Any = {
        "critic": {"phi": layers(agent.critic.phi), "psi": layers(agent.critic.psi)},
        "actor": {"body": layers(actor.body), "heads": layers(actor.heads)},
    }
    moments = {name: adam.init(networks[name]) for name, adam in adams.items()}
    state = [networks | {"target": jax.tree.map(jnp.copy, networks["critic"]), "moments": moments}]
    compiled = jax.jit(step, donate_argnums=0)
    inputs = {key: jnp.array(value.numpy()) for key, value in batch.items()}

    steps = iter(range(10**9))

    def run() -> dict[str, float]:
        noise = agent.noise(len(batch["action"]), agent.generator("update", next(steps)))
        state[0], losses = compiled(state[0], inputs, *(jnp.array(value.numpy()) for value in noise.values()))
        jax.block_until_ready(state[0])
        return {"critic/loss": float(losses[0]), "actor/loss": float(losses[1])}

    return run


def second(run: Callable[[], object]) -> float:
    """Return the processor milliseconds of the second of two runs, which finds its own data in the caches."""
    run()
    return processor_ms(run)


def update(rounds: int) -> dict[str, Any]:
    batch = random_batch(256)
    candidates = {
        "float32": library_update(batch),
        "float32, PyTorch's products": by_pytorch(library_update(batch)),
        "bf16": library_update(batch, bf16=True),
    }
    if find_spec("jax"):
        candidates["jax"] = jax_update(batch)
    for _ in range(3):
        losses = {name: run() for name, run in candidates.items()}
        for name, found in losses.items():
            for key in ("critic/loss", "actor/loss"):
                apart = abs(float(found[key]) / float(losses["float32"][key]) - 1)
                assert apart < (2e-2 if name == "bf16" else 1e-4), (name, key, apart)

    times = in_turns(rounds, candidates, second)
    scale = {rows: library_update(random_batch(rows)) for rows in (512, 1024, 2048, 4096)}
    return {
        "processor_ms": {name: round(median(found), 2) for name, found in times.items()},
        "over_jax": {
            name: round(median(a / b for a, b in zip(found, times["jax"], strict=True)), 3)
            for name, found in times.items()
            if "jax" in times
        },
        "scale": {rows: round(median(processor_ms(run) for _ in range(3)), 1) for rows, run in scale.items()},
    }


OGBENCH_NAMES = ("ogbench_gcbc", "gcivl", "gciql", "ogbench_qrl", "ogbench_crl", "hiql", "ogbench_td_infonce")
OGBENCH_KEYS = {
    "observation": "observations",
    "next_observation": "next_observations",
    "next_goal": "next_observations",
    "value_goal": "value_goals",
    "actor_goal": "actor_goals",
    "subgoal": "low_actor_goals",
    "target": "high_actor_targets",
    "target_goal": "high_actor_targets",
}
"""Keys of a batch, here and in OGBench's code."""


def ogbench_batches(rows: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return one random batch under OGBench's keys and under ours.

    Keys have numbers of their own: the compiler would compute only once what it finds twice of one tensor.
    """
    rng = np.random.default_rng(0)
    keys = {*OGBENCH_KEYS.values(), "high_actor_goals"}
    theirs = {key: rng.normal(size=(rows, CUBE.observation[0])).astype(np.float32) for key in sorted(keys)}
    reached = rng.random(rows) < 0.2
    theirs |= {"actions": rng.uniform(-1, 1, (rows, CUBE.action)).astype(np.float32)}
    theirs |= {"masks": 1.0 - reached.astype(np.float32), "rewards": reached.astype(np.float32) - 1}
    ours = {key: torch.from_numpy(theirs[name].copy()) for key, name in OGBENCH_KEYS.items()}
    return theirs, ours | {"action": torch.from_numpy(theirs["actions"]), "value.reached": torch.from_numpy(reached)}


def ogbench(rounds: int, impls: str) -> dict[str, Any]:
    """Processor time of an update of each agent, here and in OGBench's jitted code, in turns."""
    import jax

    sys.path.insert(0, impls)
    agents = import_module("agents").agents

    def jitted(kind: str, width: int, batch: dict[str, Any]) -> Candidate:
        config = import_module(f"agents.{kind}").get_config()
        config.update({key: (width,) * 3 for key in ("actor_hidden_dims", "value_hidden_dims") if key in config})
        agent = [agents[kind].create(0, batch["observations"][:1], batch["actions"][:1], config)]

        def run() -> None:
            agent[0], info = agent[0].update(batch)
            jax.block_until_ready((agent[0].network.params, info))

        return run

    def library(name: str, width: int, batch: dict[str, Tensor], compiled: bool) -> Candidate:
        agent = make_agent({"name": name, "compile": compiled, "hidden": [width] * 3}, CUBE)
        steps = iter(range(10**9))
        return lambda: agent.update(batch, next(steps))

    def row(name: str, rows: int, width: int) -> list[str]:
        torch._dynamo.reset()  # to the compiler all agents are one function, which it compiles for eight shapes at most
        kind, (theirs, ours) = name.removeprefix("ogbench_"), ogbench_batches(rows)
        candidates = {"plain": library(name, width, ours, False), "compiled": library(name, width, ours, True)}
        candidates |= {"jax": jitted(kind, width, theirs)} if kind in agents else {}
        for run in candidates.values():
            run()
            run()
        times = in_turns(rounds, candidates, second)
        cells = [name, *(f"{median(found):.3g}" for found in times.values())]
        for way in ("plain", "compiled"):
            ratios = [here / other for here, other in zip(times[way], times.get("jax", ()), strict=False)]
            cells += [f"{median(ratios):.2f}"] if ratios else []
        return cells + [""] * (6 - len(cells))

    tables: dict[str, Any] = {}
    for rows, width in ((1024, 512), (256, 256)):
        head = [f"update, batch {rows}, 3 x {width}, one thread", "ms", "compiled, ms", "OGBench's jitted JAX, ms"]
        head += ["ms / JAX's", "compiled / JAX's"]
        tables[f"update {rows}"] = {"head": head, "rows": [row(name, rows, width) for name in OGBENCH_NAMES]}
    return {"tables": tables}


def update_gpu(rounds: int) -> dict[str, Any]:
    """Updates per second: of one batch, which each update copies from the host, and of batches that are drawn."""
    recorded = {"compile": True, "cuda_graph": True}
    ways = {
        "plain": {},
        "compiled": {"compile": True},
        "compiled bf16": {"compile": True, "bf16": True},
        "one graph": recorded,
        "one graph bf16": recorded | {"bf16": True},
    }
    rng, buffer = np.random.default_rng(0), ReplayBuffer(FETCH, capacity=100_000)
    for _ in range(100_000 // FETCH_STEPS):
        states = rng.normal(size=(FETCH_STEPS + 1, 13)).astype(np.float32)
        actions = rng.uniform(-1, 1, (FETCH_STEPS, 4))
        buffer.append(GoalEpisode(states[:, :10], states[:, 10:], states[0, 10:], actions, np.zeros(FETCH_STEPS)))
    table: list[list[str]] = []
    for rows in (256, 1024, 4096):
        torch._dynamo.reset()  # otherwise the compiler leaves the number of rows open from the second on
        batch = {key: value.pin_memory() for key, value in random_batch(rows).items()}
        table.append([f"{rows:,}"])
        for way in ways.values():
            run = library_update(batch, "cuda", **way)
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(100 * rounds):
                run()
            torch.cuda.synchronize()
            table[-1].append(f"{100 * rounds / (time.perf_counter() - started):.0f}")
        table[-1] += [f"{updates_of(buffer, kept, rows, 100 * rounds):.0f}" for kept in (False, True)]
    head = ["batch", *ways, "one graph, drawn batches", "one graph, drawn on the device"]
    return {"tables": {"updates a second": {"head": head, "rows": table}}}


def updates_of(buffer: ReplayBuffer, kept: bool, rows: int, count: int) -> float:
    """Return updates per second of one graph on batches of recorded transitions, kept on the device or not."""
    agent = TDInfoNCE(TDInfoNCEConfig(compile=True, cuda_graph=True), FETCH, device="cuda")
    bound, drawn = agent.sampling().bind(buffer), {"batch_size": rows, "seed": 0}
    sampler = DeviceSampler(buffer, bound, agent.device, **drawn) if kept else Sampler(buffer, bound, **drawn)
    for step, batch in enumerate(sampler.batches(0, 20 + count)):
        if step == 20:
            torch.cuda.synchronize()
            started = time.perf_counter()
        agent.update(batch, step)
    torch.cuda.synchronize()
    return count / (time.perf_counter() - started)


def collection(rounds: int) -> dict[str, Any]:
    """Environment steps a second of both vector environments, in turns; each turn has 10 episodes of every row."""
    import gymnasium

    name, rows, episodes = "FetchPush-v4", 2 * (os.cpu_count() or 1), 10
    gymnasium.register_envs(import_robotics())
    action = np.random.default_rng(0).uniform(-1, 1, (rows, 4)).astype(np.float32)
    theirs = gymnasium.vector.AsyncVectorEnv([partial(gymnasium.make, name)] * rows)
    ours = VectorEnv(partial(make_goal_env, EnvConfig(name=name)), rows, processes=True)

    def here() -> None:
        for episode in range(episodes):
            ours.reset(range(rows), range(episode * rows, (episode + 1) * rows))
            ours.receive()
            for _ in range(FETCH_STEPS):
                ours.send(range(rows), action)
                ours.receive()

    def there() -> None:
        for episode in range(episodes):
            theirs.reset(seed=episode * rows)
            for _ in range(FETCH_STEPS):
                theirs.step(action)

    def rate(run: Callable[[], object]) -> float:
        started = time.perf_counter()
        run()
        return rows * episodes * FETCH_STEPS / (time.perf_counter() - started)

    try:
        rates = in_turns(rounds, {"here": here, "there": there}, rate)
    finally:
        ours.close()
        theirs.close()
    ratio = median(one / other for one, other in zip(rates["here"], rates["there"], strict=True))
    head = ["FetchPush", "steps a second here", "gymnasium's AsyncVectorEnv", "here / gymnasium's"]
    row = [f"{rows} processes", f"{median(rates['here']):.0f}", f"{median(rates['there']):.0f}", f"{ratio:.2f}"]
    return {"rates": rates, "tables": {"collection": {"head": head, "rows": [row]}}}


def transitions(generator: torch.Generator, rows: int = 128) -> dict[str, Tensor]:
    """Return transitions of random actions; futures are sampled as from an endless episode (gamma .9)."""

    def uniform() -> Tensor:
        return torch.rand(rows, 2, generator=generator) * 2 - 1

    here, action = uniform(), uniform()
    there = (here + 0.2 * action).clamp(-1, 1)
    steps = torch.empty(rows, 1).geometric_(0.1, generator=generator)
    future = there
    for step in range(1, 30):
        future = torch.where(steps > step, (future + 0.2 * uniform()).clamp(-1, 1), future)
    goals = {"next_goal": there, "future_goal": future, "random_goal": uniform()}
    return {"observation": here, "action": action, "next_observation": there, **goals}


def steer(agent: Agent) -> tuple[float, float]:
    """Return the share of goals reached and the mean distance left."""
    location, goal = np.random.default_rng(0).uniform(-1, 1, (2, 500, 2)).astype(np.float32)
    for _ in range(20):
        action = agent.act({"observation": location, "desired_goal": goal}, rows=range(500))
        location = np.clip(location + 0.2 * action, -1, 1).astype(np.float32)
    left = np.linalg.norm(location - goal, axis=1)
    return float((left < 0.15).mean()), float(left.mean())


def precision(rounds: int) -> dict[str, Any]:
    """Train with three seeds for 100 updates per round; both precisions share weights, data and noise."""
    settings = {"hidden": [128, 128], "discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-3}
    runs = []
    for name in ("td_infonce", "contrastive_rl", "contrastive_rl_nce", "c_learning"):
        for seed, bf16 in [(seed, bf16) for seed in range(3) for bf16 in (False, True)]:
            agent = make_agent({"name": name, "bf16": bf16} | settings, POINT, seed=seed)
            generator = torch.Generator().manual_seed(1000 + seed)
            for step in range(100 * rounds):
                agent.update(transitions(generator), step)
            reached, left = steer(agent)
            runs.append({"agent": name, "seed": seed, "bf16": bf16, "reached": reached, "left": round(left, 4)})
    return {"runs": runs}


def main() -> None:
    modes: dict[str, Callable[[int], dict[str, Any]]] = {
        "update": update,
        "update_gpu": update_gpu,
        "collection": collection,
        "precision": precision,
    }
    words = parser(10)
    words.add_argument("mode", choices=[*modes, "ogbench"])
    words.add_argument("--impls", help="the folder `impls` of OGBench's repository")
    options = words.parse_args()
    modes["ogbench"] = partial(ogbench, impls=options.impls)
    torch.set_num_threads(1)
    if options.mode in ("update", "ogbench"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # JAX has a thread for each processor that it finds
    found = modes[options.mode](options.rounds)
    if options.mode == "update":
        head = ["update, batch 256, 4 x 512, twins, one thread", "processor ms", "ms / jitted JAX's"]
        rows = [
            [name, f"{ms:.0f}", f"{found['over_jax'].get(name, 0):.2f}"] for name, ms in found["processor_ms"].items()
        ]
        sizes = [[size, f"{ms:,.0f}"] for size, ms in found["scale"].items()]
        found["tables"] = {"update": {"head": head, "rows": rows}, "scale": {"head": ["batch", "ms"], "rows": sizes}}
    write(f"agent_{options.mode}", found, options.out)


if __name__ == "__main__":
    main()
