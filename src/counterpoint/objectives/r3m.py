"""R3M: time contrast within clips and a language reward across them (Nair et al., CoRL 2022).

    L = lambda_1 L_tcn + lambda_2 L_language + lambda_3 mean ||phi||_1 + lambda_4 mean ||phi||_2

Both losses are -log of the positive's softmax probability among candidates (Eq. 9 in Appendix A of the DecisionNCE
paper). The three frames s_0, s_1, s_2 are in order, and S = -||.||_2:
  - time: S(s_2, s_1) against S(s_2, s_0) and S(s_2, s_2 of other clips); S(s_0, s_1) against S(s_0, s_2) and
    S(s_0, s_0 of other clips); the mean of the two.
  - language: a 5-layer perceptron G(o_0, o, l) ranks the later frame of each pair (o_0 < o_g), (s_0 < s_1), (s_1 < s_2)
    above the earlier one and above (o_0, later frame) of other clips. All are scored under this clip's instruction; the
    loss is the mean over the three pairs. o_0 is sampled from the clip's first 20 %.

Symbols: phi of (o_0, o_g, s_0, s_1, s_2) -> `frames[:, 0..4]`; psi(l) -> `text`; G -> `LanguageReward`.

Where the sources differ:
  - The paper describes G with a final sigmoid; the authors' code defines one and never applies it. Inside the softmax,
    the sigmoid would keep the loss above log(1 + (N+1)/e); for N = 3 this is .90, and the loss at chance, log(N+2), is
    1.61. So `R3M` contrasts `LanguageReward.logit`, as their code does, and its reward is the sigmoid of the logit. The
    functions accept both forms.
  - The authors' default configuration gives the language loss weight 0; in the paper's method, and by default here, the
    weight is 1.
  - The authors take negatives from a shuffled batch, in which a clip can be its own negative; `R3M` samples shuffles
    without fixed points. The functions take the rows of the negatives as an argument.
  - The authors add 1e-8 inside the logarithm and to the denominator. Beyond a distance of about 18 this constant
    outweighs every candidate, and the gradient vanishes. Here the loss is computed in a stable way without the
    constant; `epsilon=1e-8` gives their numbers.
  - Clips without an instruction have a language loss of 0, and count in the mean over B, as in the authors' code.
  - The authors' text encoder is a frozen DistilBERT. Here the dual encoder defines which part of its text tower trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from counterpoint.data.draws import R3MFrames
from counterpoint.data.spec import Spec
from counterpoint.encoders.dual import DualEncoder
from counterpoint.objectives.base import (
    ORDER,
    Batch,
    ClipConfig,
    ClipObjective,
    Features,
    LossOutput,
    Similarity,
    candidate_metrics,
    check_frames,
    in_full_precision,
    negative_distance,
    norm_penalty,
    other_rows,
)
from counterpoint.objectives.steps import perceptron


class LanguageReward(nn.Module):
    """The reward G(o_0, o, l) in (0, 1): progress of instruction l between o_0 and o.

    Args:
        frame_dim: Dimensions of the frames' embeddings.
        text_dim: Dimensions of the text's embedding.
        hidden: Width of the four hidden layers.
    """

    def __init__(self, frame_dim: int, text_dim: int, hidden: int = 1024) -> None:
        super().__init__()
        self.layers = perceptron(2 * frame_dim + text_dim, *[hidden] * 4, 1)

    def forward(
        self, first: Float[Tensor, "*#batch D"], current: Float[Tensor, "*#batch D"], text: Float[Tensor, "*#batch L"]
    ) -> Float[Tensor, "*batch"]:
        """Return rewards of raw embeddings, which are broadcast against each other in all but the last axis."""
        return torch.sigmoid(self.logit(first, current, text))

    def logit(
        self, first: Float[Tensor, "*#batch D"], current: Float[Tensor, "*#batch D"], text: Float[Tensor, "*#batch L"]
    ) -> Float[Tensor, "*batch"]:
        """Return the rewards before the sigmoid."""
        shape = np.broadcast_shapes(first.shape[:-1], current.shape[:-1], text.shape[:-1])
        parts = [x.expand(*shape, x.shape[-1]) for x in (first, current, text)]
        logits: Tensor = self.layers(torch.cat(parts, dim=-1))
        return logits.squeeze(-1)


RewardFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A reward: (first [..., D], current [..., D], text [..., L]) -> [...]"""


