"""Imitation learning with auxiliary terms: a diffusion policy whose encoder can also learn from other losses.

    L = L_pred + sum over terms of lambda L_term          (ICon, Eq. 6)

L_pred is the squared error of the noise that was added to a window of actions (Diffusion Policy, Chi et al. 2023,
Eq. 5), the mean over window and action dimensions. As in the original, windows that reach beyond an episode repeat its
first or last action and count like any other. The encoder runs once; `IConTerm` and `CrosswayTerm` use that pass.
`ObjectiveTerm` adds any objective on transitions (Premier-TACO, TACO, CURL, ...), which shares the policy's encoder and
gets separate batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.augment import Noise, centre_corner, cropped, cropped_views
from counterpoint.data.spec import Read, Spec
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives.base import Batch, Features, LossOutput, Objective, weighted_mean
from counterpoint.objectives.crossway import CrosswayDecoder
from counterpoint.objectives.icon import ICon, IConConfig
from counterpoint.objectives.steps import StepObjective
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DenoisingTransformer, decay_groups
from counterpoint.policies.normalizer import LinearNormalizer


@dataclass(frozen=True)
class PolicyPass:
    """Tensors of a policy's forward pass that auxiliary terms read.

    Attributes:
        frames: uint8 [B, To, C, h, w, 3], cropped to the encoder's size.
        masks: bool [B, To, C, h, w], the robot's pixels; `None` for a batch without masks.
        state: float [B, To, P], normalised; `None` if the policy does not read proprioception.
        bottleneck: [B, M, k], the U-Net's innermost features; `None` for other networks.
        batch: The whole batch.
    """

    frames: UInt8[Tensor, "B To C h w 3"]
    masks: Bool[Tensor, "B To C h w"] | None
    state: Float[Tensor, "B To P"] | None
    bottleneck: Float[Tensor, "B M k"] | None
    batch: Batch


class AuxiliaryTerm(nn.Module):
    """A loss that is added to the imitation loss.

    Args:
        weight: Weight of the term (lambda).
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def demand(self, spec: Spec) -> Spec:
        """Return `spec`, the spec of the policy's batches, extended by the data that this term needs."""
        return spec

    def own_sampling(self) -> Spec | None:
        """Return the sampling spec of separate batches for this term. Default: none.

        Keys of these batches begin with the term's name and a dot.
        """
        return None

    def forward(self, run: PolicyPass, name: str) -> LossOutput:
        """Return the loss without its weight. Called in training, after the policy's networks have run on the batch."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Run after each optimiser step. Default: nothing."""


class IConTerm(AuxiliaryTerm):
    """The inter-token contrast in the encoder's vision transformers (ICon, Eq. 4 to 6), averaged over cameras.

    Args:
        encoder: The policy's encoder, of kind `vit`.
        cameras: Indices of the encoder's cameras that have the loss.
        config: Settings of ICon.

    Raises:
        BadInputError: If the encoder has no tokens, or an image has fewer tokens than keys.
    """

    def __init__(self, encoder: ObservationEncoder, cameras: Sequence[int], config: IConConfig) -> None:
        super().__init__(config.weight)
        self._cameras = list(cameras)
        self.each = nn.ModuleList(ICon(encoder.vits[camera], config) for camera in self._cameras)

    def demand(self, spec: Spec) -> Spec:
        """Return `spec` with masks, and with a random order of each image's tokens."""
        first = self.each[0]
        assert isinstance(first, ICon)
        order = Noise(first.order_shape, "uniform", each="image")
        return spec.with_read("masks", Read("masks", "views")).with_transform("token_order", order)

    def forward(self, run: PolicyPass, name: str) -> LossOutput:
        """Return the loss of the tokens of the policy's pass."""
        assert run.masks is not None
        order = run.batch["token_order"]
        outputs: list[LossOutput] = [
            icon(*(part[:, :, camera].flatten(0, 1) for part in (run.masks, order)))
            for icon, camera in zip(self.each, self._cameras, strict=True)
        ]
        means = {key: torch.stack([o.metrics[key] for o in outputs]).mean() for key in outputs[0].metrics}
        return LossOutput(torch.stack([output.loss for output in outputs]).mean(), means)

    def after_step(self) -> None:
        """Delete tokens that were kept when other terms ran the encoder."""
        for icon in self.each:
            assert isinstance(icon, ICon)
            icon.tap.clear()


