"""Decision transformer: behaviour cloning of whole histories, conditioned on a return and a goal.

Decision Transformer: Reinforcement Learning via Sequence Modeling (Chen et al., 2021); a baseline of TD InfoNCE's
offline table (Table 1). The last K steps of an episode give 3 K tokens under a causal mask,

    (R_1, g), s_1, a_1, (R_2, g), s_2, a_2, ..., (R_K, g), s_K, a_K,      R_t = sum over t' >= t of the data's rewards

Each token is a linear map of its content plus an embedding of the time in the episode. An action is predicted at the
token of its state, which sees all earlier tokens but not the action of the same step:

    L = E[ ||a_t - tanh(W h(s_t))||^2 / A ]   over the steps that exist (episodes younger than K are padded on the left)

The goal is the one that the episode was commanded to reach; the original has no goals. When acting, the agent does not
observe the remaining return: the return starts at `target_return` and changes by `-step_reward` with each step. This is
correct until the goal is reached, if `step_reward` is 0 for rewards of 0 and 1, or -1 for rewards of -1 and 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from counterpoint.agents.base import AgentConfig, Metrics, RewardAgent
from counterpoint.agents.networks import noisy
from counterpoint.data.episode import Spaces
from counterpoint.data.spec import Spec
from counterpoint.errors import require
from counterpoint.policies.networks import gpt_weights

SEQUENCE = ("sequence_observation", "sequence_action", "sequence_return", "sequence_step", "sequence_valid")


class DecisionTransformerConfig(AgentConfig):
    """Settings of the decision transformer: the authors' values for control from states.

    Attributes:
        context: Number of steps in the history (K).
        width: Width of a token; `hidden` is not used.
        layers: Number of transformer layers.
        heads: Number of attention heads in each layer.
        dropout: Dropout rate within layers.
        longest_episode: Number of steps with separate time embeddings; later steps share the last embedding.
        return_scale: Divisor of returns.
        target_return: Return to condition on when acting.
        step_reward: Reward of a step before the goal is reached.
        lr: AdamW's learning rate.
        warmup: Number of updates over which the learning rate rises.
        weight_decay: AdamW's weight decay.
        clip_norm: Maximum norm of the gradient.
        exploration_noise: Standard deviation of the noise in collection.
    """

    context: int = Field(default=20, ge=1)
    width: int = Field(default=128, ge=1)
    layers: int = Field(default=3, ge=1)
    heads: int = Field(default=1, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    longest_episode: int = Field(default=1000, ge=1)
    return_scale: float = Field(default=1.0, gt=0)
    target_return: float = 1.0
    step_reward: float = 0.0
    lr: float = Field(default=1e-4, gt=0)
    warmup: int = Field(default=10_000, ge=0)
    weight_decay: float = Field(default=1e-4, ge=0)
    clip_norm: float = Field(default=0.25, gt=0)
    exploration_noise: float = Field(default=0.1, ge=0)


def sequence_loss(
    predicted: Float[Tensor, "B K A"], action: Float[Tensor, "B K A"], valid: Bool[Tensor, "B K"]
) -> Float[Tensor, ""]:
    """Return the mean squared error over action dimensions and over the steps that exist (`valid`)."""
    errors = torch.where(valid, (predicted - action).square().mean(dim=-1), 0)
    return errors.sum() / valid.sum()


class SequencePolicy(nn.Module):
    """The causal transformer over (return and goal, state, action).

    Args:
        config: Sizes of the transformer.
        spaces: Shapes of observations, goals and actions.
    """

    def __init__(self, config: DecisionTransformerConfig, spaces: Spaces) -> None:
        super().__init__()
        width, self.last_step = config.width, config.longest_episode - 1
        self.aim = nn.Linear(1 + spaces.goal[0], width)
        self.state = nn.Linear(spaces.observation[0], width)
        self.action = nn.Linear(spaces.action, width)
        self.time = nn.Embedding(config.longest_episode, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, config.dropout, activation="relu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, spaces.action)
        # GPT-2's initial weights, which the authors use for the blocks but not for the embeddings.
        self.body.apply(gpt_weights)

    def forward(
        self,
        observation: Float[Tensor, "B K O"],
        action: Float[Tensor, "B K A"],
        returns: Float[Tensor, "B K"],
        step: Int[Tensor, "B K"],
        valid: Bool[Tensor, "B K"],
        goal: Float[Tensor, "B G"],
    ) -> Float[Tensor, "B K A"]:
        """Return the action at every step, predicted from the steps before and the state of the same step."""
        B, K = returns.shape
        time = self.time(step.clamp(0, self.last_step))
        aim = torch.cat([returns[..., None], goal[:, None].expand(B, K, -1)], dim=-1)
        tokens = torch.stack([self.aim(aim) + time, self.state(observation) + time, self.action(action) + time], 2)
        tokens = self.norm(tokens.flatten(1, 2))
        # A token attends to earlier tokens that exist, and always to itself, so that no row of the attention is empty.
        index = torch.arange(3 * K, device=tokens.device)
        exists = valid.repeat_interleave(3, dim=1)
        seen = (index[:, None] >= index) & (exists[:, None] | (index[:, None] == index))
        heads = self.body.layers[0].self_attn.num_heads
        mask = (~seen).repeat_interleave(heads, dim=0)
        hidden = self.body(tokens, mask=mask).reshape(B, K, 3, -1)[:, :, 1]
        return torch.tanh(self.head(hidden).float())


class DecisionTransformer(RewardAgent):
    """Return- and goal-conditioned sequence model, for states and continuous actions; arguments as for `Agent`."""

    name: ClassVar[str] = "decision_transformer"
    recordable = False  # the rate warms up, and dropout draws from a generator that each update seeds
    reads = frozenset({*SEQUENCE, "goal"})
    config: DecisionTransformerConfig

    def build(self, weights: torch.Generator) -> None:
        """Create the transformer, which AdamW trains."""
        config, spaces = self.config, self.spaces
        states, found = len(spaces.observation) == len(spaces.goal) == 1, f"{spaces.observation} and {spaces.goal}"
        hint = "choose an agent for images, such as gcbc or td_infonce"
        require(states, f"agent {self.name!r}", found, "states and goal coordinates", hint)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(weights.initial_seed())
            self.actor = self.network("actor", SequencePolicy(config, spaces).eval(), config.lr)
        parameters = self.actor.parameters()
        self.optimizers["actor"] = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
        self.clip_norm = config.clip_norm
        K, device = config.context, self.device
        self.history = {
            "observation": torch.zeros(0, K, *spaces.observation, device=device),
            "action": torch.zeros(0, K, spaces.action, device=device),
            "time": torch.zeros(0, dtype=torch.int64, device=device),
        }

    def sampling(self) -> Spec:
        """Return the spec of the last K steps up to each transition, and the goal."""
        return Spec.transitions({"goal"}, discount=self.config.discount, sequence=self.config.context)

    def losses(self, batch: Mapping[str, Tensor]) -> Metrics:
        """Compute the squared error; padding is replaced by zeros, so that NaN in the padding has no effect."""
        observation, action, returns, step, valid = (batch[key] for key in SEQUENCE)
        observation, action = (torch.where(valid[..., None], value, 0) for value in (observation, action))
        returns = torch.where(valid, returns / self.config.return_scale, 0)
        loss = sequence_loss(self.actor(observation, action, returns, step, valid, batch["goal"]), action, valid)
        return {"loss": loss, "actor/loss": loss}

    def update(self, batch: Mapping[str, Tensor], step: int) -> Metrics:
        """Take one step of AdamW, with dropout that depends only on the agent's seed and the step."""
        warmup = self.config.warmup
        for group in self.optimizers["actor"].param_groups:
            group["lr"] = self.config.lr * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.generator("dropout", step).initial_seed())
            self.actor.train()
            try:
                return super().update(batch, step)
            finally:
                self.actor.eval()

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Clear the history of these rows."""
        missing = max(rows) + 1 - len(self.history["time"])
        for key, value in self.history.items():
            if missing > 0:
                value = torch.cat([value, value.new_zeros(missing, *value.shape[1:])])
            value[list(rows)] = 0
            self.history[key] = value

    def choose(self, observation: Tensor, goal: Tensor, rows: Sequence[int], explore: torch.Generator | None) -> Tensor:
        """Return the next action of each row and append it to the row's history."""
        index, config, history = list(rows), self.config, self.history
        begun = [row for row in index if row >= len(history["time"])]
        if begun:
            self.reset(begun)
        history["observation"][index] = torch.cat([history["observation"][index, 1:], observation[:, None]], dim=1)
        history["action"][index] = history["action"][index].roll(-1, dims=1)  # the last action is not attended to
        step = history["time"][index][:, None] + torch.arange(1 - config.context, 1, device=self.device)
        returns = (config.target_return - step * config.step_reward) / config.return_scale
        steps = (history["observation"][index], history["action"][index])
        action: Tensor = self.actor(*steps, returns, step, step >= 0, goal)[:, -1]
        if explore:
            action = noisy(action, config.exploration_noise, explore)
        history["action"][index, -1] = action
        history["time"][index] += 1
        return action

    def state(self) -> dict[str, Any]:
        """Return the state that the next update and the next action depend on, including the running episodes."""
        return super().state() | {"history": dict(self.history)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        super().load_state(state)
        self.history = {key: value.to(self.device) for key, value in state["history"].items()}
