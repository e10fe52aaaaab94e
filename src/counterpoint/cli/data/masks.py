"""The work of `counterpoint data masks`: copy a LeRobot data set and add robot masks to its images.

Masks come from one of two sources. Either you give a folder with one entry per episode, laid out as below::

    FOLDER/episode_000000/CAMERA/000000.png ...     one image per frame, named by the frame's number, or
    FOLDER/episode_000000.npz                       an array CAMERA, bool or uint8 [T, H, W]

Each mask has its image's size and is 0 off the robot and 1 or 255 on it. Alternatively, the Segment Anything Model
(Kirillov et al. 2023, arXiv 2304.02643) makes the masks. You give its prompts, points on the robot and a box around it,
once per camera. They apply to all frames of that camera, which suits a wrist camera, or a robot that covers the points
in every frame. The model proposes three masks per frame; the one with the highest predicted overlap is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, UseAppendAction, arg

from counterpoint.data.episode import Array
from counterpoint.data.robot_masks import as_mask, constant, mask_camera, mask_frames, rgb_cameras
from counterpoint.data.store import EpisodeStore, check_camera, frames_in_chunks
from counterpoint.errors import BadInputError, MissingExtraError, require, usable_device
from counterpoint.formats import recognise
from counterpoint.formats.base import require_new
from counterpoint.formats.boundary import first_line, load_arrays, open_image, parsing, read_bytes
from counterpoint.formats.lerobot.additions import copy_with_images
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.remote import whole
from counterpoint.parameter_types import Device, Name

Point = tuple[float, float]
"""x (column) and y (row) in pixels of the image, from its top left corner."""
Box = tuple[float, float, float, float]
"""x and y of the top left corner, then of the bottom right corner."""
_SHOWN = 6  # number of missing frames, or of episodes, that a message names at most


def write_masks(
    path: Positional[Annotated[str | Path, arg(metavar="PATH")]],
    out: Positional[Annotated[str | Path, arg(metavar="OUT")]],
    *,
    files: Annotated[Path | None, arg(name="from", metavar="FOLDER")] = None,
    sam: Annotated[str | None, arg(metavar="MODEL")] = None,
    camera: Name = None,
    points: Annotated[UseAppendAction[tuple[Point, ...]], arg(name="point", metavar="X Y")] = (),
    box: Annotated[Box | None, arg(metavar="LEFT TOP RIGHT BOTTOM")] = None,
    batch_size: int = 8,
    device: Device = None,
) -> None:
    """Write a copy of a LeRobot data set with masks of the robot: from files, or by the Segment Anything Model.

    The mask of the camera `top` becomes the camera `top_mask`, stored losslessly. Episodes whose mask is empty, or
    full, in every frame are written with a warning: a loss that needs robot and surroundings cannot use them.

    Time on two cores: masks from files take about as long as `data convert`; a model takes seconds a frame, so use a
    GPU. Disk: as much as the data set, plus the masks as PNG.

    Args:
        path: A LeRobot data set.
        out: The folder to write; must not exist.
        files: Folder of masks made elsewhere: episode_000000/CAMERA/000000.png and so on, or episode_000000.npz with an
            array for each camera, bool or uint8 [T, H, W]. Masks are 0 off the robot and 1 or 255 on it.
        sam: Make masks with this model: a name on the Hub, such as facebook/sam-vit-base, or a folder.
        camera: With `sam`: the camera whose images are segmented; the first camera by default.
        points: A pixel on the robot, as a prompt for the model; may be given several times. It applies to all frames.
        box: A box around the robot, as a prompt for the model.
        batch_size: Number of frames in one batch of the model.
        device: The device of the model; by default a GPU if the machine has one.

    Raises:
        BadInputError: If `files` and `sam` are both given or both missing; if a prompt or `camera` is given without
            `sam`; if a mask is wrong or missing; if a camera already has a mask; or if `out` exists. Nothing is written
            then.
        MissingExtraError: When a model is given and `transformers` is not installed.
    """
    found = "neither --from nor --sam" if files is None else "both --from and --sam"
    hint = "give --from FOLDER for masks made elsewhere, or --sam MODEL to make them"
    require((files is None) != (sam is None), "data masks", found, "one of them", hint)
    prompted, found = bool(points or box is not None or camera is not None), "--point, --box or --camera beside --from"
    require(sam or not prompted, "data masks", found, "prompts for a model", "leave them out")
    require_new(Path(out))
    kind = recognise(path)
    hint = f"run `counterpoint data convert {path} OUT` first"
    require(kind.name == "lerobot", path, f"a data set of the format {kind.title}", "a LeRobot data set", hint)
    store = LeRobotStore(whole(path))
    source: MaskFiles | SamMasks
    if files is not None:
        source = MaskFiles(files, store)
    else:
        named = camera or rgb_cameras(store.cameras)[0]
        source = SamMasks(sam or "", store, camera=named, points=points, box=box, batch_size=batch_size, device=device)
    for camera in source.cameras:
        expected, hint = "a camera without a mask", "start from the data set without masks"
        require(mask_camera(camera) not in store.cameras, store.root, f"{camera!r} with a mask already", expected, hint)
        require(camera in rgb_cameras(store.cameras), store.root, f"{camera!r}, a mask", expected, hint)
    sizes = {mask_camera(camera): store.frames(0, np.array([0]), camera).shape[1:3] for camera in source.cameras}
    useless: dict[tuple[str, str], list[int]] = {}

    def frames(number: int) -> dict[str, Array]:
        added = {}
        for camera in source.cameras:
            mask = source.masks(number, camera)
            same = constant(mask)
            if same is not None:
                useless.setdefault((camera, same), []).append(number)
            added[mask_camera(camera)] = mask_frames(mask)
        return added

    before = (store.info.raw.get("counterpoint") or {}).get("masks", {})
    origins = {**before, **{mask_camera(name): dict(source.about) for name in source.cameras}}
    copy_with_images(store.root, Path(out), sizes, frames, about={"masks": origins})
    for (name, same), episodes in useless.items():
        shown = ", ".join(map(str, episodes[:_SHOWN])) + (", ..." if len(episodes) > _SHOWN else "")
        text = f"the mask of {name} is {same} in every frame of {len(episodes)} episodes ({shown})"
        print(f"counterpoint: warning: {text}: no loss on masks can use them", file=sys.stderr)
    print(f"Wrote {out}: {', '.join(mask_camera(name) for name in source.cameras)}")


class MaskFiles:
    """Masks in files; a missing mask of any frame is reported before the first mask is read.

    Args:
        folder: The folder, laid out as in the module's docstring.
        store: The data set; its episodes are numbered as in the folder.

    Attributes:
        cameras: The cameras that have masks.
        about: Notes on the origin of the masks.

    Raises:
        BadInputError: When the folder has another layout, names an unknown camera or episode, or lacks frames.
    """

    def __init__(self, folder: str | Path, store: EpisodeStore) -> None:
        self._folder, self._store = Path(folder), store
        self.about = {"from": self._folder.name}
        names = [_name(number) for number in range(len(store.episodes))]
        hint = "check that masks belong to this data set, episode by episode"
        for entry in sorted(self._folder.glob("episode_*")):
            require(entry.stem in names, self._folder, entry.name, f"{names[0]} to {names[-1]}", hint)
        present = [self._present(number) for number in range(len(names))]
        named = {camera for frames in present for camera in frames}
        expected = f"{names[0]}/CAMERA/000000.png or {names[0]}.npz with an array a camera"
        require(named, self._folder, "no masks of any episode", expected, "lay masks out so")
        for camera in sorted(named):
            expected, hint = f"one of {', '.join(store.cameras)}", "name masks by the camera of their images"
            require(camera in store.cameras, self._folder, f"masks of a camera {camera!r}", expected, hint)
        self.cameras = tuple(camera for camera in store.cameras if camera in named)
        missing = [
            f"{names[number]}/{camera}/{frame:06d}"
            for number, frames in enumerate(present)
            for camera in self.cameras
            for frame in sorted(set(range(store.episodes[number].length)) - frames.get(camera, set()))
        ]
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        found = f"{len(missing)} frames without a mask: {shown}"
        hint = "make the missing ones; a frame without the robot has a mask of zeros"
        require(not missing, self._folder, found, "a mask for every frame of every episode", hint)

    def masks(self, number: int, camera: str) -> Array:
        """Return an episode's masks for one camera, bool [T, H, W], at the size of the camera's images."""
        size = self._store.frames(number, np.array([0]), camera).shape[1:3]
        packed = self._packed(number)
        if packed.is_file():
            return _checked(f"{packed}, {camera}", _arrays(packed)[camera], size)
        paths = sorted((self._folder / _name(number) / camera).glob("*.png"))
        return np.stack([_checked(str(path), _image(path), size) for path in paths])

    def _present(self, number: int) -> dict[str, set[int]]:
        """Return the frames of an episode that have a mask, by camera."""
        length, packed, folder = self._store.episodes[number].length, self._packed(number), self._folder / _name(number)
        present: dict[str, set[int]] = {}
        if packed.is_file():
            for camera, masks in _arrays(packed).items():
                where, found = f"{packed}, {camera}", f"an array of shape {masks.shape}"
                expected = f"({length}, H, W), a mask for each frame"
                require(masks.ndim in (3, 4), where, found, expected, "stack the masks of an episode")
                present[camera] = set(range(len(masks)))
        for child in folder.iterdir() if folder.is_dir() and not packed.is_file() else ():
            stems = [path.stem for path in child.glob("*.png")]
            for stem in stems:
                require(stem.isdecimal() and len(stem) == 6, child, f"{stem}.png", "000000.png and so on", "rename it")
            if child.is_dir():
                present[child.name] = {int(stem) for stem in stems}
        for camera, frames in present.items():
            where, last = f"{packed if packed.is_file() else folder}, {camera}", max(frames, default=0)
            expected, hint = f"masks for frames 0 to {length - 1}", "check that they belong to this episode"
            require(last < length, where, f"a mask for frame {last}", expected, hint)
        return present

    def _packed(self, number: int) -> Path:
        return self._folder / f"{_name(number)}.npz"


def _name(number: int) -> str:
    return f"episode_{number:06d}"


def _arrays(path: Path) -> dict[str, Array]:
    with parsing(path, "an .npz file of arrays", "write it again"):
        return load_arrays(path)


def _image(path: Path) -> Array:
    image = open_image(path, read_bytes(path), ["PNG"])
    plain = image.mode in ("1", "L", "RGB", "RGBA") or image.mode.startswith("I")
    return np.asarray(image if plain else image.convert("RGBA"))  # the numbers of a palette image are not colours


def _checked(where: str, values: Array, size: tuple[int, ...]) -> Array:
    """Return a mask, bool [..., H, W], that has the size of its image."""
    mask = as_mask(where, values)
    found = f"a mask of {mask.shape[-1]}x{mask.shape[-2]} pixels"
    expected = f"{size[1]}x{size[0]}, the size of its image"
    require(mask.shape[-2:] == size, where, found, expected, "make masks at the size of the images")
    return mask


class SamMasks:
    """Masks for one camera, made by the Segment Anything Model.

    Args:
        name: A model on the Hub, such as `facebook/sam-vit-base` (add `@COMMIT` for the model of one commit), or a
            folder.
        store: The data set.
        camera: The camera whose images are segmented.
        points: Points on the robot.
        box: A box around the robot.
        batch_size: Number of frames in a batch.
        device: A torch device; by default a GPU if there is one.

    Attributes:
        cameras: The one camera.
        about: Notes on the origin of the masks.

    Raises:
        BadInputError: When there is no prompt, a prompt lies outside the image, the camera or device is unknown, or the
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
        check_camera(camera, store)
        require(batch_size >= 1, "--batch-size", batch_size, "1 or more", "give the model some frames")
        height, width = store.frames(0, np.array([0]), camera).shape[1:3]
        _check_prompts(points, box, height, width)
        self.cameras = (camera,)
        self.about = {"sam": name, "points": [list(point) for point in points], "box": box and list(box)}
        self._store, self._points, self._box, self._batch_size = store, points, box, batch_size
        self._device = usable_device(device)
        self._processor, self._model = _load(name, self._device)
        commit = getattr(self._model.config, "_commit_hash", None)
        self.about |= {"commit": commit} if commit else {}

    def masks(self, number: int, camera: str) -> Array:
        """Return an episode's masks: bool [T, H, W]."""
        chunks = frames_in_chunks(self._store, number, camera, count=self._batch_size)
        return np.concatenate([self._segment(frames) for frames in chunks])

    def _segment(self, frames: Array) -> Array:
        import torch

        prompts: dict[str, Any] = {}
        if self._points:
            prompts["input_points"] = [[[list(point) for point in self._points]]] * len(frames)
            prompts["input_labels"] = [[[1] * len(self._points)]] * len(frames)
        if self._box is not None:
            prompts["input_boxes"] = [[list(self._box)]] * len(frames)
        inputs = self._processor(list(frames), **prompts, return_tensors="pt")
        given = {
            key: value.to(self._device, torch.float32 if value.is_floating_point() else value.dtype)
            for key, value in inputs.items()
            if key not in ("original_sizes", "reshaped_input_sizes")
        }
        with torch.inference_mode():
            out = self._model(**given)
        best = out.iou_scores[:, 0].argmax(dim=1)  # the best of three masks of one object
        chosen = out.pred_masks[:, 0].take_along_dim(best[:, None, None, None], dim=1)
        sized = self._processor.image_processor.post_process_masks(
            chosen[:, None].cpu(), inputs["original_sizes"], inputs["reshaped_input_sizes"]
        )
        return np.stack([mask.reshape(mask.shape[-2:]).numpy().astype(np.bool_) for mask in sized])


