"""A cache of recently used results with a limit in bytes, or in the number of results if each counts as 1."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """A cache of results by key; when they exceed `limit` bytes in total, the least recently used are dropped.

    Attributes:
        limit: Maximum number of bytes kept; a larger result is kept as the only one.
        bytes: The number of bytes kept now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._clear()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._clear)  # another thread may have held the lock

    def _clear(self) -> None:
        self._inherited = getattr(self, "_values", None)  # so that a fork closes none of its parent's files
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """Return the result kept under `key`, or the result of `make`, which returns a result and its size in bytes."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value, size = make()
        with self._lock:
            known = self._values.pop(key, None)  # another thread may have made it in the meantime
            self._values[key] = value, size
            self.bytes += size - (known[1] if known else 0)
            while self.bytes > self.limit and len(self._values) > 1:
                self.bytes -= self._values.popitem(last=False)[1][1]
        return value

    def drop(self, key: Hashable) -> None:
        """Forget the result kept under `key`, if there is one."""
        with self._lock:
            self.bytes -= self._values.pop(key, (None, 0))[1]
