"""RLBench's pickles, read without running what they may hold.

A pickle builds its objects by calling whatever it names, and even numpy's own classes, called with the right
arguments, read and write memory at will. So nothing of numpy is called here: arrays and numbers become stand-ins that
hold bytes, and are made into arrays of numbers, and of nothing else, when they are looked at.

RLBench's poses as the seven numbers of an action and the fourteen of a state, and back.

RLBench acts by eight numbers, a position, a quaternion and the gripper; ICon's Table 4 has seven, and a state of
fourteen: "arm joint positions, end-effector poses, and gripper status", which is 7 + 6 + 1. So a rotation is three
numbers here. Of the ways to write it in three, a rotation vector is taken, and it is measured from the gripper
pointing straight down, where RLBench's arm starts and mostly works: measured from the world's axes such poses are
half a turn away, where the vector jumps from one sign to the other.

Actions are scaled to about [-1, 1], as those of every other suite:

- three numbers of position: 0 is (0.25, 0, 1.25) m in the world, 1 is 0.75 m from there, which covers the table;
- three of rotation: 1 is half a turn;
- one of the gripper: 1 open, -1 closed, RLBench's threshold at 0.

The scale is this library's own; the paper does not tell its own.
"""

from __future__ import annotations

import codecs
import math
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError

__all__ = [
    "Recorded",
    "RecordedArray",
    "from_action",
    "load_pickle",
    "rotation_vector",
    "to_action",
    "to_quaternion",
    "to_state",
]


class Recorded:
    """Stands for RLBench's `Demo` and `Observation`: the attributes that were written, and no behaviour."""


class _RecordedType:
    """Stands for `numpy.dtype`: a code such as `f8`, and a byte order."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = {"|": "="}.get(state[1], state[1])

    def numbers(self) -> np.dtype[Any]:
        """The type, if it is one of numbers or truth values."""
        if self.order not in ("<", ">", "=") or not re.fullmatch(r"[biufc]\d{1,2}", str(self.code)):
            raise ValueError(f"an array of {self.code!r}")
        return np.dtype(f"{self.order}{self.code}")


class RecordedArray:
    """Stands for `numpy.ndarray`: bytes, a shape and a type. `numpy.asarray` makes an array of it.

    Raises:
        ValueError: From `numpy.asarray`, when it holds no numbers, or too few or too many bytes.
    """

    shape: Any = (0,)
    type: Any = None
    fortran = False
    values: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.type, self.fortran, self.values = state

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if not isinstance(self.type, _RecordedType) or not isinstance(self.values, bytes | bytearray):
            raise ValueError("an array of objects")
        kind, shape = self.type.numbers(), tuple(int(length) for length in self.shape)
        if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize != len(self.values):
            raise ValueError(f"{len(self.values)} bytes for {kind} {shape}")
        flat = np.frombuffer(bytes(self.values), kind)
        return np.array(flat.reshape(shape, order="F" if self.fortran else "C"), dtype)


def load_pickle(path: Path) -> Any:
    """What a pickle of RLBench holds: plain values, `RecordedArray`, and `Recorded` for its own two classes.

    Raises:
        BadInputError: When it names anything else, or is damaged.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path).load()
    except BadInputError:
        raise
    except (*_DAMAGED, OSError) as error:
        raise BadInputError(
            path,
            f"a pickle that cannot be read ({type(error).__name__}: {str(error)[:100]})",
            "a pickle as RLBench writes it",
            "record the episode again",
        ) from None


class _Reader(pickle.Unpickler):
    """Finds `_KNOWN` alone."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """What stands for that which the pickle names, if it is known."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        raise BadInputError(
            self._path,
            f"a pickle that needs {module}.{name}",
            "numpy's arrays, plain values and RLBench's Demo and Observation",
            "record the episode again without it; such a pickle may run anything, so it is not opened",
        )


def _array(*_: Any) -> RecordedArray:
    """For `numpy`'s `_reconstruct`: what it is filled with follows."""
    return RecordedArray()


def _array_of_buffer(values: Any, kind: Any, shape: Any, order: Any) -> RecordedArray:
    """For `numpy`'s `_frombuffer`, of pickle protocol 5."""
    array = RecordedArray()
    array.__setstate__((1, shape, kind, order == "F", values))
    return array


def _number(kind: Any, value: Any) -> Any:
    """For `numpy`'s `scalar`."""
    return np.asarray(_array_of_buffer(value, kind, (), "C"))[()]


def _object(kind: Any, *_: Any) -> Recorded:
    """For `copyreg._reconstructor`, of protocols before 2."""
    if kind is not Recorded:
        raise pickle.UnpicklingError(f"an object of {kind!r}")
    return Recorded()


