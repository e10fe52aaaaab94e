"""The layouts of HDF5 files of demonstrations, read without decoding an image.

::

    data            attributes: total; env_args (JSON: env_name, type, env_kwargs); in LIBERO also problem_info (JSON:
                    language_instruction), bddl_file_name, macros_image_convention
    data/demo_I     attributes: num_samples, model_file; in robocasa ep_meta (JSON: lang); in IsaacLab success
        actions     [T, A]
        rewards, dones                  [T]
        states      simulator states [T, n]; a group in IsaacLab
        obs/KEY     images uint8 [T, H, W, 3], proprioception [T, n]
        obs/KEY_mask                    added by this library: robot masks uint8 [T, H, W, 1], 255 on the robot
        next_obs/KEY                    (robomimic; not read, because it is obs one step later)
    mask/NAME       names of demonstrations: `train`, `valid` and other subsets (robomimic's filter keys)

ALOHA and ACT keep one demonstration in each file, at its top: `action` [T, A], `observations/qpos` [T, S] and
`observations/images/CAMERA`, uint8 [T, H, W, 3] or, compressed, [T, bytes] with zeros after each image.

The parts have the same meaning in all files, except for what a `Dialect` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import visible
from counterpoint.data.robot_masks import MASK_SUFFIX, mask_camera
from counterpoint.errors import BadInputError, require
from counterpoint.formats.base import OnBadRow, first_text, read_each
from counterpoint.formats.boundary import as_mapping, as_number, as_numbers, as_whole, parsing
from counterpoint.formats.hdf5.dialects import (
    DIALECTS,
    Dialect,
    Form,
    Outline,
    dialect_of,
    is_either,
    is_grey,
    is_image,
    is_packed,
    is_scaled,
)
from counterpoint.formats.hdf5.opening import EXPECTED, import_h5py, open_hdf5

INSTRUCTIONS = {
    "Lift": "lift the cube",
    "PickPlaceCan": "put the can in its bin",
    "NutAssemblySquare": "put the square nut on its peg",
    "ToolHang": "assemble the frame and hang the tool on it",
    "TwoArmTransport": "take the hammer out of the closed box and hand it over into the other bin",
}
"""robosuite's name of an environment -> its instruction. The data sets themselves have no instructions."""

HORIZONS = {"Lift": 400, "PickPlaceCan": 400, "NutAssemblySquare": 400, "ToolHang": 700, "TwoArmTransport": 700}
"""Maximum number of steps of an evaluated episode in robomimic's study (Mandlekar et al. 2021, arXiv 2108.03298)."""
_IMAGE = "_image"  # ending of the keys of robomimic's images
_GYM = 2  # env_args["type"] of environments whose rewards do not show success
_WORDS = ("lang", "language_instruction", "language_raw", "instruction")
_GREY = re.compile(r"image|rgb|gr[ae]y|cam|view", re.IGNORECASE)  # names of grey images
_NO_GREY = re.compile(r"mask|seg|depth|label", re.IGNORECASE)  # names of other arrays of one channel
_SCENE = re.compile(r"^[A-Z_]+_SCENE\d+_")


def instruction_of(env_name: str) -> str:
    """Return an environment's instruction, or the words of its name if none is known: `Stack_D0` gives "stack"."""
    plain = re.sub(r"_D\d+$|^Isaac-|-v\d+$", "", env_name)  # MimicGen's variants of one task; IsaacLab's names
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", plain)
    return INSTRUCTIONS.get(plain) or " ".join(word.lower() for word in words)


def instruction_from_name(name: str) -> str:
    """Return the instruction in the name of a LIBERO task, data file or BDDL file.

    A name consists of a scene and the instruction, or only of the instruction: `KITCHEN_SCENE3_turn_on_the_stove`.
    """
    stem = name.rsplit("/", 1)[-1].removesuffix(".hdf5").removesuffix(".bddl").removesuffix("_demo")
    return _SCENE.sub("", stem).replace("_", " ").strip()


