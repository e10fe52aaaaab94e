"""LIBERO's transformer decoder (Liu et al., 2023, appendix on ResNet-T) one step, token and head at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.policies.heads import CausalDecoder

__all__ = ["decode"]


def decode(decoder: CausalDecoder, tokens: Tensor, valid: list[bool]) -> Tensor:
    """Tokens [H, M, E] of one window, without dropout; [H, M, E], with zeros at steps that are not valid."""
    steps, count, width = tokens.shape
    x = tokens.clone()
    for h in range(steps):
        for k in range(width // 2):
            angle = h / 10 ** (2 * k / width)
            x[h, :, k] += math.sin(angle)
            x[h, :, width // 2 + k] += math.cos(angle)
    here = [h for h in range(steps) if valid[h]]
    for layer in decoder.layers:
        parameters = dict(layer.named_parameters())
        weight = parameters["inputs.weight"]  # [3 heads E, E]
        heads = len(weight) // (3 * width)
        normal = functional.layer_norm(
            x, (width,), parameters["attention_norm.weight"], parameters["attention_norm.bias"]
        )
        attended = torch.zeros(steps, count, heads * width, dtype=x.dtype)
        for h in here:
            seen = torch.cat([normal[g] for g in here if g <= h])  # every token of this step and of earlier ones
            for m in range(count):
                for head in range(heads):
                    query, key, value = (weight[(part * heads + head) * width :][:width] for part in range(3))
                    scores = (seen @ key.T) @ (query @ normal[h, m]) / math.sqrt(width)
                    attended[h, m, head * width :][:width] = scores.softmax(0) @ (seen @ value.T)
        x = x + functional.linear(attended, parameters["outputs.0.weight"], parameters["outputs.0.bias"])
        normal = functional.layer_norm(
            x, (width,), parameters["feedforward_norm.weight"], parameters["feedforward_norm.bias"]
        )
        hidden = functional.gelu(
            functional.linear(normal, parameters["feedforward.0.weight"], parameters["feedforward.0.bias"])
        )
        x = x + functional.linear(hidden, parameters["feedforward.3.weight"], parameters["feedforward.3.bias"])
    return torch.where(torch.tensor(valid)[:, None, None], x, 0)