def _check_prompts(points: Sequence[Point], box: Box | None, height: int, width: int) -> None:
    expected = "a point on the robot or a box about it"
    require(points or box is not None, "--sam", "no prompt", expected, "give --point X Y")
    corners = [] if box is None else [("--box", box[:2]), ("--box", box[2:])]
    for where, (x, y) in [*(("--point", point) for point in points), *corners]:
        expected = f"x from 0 to {width} and y from 0 to {height}, pixels of the image"
        require(0 <= x <= width and 0 <= y <= height, where, f"({x:g}, {y:g})", expected, "take a pixel on the robot")
    if box is not None:
        ordered, found = box[0] < box[2] and box[1] < box[3], " ".join(f"{value:g}" for value in box)
        require(ordered, "--box", found, "left, top, right, bottom", "give the top left corner first")


def _load(name: str, device: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoConfig, SamModel, SamProcessor
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "transformers", "text") from None
    place, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    pinned: dict[str, Any] = {"revision": revision or None}
    try:
        kind = AutoConfig.from_pretrained(place, **pinned).model_type
        if kind != "sam":  # transformers would give random weights to the missing parts of another model
            raise ValueError(f"a model of the kind {kind!r}")
        processor: Any = SamProcessor.from_pretrained(place, **pinned)
        model: Any = SamModel.from_pretrained(place, **pinned)
    except Exception as error:  # parts of transformers may raise anything
        found = f"no model that can be loaded ({first_line(error)})"
        expected = "a SAM model of the Hub, or a folder with config.json, model.safetensors and its processor"
        raise BadInputError(f"--sam {name}", found, expected, "use facebook/sam-vit-base, or download it") from error
    return processor, model.to(device).eval()