def env_args(path: Path) -> dict[str, Any]:
    """Return the environment of a recording (`env_name`, `type`, `env_kwargs`); refuse a file without them."""
    with open_hdf5(path) as file, parsing(path, EXPECTED):
        args = _json(path, _data_group(path, file).attrs, "env_args")
    if not isinstance(args.get("env_name"), str) or not isinstance(args.get("env_kwargs"), dict):
        where, found = f"{path}, data, attribute env_args", f"the keys {sorted(args)}" if args else "nothing"
        hint = "name the environment, or download it again"
        raise BadInputError(where, found, "JSON with env_name and env_kwargs", hint)
    return args


def damaged(where: str | Path, found: str, expected: str) -> BadInputError:
    """Return the error for a file in which a part is missing or has another form."""
    return BadInputError(where, found, expected, "download or record it again, or remove the demonstration")


def _data_group(path: Path, file: Any) -> Any:
    data = file.get("data")
    if not _is_group(data):
        raise damaged(path, f"the groups {sorted(file)}", "a group 'data' with a group for each demonstration")
    return data


def _is_group(part: Any) -> bool:
    return isinstance(part, import_h5py().Group)


def read_masks(path: Path, file: Any) -> dict[str, frozenset[str]]:
    """Return the subsets of `mask` with the names of their demonstrations; empty if the file has no group `mask`."""
    group = file.get("mask")
    if group is None:
        return {}
    if not _is_group(group):
        raise damaged(f"{path}, mask", type(group).__name__, "a group of subsets")
    for name, part in group.items():
        if not (isinstance(part, import_h5py().Dataset) and part.ndim == 1 and part.dtype.kind in "SO"):
            raise damaged(f"{path}, mask/{name}", type(part).__name__, "names of demonstrations")
    return {name: frozenset(_text(key) for key in part[()]) for name, part in group.items()}


def _holds_numbers(part: Any) -> bool:
    return isinstance(part, import_h5py().Dataset) and part.ndim > 0 and part.dtype.kind in "biuf"