class CrosswayTerm(AuxiliaryTerm):
    """Reconstruction of the newest observation from the U-Net's bottleneck (Crossway Diffusion).

    Args:
        decoder: Decoder of images and proprioception.
        weight: Weight of the term (lambda); 0.1 in the paper.
    """

    def __init__(self, decoder: CrosswayDecoder, weight: float) -> None:
        super().__init__(weight)
        self.decoder = decoder

    def forward(self, run: PolicyPass, name: str) -> LossOutput:
        """Return the decoder's error."""
        assert run.bottleneck is not None
        state = None if run.state is None else run.state[:, -1]
        return LossOutput(*self.decoder(run.bottleneck, run.frames[:, -1], state))


class ObjectiveTerm(AuxiliaryTerm):
    """An additional loss term: an objective on transitions with separate batches that trains the policy's encoder.

    Args:
        objective: The objective, built around the policy's encoder.
        weight: Weight of the term (lambda).
        crop: Side of the random crops in pixels, if the policy's images are cropped; otherwise 0.
    """

    def __init__(self, objective: StepObjective, weight: float, *, crop: int = 0) -> None:
        super().__init__(weight)
        self.objective, self.crop = objective, crop

    def own_sampling(self) -> Spec:
        """Return the objective's spec."""
        return self.objective.sampling().with_crop(self.crop)

    def forward(self, run: PolicyPass, name: str) -> LossOutput:
        """Return the objective's loss on this term's part of the batch."""
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in run.batch.items() if key.startswith(prefix)}
        features = self.objective.encode(own)
        with torch.autocast(run.frames.device.type, enabled=False):
            return self.objective.loss(features.float(), own)

    def after_step(self) -> None:
        """Update the objective's targets."""
        self.objective.after_step()


TRANSFORMER_DECAY = 1e-3
"""Weight decay of the denoising transformer's matrices (as in the original); other parameters have none."""


@dataclass(frozen=True, kw_only=True)
class ImitationFeatures(Features):
    """The outputs of the policy's networks.

    Attributes:
        terms: Losses of the terms by name, without their weights; empty in validation.
        errors: Errors of sampled actions, as returned by `action_errors`; empty in training.
    """

    terms: dict[str, LossOutput]
    errors: dict[str, Tensor]

    def float(self) -> ImitationFeatures:
        """Return the features unchanged, since the loss itself converts the tensors that it reads to float32."""
        return self


def action_errors(
    planned: Float[Tensor, "B T A"], demonstrated: Float[Tensor, "B T A"], normalizer: LinearNormalizer
) -> dict[str, Tensor]:
    """Return the errors of sampled actions relative to demonstrated actions, in units of half the training range.

    These errors reveal undertraining: the error of the noise can be small while actions still have large errors.

    Returns:
        `action_error`, the root mean square over all dimensions; `action_error/0` ..., the root mean square of each
        dimension; and `gripper_wrong`, the share of steps at which the last dimension (the gripper's, with one arm)
        lies on the wrong side of the middle of its range.
    """
    found, wanted = normalizer(planned.float()), normalizer(demonstrated.float())
    squared = (found - wanted).square().mean((0, 1))
    wrong = ((found[..., -1] > 0) != (wanted[..., -1] > 0)).float().mean()
    each = {f"action_error/{dim}": error for dim, error in enumerate(squared.sqrt())}
    return {"action_error": squared.mean().sqrt(), **each, "gripper_wrong": wrong}


