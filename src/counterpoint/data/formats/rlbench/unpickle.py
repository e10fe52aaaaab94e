"""RLBench's pickles, read without running what they may hold.

A pickle builds its objects by calling whatever it names, and even numpy's own classes, called with the right
arguments, read and write memory at will. So nothing of numpy is called here: arrays and numbers become stand-ins that
hold bytes, and are made into arrays of numbers, and of nothing else, when they are read.
"""

from __future__ import annotations

import codecs
import math
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.data.formats.base import parsing
from counterpoint.errors import BadInputError


class Recorded:
    """A stand-in for RLBench's `Demo` and `Observation`: the attributes that were written, and no behaviour."""


class _RecordedType:
    """A stand-in for `numpy.dtype`: a code such as `f8`, and a byte order."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = {"|": "="}.get(state[1], state[1])

    def numbers(self) -> np.dtype[Any]:
        """Return the type, if it is one of numbers or truth values."""
        if self.order not in ("<", ">", "=") or not re.fullmatch(r"[biufc]\d{1,2}", str(self.code)):
            raise ValueError(f"an array of {self.code!r}")
        return np.dtype(f"{self.order}{self.code}")


class RecordedArray:
    """A stand-in for `numpy.ndarray`: bytes, a shape and a type. `numpy.asarray` makes an array of it.

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
    """Return the contents of a pickle of RLBench: plain values, `RecordedArray`, and `Recorded` for its own classes.

    Raises:
        BadInputError: When it names anything else, or is damaged.
    """
    with parsing(path, "a pickle as RLBench writes it", "record the episode again"), path.open("rb") as file:
        return _Reader(file, path).load()


class _Reader(pickle.Unpickler):
    """Finds `_KNOWN` alone."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name, if it is known."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        expected = "numpy's arrays, plain values and RLBench's Demo and Observation"
        hint = "record the episode again without it; such a pickle may run anything, so it is not opened"
        raise BadInputError(self._path, f"a pickle that needs {module}.{name}", expected, hint)


def _array(*_: Any) -> RecordedArray:
    """Replace `numpy`'s `_reconstruct`; its contents follow."""
    return RecordedArray()


def _array_of_buffer(values: Any, kind: Any, shape: Any, order: Any) -> RecordedArray:
    """Replace `numpy`'s `_frombuffer`, of pickle protocol 5."""
    array = RecordedArray()
    array.__setstate__((1, shape, kind, order == "F", values))
    return array


def _number(kind: Any, value: Any) -> Any:
    """Replace `numpy`'s `scalar`."""
    return np.asarray(_array_of_buffer(value, kind, (), "C"))[()]


def _object(kind: Any, *_: Any) -> Recorded:
    """Replace `copyreg._reconstructor`, of protocols before 2."""
    if kind is not Recorded:
        raise pickle.UnpicklingError(f"an object of {kind!r}")
    return Recorded()


def _bytes(text: Any, encoding: Any) -> bytes:
    """Replace `codecs.encode`, by which protocols before 3 keep bytes."""
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