def _json(where: str | Path, attributes: Any, name: str) -> dict[str, Any]:
    """Return an attribute that holds a JSON object; empty if it is missing."""
    text = attributes.get(name)
    if text is None:
        return {}
    try:
        value = json.loads(_text(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(f"{where}, attribute {name}", f"{_text(text)[:60]!r}", "a JSON object")
    return value


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration."""

    name: str  # demo_I; empty if the file is one demonstration
    length: int  # T, the rows in the file
    instruction: str  # recorded for this demonstration; empty if there is none
    success: bool | None  # `None` if the file does not record success
    rewarded: bool


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of one file, with its demonstrations."""

    path: Path
    dialect: Dialect
    facts: tuple[str, ...]  # that identified the dialect; empty if the user named it
    fps: float
    rate_recorded: bool
    instruction: str  # empty if only the name of the environment gives the task
    env_name: str
    cameras: tuple[str, ...]  # of images, then of masks: `agentview_image_mask` for `obs/agentview_mask`, see `obs_key`
    state: tuple[str, ...]  # keys of proprioception, in the order in which they are joined
    objects: bool  # True where `obs/object` holds the state of the surroundings
    bottom_first: bool  # images have their bottom row first
    unread: tuple[str, ...]  # parts of the first demonstration that are not read
    pictures: Mapping[str, str]  # images in `unread`: place -> dtype and shape
    names: frozenset[str]  # of all demonstrations, including unusable ones
    demos: tuple[Demo, ...]  # in the order of their numbers
    masks: dict[str, frozenset[str]]  # subset -> names of its demonstrations

    @property
    def dialects(self) -> tuple[str]:
        """The dialect's name."""
        return (self.dialect.name,)


def scan(path: Path, on_bad_row: OnBadRow, dialect: str | None = None) -> FileLayout:
    """Read the layout of a file and of every demonstration in it.

    Demonstrations that cannot be used are reported to `on_bad_row` and left out.

    Raises:
        BadInputError: When the file is damaged, has no demonstrations, or its facts do not identify a dialect and
            `dialect` names none.
    """
    with open_hdf5(path) as file, parsing(path, EXPECTED):
        groups = _demonstrations(path, file)
        first: Any = next(filter(_is_group, groups.values()), {})
        top = first == file
        attributes = file.attrs if top else file["data"].attrs
        args, problem = _json(path, attributes, "env_args"), _json(path, attributes, "problem_info")
        spoken, facts = dialect_of(path, _outline(file, attributes, args, groups), dialect)
        if not top and _observations(groups) != "obs":
            spoken = replace(spoken, obs=_observations(groups), images=_observations(groups))
        expected = f"{'action and observations there' if spoken.top else 'a group data'}, as in {spoken.title}"
        hint = f"name one of {', '.join(name for name, other in DIALECTS.items() if other.top == top)}, or none"
        require(spoken.top == top, path, f"the names {sorted(file)} at the top", expected, hint)
        observed, pictures = _group(groups, spoken.obs), _group(groups, spoken.images)
        tests = {key: _image_test(key, part, packed=bool(spoken.packed)) for key, part in pictures.items()}
        images = {key: test for key, test in tests.items() if test}
        masks = [mask for mask in map(mask_camera, images) if _is_mask(observed.get(obs_key(mask)))]
        kwargs, state = as_mapping(args.get("env_kwargs") or {}), spoken.state_keys(observed)
        rate = _recorded_rate(path, args, kwargs)
        parts: dict[str, Callable[[Form], bool] | None] = {
            f"{spoken.images}/{key}": test for key, test in images.items()
        }
        parts |= {f"{spoken.obs}/{obs_key(mask)}": _is_mask_form for mask in masks}
        parts |= {f"{spoken.obs}/{key}": None for key in (*state, *({"object"} & set(observed)))}
        solved = None if args.get("type") == _GYM else as_number(kwargs.get("reward_scale") or 1.0)
        reads, told = _Reads(spoken, parts, solved), _WORDS if _words(first) else ()
        demos = read_each(groups, lambda name: _demo(path, name, groups[name], reads), on_bad_row)
        return FileLayout(
            path=path,
            dialect=spoken,
            facts=facts,
            fps=rate or spoken.fps,
            rate_recorded=rate is not None,
            instruction=_instruction(path, kwargs, problem, spoken),
            env_name=str(args.get("env_name", "")),
            cameras=(*images, *masks),
            state=state,
            objects="object" in observed,
            bottom_first=spoken.bottom_first and _text(attributes.get("macros_image_convention", "")) != "opencv",
            unread=(unread := tuple(_unread(first, {*parts, spoken.actions, "rewards", *told}))),
            pictures=dict(picture for place in unread for picture in _pictures(first[place], place)),
            names=frozenset(groups),
            demos=tuple(demo for _, demo in demos),
            masks=read_masks(path, file),
        )


def _demonstrations(path: Path, file: Any) -> dict[str, Any]:
    """Return the demonstrations of a file by name, in the order of their numbers."""
    if "data" not in file and "action" in file and "observations" in file:
        return {"": file}
    data = _data_group(path, file)
    names = [name for name in data if _is_demo(name, data[name])]
    names.sort(key=lambda name: (int((re.findall(r"\d+$", name) or [-1])[0]), name))  # demo_2 before demo_10
    if not names:
        raise damaged(f"{path}, data", "no demonstration", "groups demo_0, demo_1, ... with actions and obs")
    return {name: data[name] for name in names}


def _group(groups: Mapping[str, Any], name: str) -> Any:
    """Return the group `name` of the first demonstration that has it; empty if none does."""
    every = (group.get(name) for group in groups.values() if _is_group(group))
    return next((group for group in every if _is_group(group)), {})


def _observations(groups: Mapping[str, Any]) -> str:
    """Return the group of the observations: IsaacLab may keep them in `obs/policy`, beside other groups in `obs`."""
    members = list(_group(groups, "obs").values())
    return "obs/policy" if all(map(_is_group, members)) and _group(groups, "obs/policy") else "obs"


def _image_test(key: str, part: Any, *, packed: bool) -> Callable[[Form], bool] | None:
    """Return the test that images of this form pass in every demonstration; `None` if the part holds no images."""
    form = _form(part) if _holds_rows(part) else ("", ())
    if (is_either if packed else is_image)(form):
        return is_either if packed else is_image
    if is_grey(form) and _GREY.search(key) and not _NO_GREY.search(key):
        return is_grey
    if is_scaled(form) and form[1][0]:
        first = np.asarray(part[0])
        return is_scaled if first.min() >= 0 and 0 < first.max() <= 1 else None  # others are normals, points or so
    return None


def _outline(file: Any, attributes: Any, args: Mapping[str, Any], groups: Mapping[str, Any]) -> Outline:
    demo: Any = next(filter(_is_group, groups.values()), None)
    top = demo == file
    observed, images = (
        _group(groups, "observations" if top else _observations(groups)),
        _group(groups, "observations/images"),
    )
    return Outline(
        top=frozenset(file),
        attributes=frozenset(attributes),
        args=args,
        parts={} if demo is None else {name: _is_group(demo[name]) for name in demo},
        demo_attributes=frozenset(() if demo is None else demo.attrs),
        observed={key: _form(part) for key, part in observed.items() if _holds_numbers(part)},
        images={key: _form(part) for key, part in images.items() if _holds_rows(part)} if top else {},
    )


def _recorded_rate(path: Path, args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> float | None:
    """Return the actions per second that robosuite (`control_freq`) or IsaacLab (`sim_args`) records."""
    simulated = as_mapping(args.get("sim_args") or {})
    if kwargs.get("control_freq"):
        rate, found = as_number(kwargs["control_freq"]), "control_freq"
    elif "dt" in simulated:
        step, found = as_number(simulated["dt"]) * as_number(simulated.get("decimation", 1)), "sim_args: steps a second"
        rate = 1 / step
    else:
        return None
    require(rate > 0, f"{path}, env_args", f"{found} {rate:g}", "actions a second above 0", "correct it")
    return rate


def _unread(group: Any, read: Collection[str], above: str = "") -> Iterator[str]:
    """Yield the names of the parts of a demonstration that are not read."""
    for name in group:
        place = f"{above}{name}"
        if any(part.startswith(f"{place}/") for part in read):
            yield from _unread(group[name], read, f"{place}/")
        elif place not in read:
            yield place


def _pictures(part: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the images, also of depth, in a part of a demonstration that is not read: place, and dtype and shape."""
    if _is_group(part):
        for name in part if place != "next_obs" else ():
            yield from _pictures(part[name], f"{place}/{name}")
    elif _holds_rows(part):
        dtype, shape = form = _form(part)
        deep = len(shape) == 3 and (dtype == "uint16" or "depth" in place.lower())
        if deep or len(shape) == 4 or ("image" in place and is_packed(form)):
            yield place, f"{dtype} {list(shape)}"


def _is_demo(name: str, part: Any) -> bool:
    """Return whether a part of `data` is, or should be, a demonstration."""
    return bool(re.fullmatch(r"demo_\d+", name)) or (_is_group(part) and ("actions" in part or "obs" in part))


@dataclass(frozen=True, slots=True)
class _Reads:
    """The parts of each demonstration that are read, each image with a function that tests its form."""

    dialect: Dialect
    parts: Mapping[str, Callable[[Form], bool] | None]
    solved: float | None


def _demo(path: Path, name: str, group: Any, reads: _Reads) -> Demo:
    """Check that a demonstration has every part, and that each part has one entry per step."""
    dialect, where = reads.dialect, demo_place(path, name)
    with parsing(where, f"a demonstration of {dialect.title}"):
        if not _is_group(group):
            raise damaged(where, type(group).__name__, "a group")
        parts = {key: group.get(key) for key in (dialect.actions, *reads.parts)}
        missing = [key for key, part in parts.items() if part is None]
        if missing:
            raise damaged(where, f"no {', '.join(missing)}", "the parts of the other demonstrations")
        extra = {key: group[key] for key in ("rewards", "dones", "states") if key in group}
        parts |= {key: part for key, part in extra.items() if key != "states" or not _is_group(part)}
        images = {key for key, fits in reads.parts.items() if fits is not None}
        odd = [key for key, part in parts.items() if not (_holds_numbers, _holds_rows)[key in images](part)]
        if odd:
            raise damaged(f"{where}, {odd[0]}", f"{group[odd[0]]!r}"[:80], "an array of numbers")
        odd = [key for key, fits in reads.parts.items() if fits is not None and not fits(_form(parts[key]))]
        if odd:
            raise damaged(f"{where}, {odd[0]}", "{} {}".format(*_form(parts[odd[0]])), "images as in the first episode")
        actions = parts[dialect.actions]
        if actions.ndim != 2 or actions.shape[0] == 0:
            raise damaged(f"{where}, {dialect.actions}", f"{actions.shape}", "[T, A] with at least one step")
        length = int(actions.shape[0])
        lengths = {key: int(part.shape[0]) for key, part in parts.items()}
        lengths |= {"num_samples": as_whole(group.attrs.get("num_samples", length))}
        differing = ", ".join(f"{key} {count}" for key, count in lengths.items() if count != length)
        if differing:
            raise damaged(where, f"lengths that disagree: {dialect.actions} {length}, {differing}", "one entry a step")
        if length <= dialect.lead:
            raise damaged(where, "one row", "two or more: LIBERO's first action has no image")
        robocasa = visible(str(_json(where, group.attrs, "ep_meta").get("lang") or ""))
        return Demo(name, length, robocasa or _words(group), _success(group, reads), "rewards" in parts)


def _words(group: Any) -> str:
    """Return the text that a demonstration records as its instruction, in an attribute or an array of one text."""
    arrays = [group[name] for name in _WORDS if isinstance(group.get(name), import_h5py().Dataset)]
    values = [group.attrs[name] for name in _WORDS if name in group.attrs]
    values += [part[()] for part in arrays if part.dtype.kind in "SO" and part.size == 1]
    texts = [value for values in map(np.ravel, values) if len(values) == 1 for value in values]
    return first_text(visible(_text(text)) for text in texts if isinstance(text, str | bytes))


def demo_place(path: Path, name: str) -> str:
    """Return the name of a demonstration in error messages."""
    return f"{path}, {name}" if name else str(path)


def _success(group: Any, reads: _Reads) -> bool | None:
    if reads.dialect.success == "attribute":
        return bool(group.attrs["success"]) if "success" in group.attrs else None
    if reads.dialect.success == "nothing" or reads.solved is None or "rewards" not in group:
        return None
    return bool(as_numbers(group["rewards"][()]).max() >= reads.solved - 1e-6)


def _instruction(path: Path, kwargs: Mapping[str, Any], problem: Mapping[str, Any], dialect: Dialect) -> str:
    """Return the instruction in a file, or the words in the name of LIBERO's file or of ALOHA's folder.

    In 29 of LIBERO's 130 tasks, the name and the stored instruction differ; LIBERO's benchmark uses the name.
    """
    if dialect.words == "folder":
        return re.sub(r"[_\-\s]+", " ", path.resolve().parent.name).strip()
    libero = dialect.words == "file"
    if libero and path.stem.endswith("_demo"):
        return instruction_from_name(path.stem)
    words = problem.get("language_instruction") or kwargs.get("lang")
    if words:
        return (" ".join(map(str, words)) if isinstance(words, list) else str(words)).strip().strip('"')
    return instruction_from_name(path.stem) if libero else ""


def obs_key(camera: str) -> str:
    """Return a camera's key in the HDF5 group; the key of the mask of `agentview_image` is `agentview_mask`."""
    return camera.replace(_IMAGE + MASK_SUFFIX, MASK_SUFFIX)


def _form(part: Any) -> Form:
    return str(part.dtype) if _holds_numbers(part) else "bytes", tuple(part.shape)


def _holds_rows(part: Any) -> bool:
    """Return whether a part is an array of numbers, or of one row of bytes a step."""
    rows = isinstance(part, import_h5py().Dataset) and part.ndim == 1
    varying = rows and import_h5py().check_vlen_dtype(part.dtype) == "uint8"
    return _holds_numbers(part) or varying or (rows and part.dtype.kind == "S")


def _is_mask_form(form: Form) -> bool:
    return is_image(form, 1)


def _is_mask(part: Any) -> bool:
    return _holds_numbers(part) and _is_mask_form(_form(part))
