"""TACO: contrast of a state and its actions with the batch's future states.

Zheng et al., "TACO: Temporal Latent Action-Driven Contrastive Loss for Visual Reinforcement Learning", NeurIPS 2023
(arXiv 2306.13229). This library uses only its contrastive terms, for pretraining from logged data, without the policy.

    F[i, j] = G(z_t, u_t ... u_{t+K-1})_i^T W H(z_{t+K})_j
    TACO      -mean_i log softmax_row(F)[i, i]                  `infonce`
    CURL      the same of H(z_t)_i^T W H(z'_t)_j, z' of the same observation with another shift
    reward    mean_i (R(z_t, u_t ... u_{t+K-1})_i - sum_k r_{t+k})^2, where there are rewards

Symbols: z = phi(s), u = psi(a) as in Premier-TACO; psi, G and H are the same `FutureHeads`, so that the two methods
can be compared at equal size and batch. K -> `steps`.

Where the sources differ:
  - The paper's terms have separate W; the authors' code has one W and one H for both. We follow the code.
  - The code draws W uniformly from [0, 1), subtracts each row's maximum (no change to a softmax), and encodes future
    states without gradient (`stop_gradient`).
  - The code's reward is the discounted sum of its replay buffer's n steps; here it is the plain sum of the K rewards.
  - The code's latent actions have 1.25 A + 1 dimensions; here they have A, as in Premier-TACO.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from counterpoint.data.spec import Spec
from counterpoint.encoders.observation_networks import drq_weights
from counterpoint.objectives.base import Batch, Features, LossOutput, contrast_metrics, infonce
from counterpoint.objectives.premier_taco import FutureConfig, FutureObjective
from counterpoint.objectives.steps import perceptron


class TACOConfig(FutureConfig):
    """Settings of `TACO`.

    Attributes:
        curl: Add the CURL term, a contrast of two shifts of the same observation.
        rewards: Add the reward term; the data must have rewards.
    """

    curl: bool = True
    rewards: bool = False


class TACO(FutureObjective):
    """TACO on transitions; arguments are those of `StepObjective`."""

    config_type = TACOConfig
    config: TACOConfig

    def build(self, D: int) -> None:
        """Create the networks needed in addition to the encoder."""
        super().build(D)
        config = self.config
        self.W = nn.Parameter(torch.rand(D, D))
        width = D + config.steps * self.action_dim
        self.R = perceptron(width, config.hidden, 1).apply(drq_weights) if config.rewards else None

    def sampling(self) -> Spec:
        """Return the sampling spec: an anchor (twice with CURL), the state K steps ahead and the actions between."""
        config = self.config
        offsets = (0, 0, config.steps) if config.curl else (0, config.steps)
        return self.steps(offsets, config.steps, shift_together=config.shift_together, rewards=config.rewards)

    def encode(self, batch: Batch) -> Features:
        """Return `predicted` (g W) and `future` (h) [B, D]; for the CURL term `anchor` (h W) and `again` (h) [B, D].

        With rewards, also return `reward_guess` [B].
        """
        z, h = self.anchor_and_rest(batch)
        joined = self.heads.join(z, batch["actions"])
        rows = {"predicted": self.heads.G(joined) @ self.W, "future": h[:, -1]}
        if self.config.curl:
            rows |= {"anchor": self.heads.project(z, stop=False) @ self.W, "again": h[:, 0]}
        if self.R is not None:
            rows["reward_guess"] = self.R(joined)[:, 0]
        return Features(rows=rows)

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the sum of the terms; metrics are `contrast_metrics` of F and, with several terms, each term."""
        rows = features.rows
        logits = rows["predicted"] @ rows["future"].T
        terms = {"taco": infonce(logits)}
        if self.config.curl:
            terms["curl"] = infonce(rows["anchor"] @ rows["again"].T)
        if self.config.rewards:
            terms["reward"] = functional.mse_loss(rows["reward_guess"], batch["rewards"].float().sum(1))
        total = torch.stack(list(terms.values())).sum()
        return LossOutput(total, contrast_metrics(logits) | (terms if len(terms) > 1 else {}))
