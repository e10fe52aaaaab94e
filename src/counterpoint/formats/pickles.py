"""Read pickles from other people without running any code that the pickles name."""

from __future__ import annotations

import codecs
import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import require
from counterpoint.formats.boundary import MISTAKES, as_whole, first_line, parsing, read_bytes


class Recorded:
    """A stand-in for a class of the program that wrote the pickle: it has the recorded attributes, but no methods."""

    def __init__(self, *_: Any) -> None:
        pass


def _fields(state: Any, least: int) -> tuple[Any, ...]:
    """Return a value if it is a tuple of at least `least` items; raise `ValueError` for anything else."""
    if not isinstance(state, tuple) or len(state) < least:
        raise ValueError(f"{type(state).__name__} where {least} values should be")
    return state


class _RecordedType:
    """A stand-in for `numpy.dtype`: a code such as `f8`, and a byte order."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        order = str(_fields(state, 2)[1])
        self.order = {"|": "="}.get(order, order)

    def numbers(self) -> np.dtype[Any]:
        """Return the numpy type, which must be a type of numbers or booleans."""
        if self.order not in ("<", ">", "=") or not re.fullmatch(r"[biufc]\d{1,2}", str(self.code)):
            raise ValueError(f"an array of {self.code!r}")
        return np.dtype(f"{self.order}{self.code}")


class RecordedArray:
    """A stand-in for `numpy.ndarray`: bytes, a shape and a type, which `numpy.asarray` turns into an array if valid."""

    shape: Any = (0,)
    type: Any = None
    fortran = False
    values: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.type, self.fortran, self.values = _fields(state, 5)[:5]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if not isinstance(self.type, _RecordedType) or not isinstance(self.values, bytes | bytearray):
            raise ValueError("an array of objects")
        kind, shape = self.type.numbers(), tuple(as_whole(length) for length in _fields(self.shape, 0))
        if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize != len(self.values):
            raise ValueError(f"{len(self.values)} bytes for {kind} {shape}")
        flat = np.frombuffer(bytes(self.values), kind)
        return np.array(flat.reshape(shape, order="F" if self.fortran else "C"), dtype)


def load_pickle(path: Path, classes: Collection[tuple[str, str]] = ()) -> Any:
    """Return the contents of a pickle: plain values, `RecordedArray`, and `Recorded` for the objects of `classes`.

    A pickle builds its objects by calling whatever functions it names. Even numpy's own classes, called with the right
    arguments, can read and write any memory. So no function of numpy is called: arrays and numbers become stand-ins
    that hold bytes, and only arrays of numbers are made from these bytes when they are read.

    Args:
        path: The file.
        classes: Module and name of each class whose objects the recording program writes.

    Raises:
        BadInputError: When the pickle names any other class or function, or is damaged.
    """
    content = read_bytes(path)
    with parsing(path, "a pickle of plain values and arrays", "download or record it again"):
        for operation, argument, _ in pickletools.genops(content):
            if operation.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):  # would allocate memory
                raise pickle.UnpicklingError(f"place {argument} among {len(content)} bytes")
        try:
            return _Unpickler(content, path, classes).load()
        except MISTAKES as error:
            traceback = error.__traceback__
            if traceback is not None and traceback.tb_next is not None:  # a mistake in the code below
                raise
            raise pickle.UnpicklingError(first_line(error)) from error  # an operation on a value of another kind


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path, classes: Collection[tuple[str, str]]) -> None:
        super().__init__(io.BytesIO(content))
        self._path, self._classes = path, classes

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._classes:
            return Recorded
        known, hint = (module, name) in _KNOWN, "such a pickle may run anything: record the episode again without it"
        names = ["numpy's arrays", "plain values", *(f"{module}.{name}" for module, name in sorted(self._classes))]
        require(known, self._path, f"a pickle that needs {module}.{name}", ", ".join(names), hint)
        return _KNOWN[module, name]


def _array_of_buffer(*parts: Any) -> RecordedArray:
    """Replace `numpy`'s `_frombuffer`, of pickle protocol 5."""
    values, kind, shape, order = _fields(parts, 4)[:4]
    array = RecordedArray()
    array.__setstate__((1, shape, kind, order == "F", values))
    return array


def _number(*parts: Any) -> Any:
    """Replace `numpy`'s `scalar`."""
    kind, value = _fields(parts, 2)[:2]
    return np.asarray(_array_of_buffer(value, kind, (), "C"))[()]


def _object(kind: Any = None, *_: Any) -> Recorded:
    """Replace `copyreg._reconstructor`, of protocols before 2."""
    if kind is not Recorded:
        raise pickle.UnpicklingError(f"an object of {kind!r}")
    return Recorded()


def _bytes(text: Any = None, encoding: Any = None, *_: Any) -> bytes:
    """Replace `codecs.encode`, with which protocols before 3 store bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return codecs.encode(text, "latin1")


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = MappingProxyType(
    {
        ("copyreg", "_reconstructor"): _object,
        ("copy_reg", "_reconstructor"): _object,
        ("_codecs", "encode"): _bytes,
        ("builtins", "object"): Recorded,
        ("__builtin__", "object"): Recorded,
        ("numpy", "ndarray"): RecordedArray,
        ("numpy", "dtype"): _RecordedType,
        **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: RecordedArray() for core in ("core", "_core")},
        **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
        **{(f"numpy.{core}.numeric", "_frombuffer"): _array_of_buffer for core in ("core", "_core")},
    }
)
