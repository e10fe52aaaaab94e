"""Measures inside the encoders of a comparison with ICon: attention and separability.

Frames of held-out episodes are cropped at the centre, as when a policy acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.data.augment import centre_corner, cropped
from counterpoint.data.episode import Array
from counterpoint.data.robot_masks import binary_mask, mask_camera
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.encoders.tokens import TokenTap, vit_parts
from counterpoint.objectives.icon import patch_mask
from studies.icon.attention import attention_maps, attention_share, episode_means, position_separability, separability

BATCH = 32


@dataclass(frozen=True)
class Views:
    """Frames of one camera with their robot masks, at the encoder's size.

    Attributes:
        frames: uint8 [n, size, size, 3].
        masks: bool [n, size, size].
        episodes: The episode of each frame, int64 [n].
    """

    frames: Array
    masks: NDArray[np.bool_]
    episodes: NDArray[np.int64]

    def tokens(self, patch: tuple[int, int]) -> NDArray[np.bool_]:
        """Return True for patches that the robot fills, bool [n, P]."""
        found: NDArray[np.bool_] = patch_mask(torch.from_numpy(self.masks), patch).numpy()
        return found


def views_of(store: EpisodeStore, camera: str, *, a_episode: int, size: int) -> Views:
    """Return frames evenly spread over every episode, cropped at the centre.

    Args:
        store: Episodes with masks of the camera.
        camera: The camera.
        a_episode: Number of frames of each episode; a shorter episode gives all its frames.
        size: Side of the crop.
    """
    frames, masks, episodes = [], [], []
    for episode, info in enumerate(store.episodes):
        steps = evenly_spread(info.length, a_episode)
        frames.append(store.frames(episode, steps, camera))
        masks.append(binary_mask(store.frames(episode, steps, mask_camera(camera))))
        episodes += [episode] * len(steps)
    seen, robot = np.concatenate(frames), np.concatenate(masks)
    corner = centre_corner(seen.shape[1], seen.shape[2], size)
    corners = torch.tensor([tuple(corner)] * len(seen))
    return Views(
        cropped(torch.from_numpy(seen), corners, size).numpy(),
        cropped(torch.from_numpy(robot)[..., None], corners, size)[..., 0].numpy(),
        np.asarray(episodes),
    )


def look_inside(
    encoder: ObservationEncoder, place: int, fit: Views, held_out: Views, *, images: int, seed: int
) -> dict[str, Any]:
    """Return the attention on the robot, and the separability of its tokens in each block, on held-out frames.

    Args:
        encoder: An encoder of kind `vit`.
        place: Index of the measured camera among the encoder's.
        fit: Frames of training episodes, for linear probes.
        held_out: Frames of held-out episodes.
        images: Number of frames whose attention is kept for the figure.
        seed: Random seed of the probes' tokens.

    Returns:
        `share` and `area`, one number per held-out episode (`None` if the robot fills all of its frames or nothing);
        `separability`, one balanced accuracy per block; `positions`, the balanced accuracy of only positions; and
        `attention`, [images, P], of frames `evenly_spread` over the held-out frames.
    """
    one = _of_camera(encoder, place)
    (vit,) = one.vits
    patch = vit_parts(vit).patch
    robot = held_out.tokens(patch)
    attention = np.concatenate(
        [attention_maps(vit, images).mean(1).double().cpu().numpy() for images in _images(one, held_out)]
    )
    share, area = attention_share(attention, robot)
    layers = zip(_tokens(one, fit), _tokens(one, held_out), strict=True)
    blocks = [separability(fitted, fit.tokens(patch), scored, robot, seed=seed) for fitted, scored in layers]
    shown = evenly_spread(len(attention), images)
    return {
        "share": _json(episode_means(share, held_out.episodes)),
        "area": _json(episode_means(area, held_out.episodes)),
        "separability": blocks,
        "positions": position_separability(fit.tokens(patch), robot),
        "attention": np.round(attention[shown], 6).tolist(),
    }


def evenly_spread(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` indices among `count`, evenly spread."""
    chosen = min(count, most)
    return ((np.arange(chosen) + 0.5) * count / chosen).astype(np.int64)


def _json(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _of_camera(encoder: ObservationEncoder, place: int) -> ObservationEncoder:
    """Return a copy of the encoder's part for one camera, without gradients and hooks."""
    part = encoder.body[place] if isinstance(encoder.body, nn.ModuleList) else encoder
    assert isinstance(part, ObservationEncoder)
    copy = ObservationEncoder(part.config.model_copy(update={"checkpoint": None}))
    copy.load_state_dict(part.state_dict())
    device = next(part.parameters()).device
    return copy.to(device).eval().requires_grad_(False)


def _images(encoder: ObservationEncoder, views: Views) -> Iterator[Tensor]:
    """Yield the vision transformer's inputs, batch by batch."""
    given: list[Tensor] = []
    (vit,) = encoder.vits
    hook = vit.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        for frames in _batches(encoder, views):
            encoder(frames)
            yield given.pop()
    finally:
        hook.remove()


def _tokens(encoder: ObservationEncoder, views: Views) -> list[NDArray[np.float32]]:
    """Return the patch tokens of every block: L of [n, P, D]."""
    (vit,) = encoder.vits
    tap = TokenTap(vit)
    batches: list[tuple[Tensor, ...]] = []
    try:
        for frames in _batches(encoder, views):
            with torch.enable_grad():  # without it, a tap keeps nothing; no parameter requires a gradient
                encoder(frames)
            batches.append(tuple(layer.float().cpu() for layer in tap.take()))
    finally:
        tap.close()
    return [torch.cat(layer).numpy() for layer in zip(*batches, strict=True)]


def _batches(encoder: ObservationEncoder, views: Views) -> Iterator[Tensor]:
    device = next(encoder.parameters()).device
    for start in range(0, len(views.frames), BATCH):
        yield torch.from_numpy(views.frames[start : start + BATCH])[:, None].to(device)
