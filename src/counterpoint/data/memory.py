"""Memory that is used again: results kept by key, and arrays for batches."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """Results by key; the longest unused are dropped when all together exceed `limit` bytes.

    Attributes:
        limit: Bytes that may be kept; a single larger result is kept alone.
        bytes: Bytes kept now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._clear()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._clear)  # another thread may have held the lock

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """Return the result kept under `key`, or else what `make` returns beside its size in bytes."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value, size = make()
        with self._lock:
            known = self._values.pop(key, None)  # another thread may have been faster
            self._values[key] = value, size
            self.bytes += size - (known[1] if known else 0)
            while self.bytes > self.limit and len(self._values) > 1:
                self.bytes -= self._values.popitem(last=False)[1][1]
        return value


class OutputPool:
    """Memory for batches. A large piece is used again once no array or tensor holds it.

    Fresh memory comes page by page, each with a fault: for a batch of images that takes longer than the copy.

    Attributes:
        large: Bytes from which on memory is used again.
        spare: Most pieces of each size that wait.
    """

    large, spare = 1 << 20, 8

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
        """Return an array as `np.empty` does."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if need < self.large:
            return np.empty(shape, dtype)
        free = self._free.setdefault(need, [])
        memory = free.pop() if free else bytearray(need)
        # Every array and tensor made of `flat` holds it, because its own memory is no array's.
        flat = np.frombuffer(memory, dtype)
        weakref.finalize(flat, self._put_back, free, memory).atexit = False
        return flat.reshape(shape)

    @classmethod
    def _put_back(cls, free: list[bytearray], memory: bytearray) -> None:
        if len(free) < cls.spare:
            free.append(memory)

    def __reduce__(self) -> tuple[type[OutputPool], tuple[()]]:
        """Start empty in another process."""
        return OutputPool, ()
