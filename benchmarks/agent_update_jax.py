"""The TD InfoNCE update in jitted JAX, for `agent_update.py` to measure beside this library's.

The same sums as `counterpoint.agents.td_infonce`: (s, a, g) and both kinds of future are encoded once, psi of the
random goals serves the next-state term, the future term and the actor, twins run as one batched product, and the old
parameters and moments are donated, so that XLA may write over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

__all__ = ["make_step"]

Tree = Any


def mlp(layers: Tree, x: jax.Array, *, activate_last: bool = False) -> jax.Array:
    """E perceptrons: weights [E, I, O], biases [E, 1, O], shared inputs [B, I] or own ones [E, B, I]."""
    last = len(layers) - 1
    for number, (weight, bias) in enumerate(layers):
        x = jnp.matmul(x, weight) + bias
        if number < last or activate_last:
            x = jax.nn.relu(x)
    return x


def unit(vectors: jax.Array) -> jax.Array:
    lengths: jax.Array = jnp.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-8
    return vectors / lengths


def phi(critic: Tree, *parts: jax.Array) -> jax.Array:
    return unit(mlp(critic["phi"], jnp.concatenate(parts, axis=-1)))


def psi(critic: Tree, futures: jax.Array) -> jax.Array:
    return unit(mlp(critic["psi"], futures))


def pairs(left: jax.Array, right: jax.Array) -> jax.Array:
    """Logits [2, B, B]."""
    return jnp.matmul(left, right.swapaxes(1, 2))


def sample(actor: Tree, observation: jax.Array, goal: jax.Array, noise: jax.Array) -> jax.Array:
    hidden = mlp(actor["body"], jnp.concatenate([observation, goal], axis=-1)[None], activate_last=True)
    loc, spread = jnp.split(mlp(actor["heads"], hidden)[0], 2, axis=-1)
    return jnp.tanh(loc + (jax.nn.softplus(spread) + 1e-6) * noise)


def cross_entropy_of_own(logits: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.diagonal(logits, axis1=-2, axis2=-1))


def critic_loss(
    critic: Tree, target: Tree, actor: Tree, batch: Tree, noise: jax.Array, discount: float
) -> tuple[jax.Array, jax.Array]:
    goal = batch["random_goal"]
    left = phi(critic, batch["observation"], batch["action"], goal)
    futures = psi(critic, jnp.concatenate([batch["next_goal"], goal]))
    rows = len(goal)
    future_logits = pairs(left, futures[:, rows:])
    after = sample(actor, batch["next_observation"], goal, noise)
    left_after = phi(target, batch["next_observation"], after, goal)
    weight_logits = pairs(left_after, psi(target, goal))
    weights = jax.lax.stop_gradient(jax.nn.softmax(weight_logits.min(0), axis=-1))
    second = -jnp.mean(jnp.sum(weights * jax.nn.log_softmax(future_logits, axis=-1), axis=-1))
    first = cross_entropy_of_own(pairs(left, futures[:, :rows]))
    return (1 - discount) * first + discount * second, jax.lax.stop_gradient(futures[:, rows:])


def actor_loss(actor: Tree, critic: Tree, psi_goal: jax.Array, batch: Tree, noise: jax.Array) -> jax.Array:
    goal = batch["random_goal"]
    action = sample(actor, batch["observation"], goal, noise)
    logits = pairs(phi(critic, batch["observation"], action, goal), psi_goal)
    return cross_entropy_of_own(logits.min(0))


def make_step(
    critic: Tree, actor: Tree, *, actor_lr: float, critic_lr: float, discount: float, tau: float
) -> tuple[Tree, Callable[[Tree, Tree, jax.Array, jax.Array], tuple[Tree, jax.Array]]]:
    """The first state and the compiled `step(state, batch, next_noise, actor_noise)`, which consumes its state."""
    critic_adam, actor_adam = optax.adam(critic_lr), optax.adam(actor_lr)
    state = {
        "critic": critic,
        "target": jax.tree.map(jnp.copy, critic),
        "actor": actor,
        "critic_adam": critic_adam.init(critic),
        "actor_adam": actor_adam.init(actor),
    }

    def step(state: Tree, batch: Tree, next_noise: jax.Array, actor_noise: jax.Array) -> tuple[Tree, jax.Array]:
        critic, actor, target = state["critic"], state["actor"], state["target"]
        (first, psi_goal), critic_grad = jax.value_and_grad(critic_loss, has_aux=True)(
            critic, target, actor, batch, next_noise, discount
        )
        second, actor_grad = jax.value_and_grad(actor_loss)(actor, critic, psi_goal, batch, actor_noise)
        change, critic_moments = critic_adam.update(critic_grad, state["critic_adam"])
        new_critic = optax.apply_updates(critic, change)
        change, actor_moments = actor_adam.update(actor_grad, state["actor_adam"])
        new = {
            "critic": new_critic,
            "target": jax.tree.map(lambda old, other: old + tau * (other - old), target, new_critic),
            "actor": optax.apply_updates(actor, change),
            "critic_adam": critic_moments,
            "actor_adam": actor_moments,
        }
        return new, jnp.stack([first, second])

    return state, jax.jit(step, donate_argnums=0)