class R3MConfig(ClipConfig):
    """Settings of R3M.

    Attributes:
        num_negatives: Number of other clips in each softmax (N).
        time_weight: Weight of the time contrast (lambda_1).
        language_weight: Weight of the language contrast (lambda_2); 0 in the authors' base configuration.
        l1_weight: Weight of the mean L1 norm of the embeddings (lambda_3).
        l2_weight: Weight of the mean L2 norm of the embeddings (lambda_4).
        hidden: Width of the language reward's hidden layers.
        multi_positive: In the language contrast, do not use clips with the same instruction as negatives.
    """

    num_negatives: int = Field(default=3, ge=0)
    time_weight: float = Field(default=1.0, ge=0)
    language_weight: float = Field(default=1.0, ge=0)
    l1_weight: float = Field(default=1e-5, ge=0)
    l2_weight: float = Field(default=1e-5, ge=0)
    hidden: int = Field(default=1024, ge=1)
    multi_positive: bool = False


def time_candidates(
    ordered: Float[Tensor, "B 3 D"],
    negatives: Int[Tensor, "N 2 B"] | None = None,
    *,
    similarity: Similarity = negative_distance,
) -> Float[Tensor, "2 B C"]:
    """Return logits of the time contrast for anchors s_2 and s_0: C = 2 + N candidates each, the positive first.

    Args:
        ordered: Raw embeddings of s_0 < s_1 < s_2.
        negatives: For each row, the N rows whose s_0 ([:, 0]) and s_2 ([:, 1]) it is contrasted with.
        similarity: The similarity S of two embeddings.
    """
    check_frames(ordered, "s_0, s_1, s_2")
    s0, s1, s2 = ordered[:, :3].unbind(1)
    far = similarity(s2, s0)
    late, early = [similarity(s2, s1), far], [similarity(s0, s1), far]
    if negatives is not None:
        early += similarity(s0, s0[negatives[:, 0]]).unbind(0)
        late += similarity(s2, s2[negatives[:, 1]]).unbind(0)
    return torch.stack([torch.stack(late, -1), torch.stack(early, -1)])


def language_candidates(
    reward: RewardFunction,
    frames: Float[Tensor, "B 5 D"],
    text: Float[Tensor, "B L"],
    negatives: Int[Tensor, "N 3 B"] | None = None,
) -> Float[Tensor, "3 B C"]:
    """Return rewards of the language contrast for o_g, s_1 and s_2: C = 2 + N candidates each, the positive first.

    Args:
        reward: G: a `LanguageReward`, its `logit`, or a function with the same arguments.
        frames: Raw embeddings of (o_0, o_g, s_0, s_1, s_2).
        text: Raw embedding of each clip's instruction.
        negatives: For each row the N rows whose (o_0, o_g), (o_0, s_1) and (o_0, s_2) it is contrasted with.
    """
    check_frames(frames, "o_0, o_g, s_0, s_1, s_2")
    first, last, s0, s1, s2 = frames[:, :5].unbind(1)
    later = torch.stack([last, s1, s2])
    starts, currents = [first.expand_as(later)] * 2, [later, torch.stack([first, s0, s1])]
    if negatives is not None:
        for rows in negatives:
            starts.append(first[rows])
            currents.append(torch.stack([frame[row] for frame, row in zip(later, rows, strict=True)]))
    return reward(torch.stack(starts, 2), torch.stack(currents, 2), text[:, None])


