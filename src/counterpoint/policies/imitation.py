"""Imitation with auxiliary terms: a diffusion policy learns from demonstrations, and its encoder from more.

    L = L_pred + lambda L_ICon          (ICon, Eq. 6)

L_pred is the squared error of the noise that was added to a window of actions (Diffusion Policy, Chi et al. 2023,
Eq. 5), means over window and action dimensions; windows that reach beyond an episode repeat its first and last
action and count like any other, as in the original. The encoder runs once: auxiliary terms look at that pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.augment import centre_corner, cropped, cropped_views
from counterpoint.data.nstep import NStepSpec
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import Batch, Features, LossOutput, Objective
from counterpoint.policies.auxiliary import AuxiliaryTerm, Seen
from counterpoint.policies.denoising_transformer import DenoisingTransformer, decay_groups
from counterpoint.policies.diffusion_policy import DiffusionPolicy

__all__ = ["Imitation", "ImitationFeatures"]

TRANSFORMER_DECAY = 1e-3
"""Of the denoising transformer's matrices (the original's configuration); its other parameters do not decay."""


@dataclass(frozen=True, kw_only=True)
class ImitationFeatures(Features):
    """What the policy's networks give.

    Attributes:
        terms: Name of a term -> its loss, without its weight; empty where nothing is trained.
    """

    terms: dict[str, LossOutput]


class Imitation(Objective):
    """A diffusion policy's objective.

    The pass over a batch leaves what auxiliary terms look at, so `encode` asks them for their losses too. Nothing is
    gathered across processes: no sample is another one's negative, so each process has a loss of its own
    and gradients are averaged.

    Metrics: `imitation`, the error of the noise; of each term `NAME/loss` and its own metrics.

    Args:
        policy: Encoder, denoising network and what normalises; trained itself, not a copy.
        terms: Name -> auxiliary term.
    """

    def __init__(self, policy: DiffusionPolicy, terms: Mapping[str, AuxiliaryTerm] | None = None) -> None:
        super().__init__()
        self.policy = policy
        # Batches of their own come last: their pass through the encoder takes the place of the policy's.
        ordered = sorted((terms or {}).items(), key=lambda one: one[1].own_sampling() is not None)
        self.terms = nn.ModuleDict(dict(ordered))
        size, frame = policy.encoder.config.size, policy.frame
        config = policy.head.config
        spec = NStepSpec(
            offsets=tuple(range(1 - config.obs_steps, 1)),
            actions=config.horizon,
            first_action=1 - config.obs_steps,
            past_end=config.executed - 1,
            stack=1,
            crop=size if frame > size else 0,
            state=policy.use_state,
        )
        for term in self._terms().values():
            spec = term.demand(spec)
        self._spec = spec

    def sampling(self) -> NStepSpec:
        """Observations o_{t-To+1} ... o_t and the actions from a_{t-To+1} on."""
        return self._spec

    def own_samplings(self) -> dict[str, NStepSpec]:
        """Term -> what its own batches hold, of the terms that have any."""
        found = {name: term.own_sampling() for name, term in self._terms().items()}
        return {name: spec for name, spec in found.items() if spec is not None}

    def encode(self, batch: Batch) -> ImitationFeatures:
        """`predicted` and `target` [B, K, A], and what each term finds in the pass over the batch."""
        if batch.get("actions") is None:
            raise BadInputError(
                "batch",
                found="no actions",
                expected="`actions` [B, K, A], which a policy imitates",
                mend="use demonstrations with logged actions",
            )
        frames, masks = self._windows(batch)
        state = batch.get("state") if self.policy.use_state else None
        condition = self.policy.condition(frames, state)
        noise, steps = self._fixed_noise(batch) if not self.training else (None, None)
        denoised = self.policy.head.denoise(condition, batch["actions"], noise=noise, steps=steps)
        normal = None if state is None else self.policy.normal_state(state)
        seen = Seen(frames, masks, normal, denoised.bottleneck, batch)
        return ImitationFeatures(
            {"predicted": denoised.predicted, "target": denoised.target},
            # Terms shape a representation in training; a validation is of the policy alone.
            terms={name: term(seen, name) for name, term in self._terms().items() if self.training},
        )

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Squared error of the noise, and the terms by their weights."""
        assert isinstance(features, ImitationFeatures)
        rows = features.rows
        imitation = functional.mse_loss(rows["predicted"].float(), rows["target"].float())
        total, metrics = imitation, {"imitation": imitation}
        for name, output in features.terms.items():
            total = total + self._terms()[name].weight * output.loss
            metrics |= {f"{name}/loss": output.loss}
            metrics |= {f"{name}/{key}": value for key, value in output.metrics.items()}
        return LossOutput(total, metrics)

    def forward(self, batch: Batch) -> LossOutput:
        """`loss(encode(batch), batch)` of this process's rows."""
        features = self.encode(batch)
        with torch.autocast(batch["frames"].device.type, enabled=False):
            return self.loss(features, batch)

    def param_groups(self) -> dict[str, list[nn.Parameter]]:
        """A denoising transformer in two groups (`decay_groups`), and `model`, everything else that trains."""
        network = self.policy.head.network
        apart = decay_groups(network) if isinstance(network, DenoisingTransformer) else {}
        known = {id(parameter) for group in apart.values() for parameter in group}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        return {"model": rest, **apart}

    def weight_decays(self) -> dict[str, float]:
        """The transformer's, as the original's configuration has them."""
        return {"decayed": TRANSFORMER_DECAY, "plain": 0.0}

    def after_step(self) -> None:
        """Of every term."""
        for term in self._terms().values():
            term.after_step()

    def exports(self) -> dict[str, nn.Module]:
        """The policy; it shares its parameters with this objective."""
        return {"policy": self.policy}

    def _terms(self) -> dict[str, AuxiliaryTerm]:
        return {name: term for name, term in self.terms.items() if isinstance(term, AuxiliaryTerm)}

    def _fixed_noise(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of a validation: the same for the same batch each time, and nothing taken from training's random stream."""
        actions, generator = batch["actions"], torch.Generator().manual_seed(int(batch["sample"][0]))
        noise = torch.randn(actions.shape, generator=generator).to(actions.device)
        steps = torch.randint(self.policy.head.config.train_steps, (len(actions),), generator=generator)
        return noise, steps.to(actions.device)

    def _windows(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Pictures uint8 [B, To, C, h, w, 3] and masks [B, To, C, h, w], cut alike: a validation's in the middle."""
        size, crop = self._spec.crop, batch.get("crop")
        frames, masks = batch["frames"], batch.get("masks")
        if crop is not None and not self.training:
            middle = centre_corner(frames.shape[-3], frames.shape[-2], size)
            crop = crop.new_tensor(middle).expand_as(crop)
        views = cropped_views(frames, crop, size=size)
        if masks is None or crop is None:
            return views, masks
        corners = crop.flatten(0, 2)
        cut = cropped(masks.flatten(0, 2)[..., None], corners, size)[..., 0]
        return views, cut.view(*masks.shape[:3], size, size)