class Imitation(Objective):
    """The training objective of a diffusion policy.

    `encode` also computes the losses of auxiliary terms, from the tensors of its pass over the batch. Nothing is
    gathered across processes, since samples are not negatives of each other: each process computes its own loss, and
    gradients are averaged.

    Metrics: `imitation`, the error of the network's output; and for each term `NAME/loss` and the term's metrics. In
    validation the policy also plans from every window, and `action_errors` of the steps that would be executed are
    logged.

    Args:
        policy: The policy: encoder, denoising network and normalisers. Training changes this module, not a copy.
        terms: Auxiliary terms by name.
    """

    across_ranks = False

    def __init__(self, policy: DiffusionPolicy, terms: Mapping[str, AuxiliaryTerm] | None = None) -> None:
        super().__init__()
        self.policy = policy
        # Terms with separate batches come last: their pass through the encoder replaces the policy's tokens.
        ordered = sorted((terms or {}).items(), key=lambda one: one[1].own_sampling() is not None)
        self.terms = nn.ModuleDict(dict(ordered))
        size, frame = policy.encoder.config.size, policy.frame
        config = policy.head.config
        spec = Spec.steps(
            offsets=tuple(range(1 - config.obs_steps, 1)),
            actions=config.horizon,
            first_action=1 - config.obs_steps,
            past_end=config.executed - 1,
            stack=1,
            crop=size if frame > size and policy.encoder.config.cameras else 0,
            state=policy.use_state,
        )
        if not policy.encoder.config.cameras:
            spec = spec.with_read("frames", None)
        spec = spec.with_transform("noise", Noise((config.horizon, policy.head.action_dim)))
        spec = spec.with_transform("noise_step", Noise((), "uniform"))
        beside: dict[str, Spec] = {}
        for name, term in self._terms().items():
            spec, own = term.demand(spec), term.own_sampling()
            beside |= {} if own is None else {name: own}
        self._spec = replace(spec, beside=beside)

    def sampling(self) -> Spec:
        """Return the sampling spec: o_{t-To+1} ... o_t, actions from a_{t-To+1} on, noise, and the terms' batches."""
        return self._spec

    def encode(self, batch: Batch) -> ImitationFeatures:
        """Return `predicted` and `target` [B, K, A], and in training the terms' losses."""
        hint = "use demonstrations with logged actions"
        require(batch.get("actions") is not None, "batch", "no actions", "`actions` [B, K, A]", hint)
        frames, masks = self._windows(batch)
        state = batch.get("state") if self.policy.use_state else None
        condition = self.policy.condition(frames, state)
        steps = (batch["noise_step"] * self.policy.head.config.train_steps).long()
        denoised = self.policy.head.denoise(condition, batch["actions"], noise=batch["noise"], steps=steps)
        normal = None if state is None else self.policy.normal_state(state)
        run = PolicyPass(frames, masks, normal, denoised.bottleneck, batch)
        return ImitationFeatures(
            {"predicted": denoised.predicted, "target": denoised.target},
            terms={name: term(run, name) for name, term in self._terms().items() if self.training},
            errors={} if self.training else self._errors(condition, batch["actions"]),
        )

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        """Return the squared error of the noise plus the weighted terms."""
        assert isinstance(features, ImitationFeatures)
        rows = features.rows
        errors = functional.mse_loss(rows["predicted"].float(), rows["target"].float(), reduction="none")
        imitation = weighted_mean(errors, batch)
        total, metrics = imitation, {"imitation": imitation, **features.errors}
        for name, output in features.terms.items():
            total = total + self._terms()[name].weight * output.loss
            metrics |= {f"{name}/loss": output.loss}
            metrics |= {f"{name}/{key}": value for key, value in output.metrics.items()}
        return LossOutput(total, metrics)

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the policy's encoder."""
        return [p for p in self.policy.encoder.parameters() if p.requires_grad]

    def param_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the two groups of a denoising transformer (`decay_groups`), and `model`: all other parameters."""
        network = self.policy.head.network
        apart = decay_groups(network) if isinstance(network, DenoisingTransformer) else {}
        known = {id(parameter) for group in apart.values() for parameter in group}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        return {"model": rest, **apart}

    def weight_decays(self) -> dict[str, float]:
        """Return the transformer's weight decays, as in the original's configuration."""
        return {"decayed": TRANSFORMER_DECAY, "plain": 0.0}

    def after_step(self) -> None:
        """Run every term's `after_step`."""
        for term in self._terms().values():
            term.after_step()

    def exports(self) -> dict[str, nn.Module]:
        """Return the policy; it shares its parameters with this objective."""
        return {"policy": self.policy}

    def _errors(self, condition: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """Return the errors of the executed part of one plan per window; every call starts from the same noise."""
        head = self.policy.head
        first = head.config.obs_steps - 1
        executed = slice(first, first + head.config.executed)
        planned = head.sample(condition, generator=torch.Generator().manual_seed(0))
        return action_errors(planned[:, executed], actions[:, executed], head.normalizer)

    def _terms(self) -> dict[str, AuxiliaryTerm]:
        return cast("dict[str, AuxiliaryTerm]", dict(self.terms.items()))

    def _windows(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return images [B, To, C, h, w, 3] and masks [B, To, C, h, w], cropped alike; validation crops the centre."""
        size, crop = self._spec.crop, batch.get("crop")
        if "frames" not in batch:  # a policy without cameras
            B, To = len(batch["actions"]), self.policy.history
            return batch["actions"].new_zeros((B, To, 0, size, size, 3), dtype=torch.uint8), None
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