@in_full_precision
def r3m_time_contrastive_loss(
    ordered: Float[Tensor, "B 3 D"],
    *,
    negatives: Int[Tensor, "N 2 B"] | None = None,
    similarity: Similarity = negative_distance,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return R3M's time contrast.

    `time_candidates` describes the arguments, and the module's docstring describes `epsilon`.
    """
    return _minus_log_share(time_candidates(ordered, negatives, similarity=similarity), epsilon).mean()


@in_full_precision
def r3m_language_loss(
    reward: RewardFunction,
    frames: Float[Tensor, "B 5 D"],
    text: Float[Tensor, "B L"],
    *,
    negatives: Int[Tensor, "N 3 B"] | None = None,
    has_text: Bool[Tensor, " B"] | None = None,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return R3M's language contrast; for arguments see `language_candidates`, for `epsilon` the module's docstring.

    A clip without an instruction (`has_text` is False) has the loss 0, and counts in the mean over B.
    """
    rows = _minus_log_share(language_candidates(reward, frames, text, negatives), epsilon)
    return (rows if has_text is None else rows * has_text).mean()


@in_full_precision
def r3m_loss(
    reward: RewardFunction,
    frames: Float[Tensor, "B 5 D"],
    text: Float[Tensor, "B L"],
    *,
    language_negatives: Int[Tensor, "N 3 B"] | None = None,
    time_negatives: Int[Tensor, "N 2 B"] | None = None,
    has_text: Bool[Tensor, " B"] | None = None,
    time_weight: float = 1.0,
    language_weight: float = 1.0,
    l1_weight: float = 1e-5,
    l2_weight: float = 1e-5,
    similarity: Similarity = negative_distance,
    epsilon: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the weighted sum of time contrast, language contrast and the two norm penalties.

    Args:
        reward: The language reward G.
        frames: Raw embeddings of (o_0, o_g, s_0, s_1, s_2).
        text: Raw embedding of each clip's instruction.
        language_negatives: See `language_candidates`.
        time_negatives: See `time_candidates`.
        has_text: See `r3m_language_loss`.
        time_weight: Weight lambda_1 of the time contrast.
        language_weight: Weight lambda_2 of the language contrast.
        l1_weight: Weight lambda_3 of the mean L1 norm.
        l2_weight: Weight lambda_4 of the mean L2 norm.
        similarity: The similarity S of two embeddings.
        epsilon: See the module's docstring.
    """
    time = r3m_time_contrastive_loss(frames[:, 2:], negatives=time_negatives, similarity=similarity, epsilon=epsilon)
    language = r3m_language_loss(reward, frames, text, negatives=language_negatives, has_text=has_text, epsilon=epsilon)
    return time_weight * time + language_weight * language + norm_penalty(frames, l1_weight, l2_weight)


def _minus_log_share(candidates: Float[Tensor, "*batch C"], epsilon: float = 0.0) -> Float[Tensor, "*batch"]:
    """Return -log(epsilon + e^{c_0} / (epsilon + sum_c e^{c})) without overflow or underflow."""
    total = torch.logsumexp(candidates, -1)
    if not epsilon:
        return total - candidates[..., 0]
    floor = total.new_tensor(math.log(epsilon))
    return -torch.logaddexp(candidates[..., 0] - torch.logaddexp(total, floor), floor)


class R3M(ClipObjective):
    """R3M on clips.

    Frames and texts are not aligned in the embedding space; language scores come only from `language_reward`. Arguments
    are those of `ClipObjective`.
    """

    config_type = R3MConfig
    config: R3MConfig
    needs_instructions = False
    reward_form = "language"

    def __init__(self, encoder: DualEncoder, config: R3MConfig | None = None) -> None:
        super().__init__(encoder, config)
        self.reward = LanguageReward(encoder.embed_dim, encoder.embed_dim, self.config.hidden)

    def sampling(self) -> Spec:
        """Return the sampling spec: frames (o_0, o_g, s_0, s_1, s_2) of each clip."""
        return self.clips(R3MFrames()).with_transform(*ORDER)

    def encode(self, batch: Batch) -> Features:
        """Return raw `frames` [B, 5, D] and `text` [B, D], and `has_text` [B], False for empty instructions."""
        features = super().encode(batch)
        text = features.rows["text"]
        has_text = torch.tensor([bool(words.strip()) for words in batch["instruction"]], device=text.device)
        return Features({**features.rows, "has_text": has_text}, features.shared)

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return `r3m_loss` on the reward's logits; the three InfoNCE metrics are those of the time contrast."""
        frames, text = features.rows["frames"], features.rows["text"]
        N = self.config.num_negatives
        config, B = self.config, len(frames)
        labels = batch["instruction_id"] if config.multi_positive else None
        rows = other_rows(batch[ORDER[0]], 5 * N).view(N, 5, B)
        others = rows if labels is None else other_rows(batch[ORDER[0]], 5 * N, labels).view(N, 5, B)
        time = time_candidates(frames[:, 2:], rows[:, :2])
        language = language_candidates(self.reward.logit, frames, text, others[:, 2:])
        ranking = (_minus_log_share(language) * features.rows["has_text"]).mean()
        loss = config.time_weight * _minus_log_share(time).mean() + config.language_weight * ranking
        loss = loss + norm_penalty(frames, config.l1_weight, config.l2_weight)
        ranked = candidate_metrics(language)["categorical_accuracy"]
        return LossOutput(loss, candidate_metrics(time) | {"language_accuracy": ranked})

    def language_reward(
        self, first: Float[Tensor, "*#batch D"], frames: Float[Tensor, "*#batch D"], text: Float[Tensor, "*#batch L"]
    ) -> Float[Tensor, "*batch"]:
        """Return rewards in (0, 1) for progress on `text` from `first` to `frames`: raw embeddings, broadcast together.

        For a reward curve, pass the clip's first frame as `first` [D], all its frames as `frames` [T, D], and `text`
        [D].
        """
        reward: Tensor = self.reward(first, frames, text)
        return reward

    def exports(self) -> dict[str, nn.Module]:
        """Return the dual encoder and the language reward."""
        return {**super().exports(), "language_reward": self.reward}
