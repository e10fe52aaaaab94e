"""Batches of several loaders, side by side: a policy's, and those of an objective that trains along with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from counterpoint.data.nstep_loader import NStepLoader

__all__ = ["JointLoader"]


class JointLoader:
    """Serves the batches of one loader with those of others beside them, under their names.

    Key `frames` of the loader `curl` becomes `curl.frames`. Each loader draws for itself, so that a term more or less
    leaves the other batches as they are.

    Args:
        main: Whose keys stay as they are, and whose passes count.
        others: Name -> loader, of the same batch size.
    """

    def __init__(self, main: NStepLoader, others: Mapping[str, NStepLoader]) -> None:
        self._main, self._others = main, dict(others)

    @property
    def epoch_size(self) -> int:
        """Samples of one pass of the main loader."""
        return self._main.epoch_size

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Batches number `start` to `stop - 1`."""
        streams = [loader.batches(start, stop) for loader in self._others.values()]
        for batch, *beside in zip(self._main.batches(start, stop), *streams, strict=True):
            for name, part in zip(self._others, beside, strict=True):
                batch |= {f"{name}.{key}": value for key, value in part.items()}
            yield batch