def _bytes(text: Any, encoding: Any) -> bytes:
    """For `codecs.encode`, by which protocols before 3 keep bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return codecs.encode(text, "latin1")


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = MappingProxyType(
    {
        ("rlbench.demo", "Demo"): Recorded,
        ("rlbench.backend.observation", "Observation"): Recorded,
        ("copyreg", "_reconstructor"): _object,
        ("copy_reg", "_reconstructor"): _object,
        ("_codecs", "encode"): _bytes,
        ("builtins", "object"): object,
        ("__builtin__", "object"): object,
        ("numpy", "ndarray"): RecordedArray,
        ("numpy", "dtype"): _RecordedType,
        **{(f"numpy.{core}.multiarray", "_reconstruct"): _array for core in ("core", "_core")},
        **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
        **{(f"numpy.{core}.numeric", "_frombuffer"): _array_of_buffer for core in ("core", "_core")},
    }
)
_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
)


Numbers = NDArray[np.floating]

_DOWN = np.array((0.0, 1.0, 0.0, 0.0))  # x, y, z, w: half a turn about y
_CENTRE, _REACH = np.array((0.25, 0.0, 1.25)), 0.75  # metres


def to_action(
    pose: Float[Numbers, "*lead 7"], opened: Float[Numbers, "*lead"]
) -> Float[NDArray[np.float32], "*lead 7"]:
    """The action that asks for a pose of the gripper.

    Args:
        pose: Position in metres and quaternion x, y, z, w in the world, as RLBench's `gripper_pose`.
        opened: Of the gripper, 1 open and 0 closed, as RLBench's `gripper_open`.
    """
    position = (pose[..., :3] - _CENTRE) / _REACH
    grip = np.where(np.asarray(opened) > 0.5, 1.0, -1.0)
    parts = [position, rotation_vector(pose[..., 3:]) / np.pi, grip[..., None]]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def from_action(action: Float[Numbers, "*lead 7"]) -> Float[NDArray[np.float64], "*lead 8"]:
    """What RLBench is to be asked for: position, unit quaternion x, y, z, w, and gripper (1 open, 0 closed)."""
    wide = np.asarray(action, np.float64)
    position = wide[..., :3] * _REACH + _CENTRE
    grip = (wide[..., 6:] > 0.0).astype(np.float64)
    return np.concatenate([position, to_quaternion(wide[..., 3:6] * np.pi), grip], axis=-1)


def to_state(
    joints: Float[Numbers, "*lead 7"], pose: Float[Numbers, "*lead 7"], opened: Float[Numbers, "*lead"]
) -> Float[NDArray[np.float32], "*lead 14"]:
    """Joint angles in radians (7), gripper position in metres (3), rotation vector from straight down (3), open (1)."""
    parts = [joints, pose[..., :3], rotation_vector(pose[..., 3:]), np.asarray(opened)[..., None]]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def rotation_vector(quaternion: Float[Numbers, "*lead 4"]) -> Float[NDArray[np.float64], "*lead 3"]:
    """Turn from straight down to a quaternion x, y, z, w, about the world's axes, in radians; at most half a turn."""
    turn = _product(np.asarray(quaternion, np.float64), _conjugate(_DOWN))
    turn = np.where(turn[..., 3:] < 0, -turn, turn)  # the shorter of the two ways round
    sine = np.linalg.norm(turn[..., :3], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(sine, turn[..., 3:])
    vector: NDArray[np.float64] = turn[..., :3] * np.where(sine > 1e-12, angle / np.maximum(sine, 1e-12), 2.0)
    return vector


def to_quaternion(vector: Float[Numbers, "*lead 3"]) -> Float[NDArray[np.float64], "*lead 4"]:
    """The reverse of `rotation_vector`: a unit quaternion x, y, z, w."""
    wide = np.asarray(vector, np.float64)
    angle = np.linalg.norm(wide, axis=-1, keepdims=True)
    turn = np.concatenate([wide * np.sinc(angle / (2 * np.pi)) / 2, np.cos(angle / 2)], axis=-1)
    return _product(turn, _DOWN)


def _product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hamilton's, of quaternions x, y, z, w."""
    u, a = left[..., :3], left[..., 3:]
    v, b = right[..., :3], right[..., 3:]
    vector = a * v + b * u + np.cross(u, v)
    return np.concatenate([vector, a * b - (u * v).sum(-1, keepdims=True)], axis=-1)


def _conjugate(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    return quaternion * (-1.0, -1.0, -1.0, 1.0)
