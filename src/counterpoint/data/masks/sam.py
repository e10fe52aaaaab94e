"""Robot masks by the Segment Anything Model (Kirillov et al. 2023, arXiv 2304.02643), through `transformers`.

Prompts, points on the robot and a box about it, are given once for a camera and hold for all of its frames. That suits
a wrist camera, where the gripper stays where it is, and a robot that covers the points in every frame; masks of others
are best made elsewhere and read from files. Of the three masks that the model proposes for a frame, the one of the
highest predicted overlap is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["Box", "Point", "SamMasks"]

Point = tuple[float, float]
"""x (column) and y (row) in pixels of the picture, from its top left corner."""

Box = tuple[float, float, float, float]
"""x and y of the top left corner, then of the bottom right one."""


class SamMasks:
    """Masks of one camera.

    Args:
        name: A model on the Hub, such as `facebook/sam-vit-base`, or a folder with one.
        store: The data set.
        camera: The camera that is prompted.
        points: On the robot.
        box: About the robot.
        batch_size: Frames at a time.
        device: A torch device; a GPU where there is one by default.

    Attributes:
        cameras: The one camera.
        about: What to remember of where masks came from.

    Raises:
        BadInputError: When there is no prompt, one lies outside the picture, the camera or device is unknown, or the
            model cannot be loaded or is of another kind.
        MissingExtraError: When `transformers` is not installed.
    """

    def __init__(
        self,
        name: str,
        store: EpisodeStore,
        *,
        camera: str,
        points: Sequence[Point] = (),
        box: Box | None = None,
        batch_size: int = 8,
        device: str | None = None,
    ) -> None:
        if camera not in store.cameras:
            raise BadInputError("camera", repr(camera), f"one of {', '.join(store.cameras)}", "name one of these")
        if batch_size < 1:
            raise BadInputError("--batch-size", f"{batch_size}", "1 or more", "give the model some frames")
        height, width = store.frames(0, np.array([0]), camera).shape[1:3]
        _check_prompts(points, box, height, width)
        self.cameras = (camera,)
        self.about = {"sam": name, "points": [list(point) for point in points], "box": box and list(box)}
        self._store, self._points, self._box, self._batch_size = store, points, box, batch_size
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        _check_device(self._device)
        self._processor, self._model = _load(name, self._device)

    def masks(self, number: int, camera: str) -> Array:
        """An episode's masks: bool [T, H, W]."""
        steps = np.arange(self._store.episodes[number].length)
        chunks = (steps[first : first + self._batch_size] for first in range(0, len(steps), self._batch_size))
        return np.concatenate([self._segment(self._store.frames(number, chunk, camera)) for chunk in chunks])

    @torch.inference_mode()
    def _segment(self, frames: Array) -> Array:
        count = len(frames)
        prompts: dict[str, Any] = {}
        if self._points:
            prompts["input_points"] = [[[list(point) for point in self._points]]] * count
            prompts["input_labels"] = [[[1] * len(self._points)]] * count
        if self._box is not None:
            prompts["input_boxes"] = [[list(self._box)]] * count
        inputs = self._processor(list(frames), **prompts, return_tensors="pt")
        given = {
            key: value.to(self._device, torch.float32 if value.is_floating_point() else value.dtype)
            for key, value in inputs.items()
            if key not in ("original_sizes", "reshaped_input_sizes")
        }
        out = self._model(**given)
        best = out.iou_scores[:, 0].argmax(dim=1)  # of the three masks of the one object
        chosen = out.pred_masks[:, 0].take_along_dim(best[:, None, None, None], dim=1)
        sized = self._processor.image_processor.post_process_masks(
            chosen[:, None].cpu(), inputs["original_sizes"], inputs["reshaped_input_sizes"]
        )
        return np.stack([mask.reshape(mask.shape[-2:]).numpy().astype(np.bool_) for mask in sized])


def _check_prompts(points: Sequence[Point], box: Box | None, height: int, width: int) -> None:
    if not points and box is None:
        raise BadInputError("--sam", "no prompt", "a point on the robot or a box about it", "give --point X Y")
    corners = [] if box is None else [box[:2], box[2:]]
    for x, y in [*points, *corners]:
        if not (0 <= x <= width and 0 <= y <= height):
            raise BadInputError(
                "--point" if (x, y) in points else "--box",
                f"({x:g}, {y:g})",
                f"x from 0 to {width} and y from 0 to {height}, pixels of the picture",
                "look at a frame and take a pixel on the robot",
            )
    if box is not None and not (box[0] < box[2] and box[1] < box[3]):
        raise BadInputError(
            "--box",
            " ".join(f"{value:g}" for value in box),
            "left, top, right, bottom",
            "give the top left corner first",
        )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise BadInputError(
            "--device",
            f"{device!r} ({next(iter(str(error).splitlines()), '')[:100]})",
            "a device of this machine, such as cpu or cuda",
            "leave it out for the best there is",
        ) from None


def _load(name: str, device: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoConfig, SamModel, SamProcessor
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "transformers", "text") from None
    try:
        kind = AutoConfig.from_pretrained(name).model_type
        if kind != "sam":  # transformers would give random weights to what such a model lacks
            raise ValueError(f"a model of the kind {kind!r}")
        processor: Any = SamProcessor.from_pretrained(name)
        model: Any = SamModel.from_pretrained(name)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise BadInputError(
            f"--sam {name}",
            f"no model that can be loaded ({next(iter(str(error).splitlines()), '')[:160]})",
            "a SAM model of the Hub, or a folder with config.json, model.safetensors and its processor",
            "take facebook/sam-vit-base, or download it once with a connection",
        ) from None
    return processor, model.to(device).eval()
