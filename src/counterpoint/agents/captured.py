"""One CUDA graph for a whole update: hundreds of small kernels launched at the cost of one.

An update of an agent is some hundred kernels of a few microseconds each, and to launch them one by one takes longer
than to run them. Everything an update writes (parameters, moments, gradients) keeps its place in memory, so that the
sequence can be recorded once and replayed on new inputs, which are copied to where the recorded ones were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

__all__ = ["CapturedUpdate"]

WARM_UPS = 3


class CapturedUpdate:
    """A function of tensors, run as it is three times (libraries choose their kernels then), recorded, then replayed.

    Args:
        function: Reads its arguments, changes the agent in place and returns scalars by name. It must not read a value
            back to the host, nor draw random numbers.
    """

    def __init__(self, function: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> None:
        self._function = function
        self._runs = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: dict[str, Tensor] = {}
        self._names: list[str] = []
        self._outputs = torch.empty(0)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run on new inputs of the shapes of the first ones."""
        if self._runs < WARM_UPS:
            self._runs += 1
            return self._beside(inputs)
        if self._graph is None:
            self._record(inputs)
        assert self._graph is not None
        for name, value in inputs.items():
            self._inputs[name].copy_(value, non_blocking=True)
        self._graph.replay()
        return dict(zip(self._names, self._outputs.clone().unbind(), strict=True))

    def _beside(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On a stream of its own, as the recording will be."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = self._function(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return found

    def _record(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self._function(self._inputs)
            self._names = list(found)
            self._outputs = torch.stack(list(found.values()))
        self._graph = graph
