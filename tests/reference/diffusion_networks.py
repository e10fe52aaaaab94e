"""Diffusion Policy's two networks, one number at a time, from their description: slow, plain, and for tests alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]


def step_waves(step: int, width: int) -> Tensor:
    """Sines, then cosines, of step x 10000^(-i / (width / 2 - 1))."""
    half = width // 2
    angles = [step * 10000 ** (-i / (half - 1)) for i in range(half)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


def convolve(x: Tensor, weights: Weights, name: str, stride: int = 1) -> Tensor:
    """A convolution of [channels, steps], its window centred, with zeros beyond the ends."""
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    size, length = kernel.shape[2], x.shape[1]
    made = []
    for centre in range(0, length, stride):
        total = bias.clone()
        for tap in range(size):
            place = centre + tap - size // 2
            if 0 <= place < length:
                total = total + kernel[:, :, tap] @ x[:, place]
        made.append(total)
    return torch.stack(made, dim=1)


def double(x: Tensor, weights: Weights, name: str) -> Tensor:
    """A transposed convolution: kernel 4, stride 2, one step cut from each end."""
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    length = x.shape[1]
    whole = torch.zeros(kernel.shape[1], 2 * length + 2)
    for place in range(length):
        for tap in range(4):
            whole[:, 2 * place + tap] += kernel[:, :, tap].T @ x[:, place]
    return whole[:, 1:-1] + bias[:, None]


def block(x: Tensor, weights: Weights, name: str, groups: int) -> Tensor:
    """Convolution, group normalisation, Mish."""
    x = convolve(x, weights, f"{name}.0")
    made = []
    for number, part in enumerate(x.chunk(groups)):
        rows = slice(number * len(part), (number + 1) * len(part))
        normal = (part - part.mean()) / (part.var(correction=0) + 1e-5).sqrt()
        made.append(normal * weights[f"{name}.1.weight"][rows, None] + weights[f"{name}.1.bias"][rows, None])
    return mish(torch.cat(made))


def residual(x: Tensor, features: Tensor, weights: Weights, name: str, groups: int) -> Tensor:
    film = linear(mish(features), weights, f"{name}.film")
    scale, bias = film[: len(film) // 2], film[len(film) // 2 :]
    inner = scale[:, None] * block(x, weights, f"{name}.first", groups) + bias[:, None]
    inner = block(inner, weights, f"{name}.second", groups)
    short = convolve(x, weights, f"{name}.shortcut") if f"{name}.shortcut.weight" in weights else x
    return inner + short


def unet(
    noisy: Tensor, step: int, condition: Tensor, weights: Weights, *, levels: int, groups: int, step_dim: int
) -> tuple[Tensor, Tensor]:
    """Of one sample [K, A] and its observations [To, O]: the output [K, A] and the bottleneck [M, k]."""
    embedded = linear(step_waves(step, step_dim), weights, "step_encoder.0")
    embedded = linear(mish(embedded), weights, "step_encoder.2")
    features = torch.cat([embedded, condition.flatten()])

    def pair(x: Tensor, name: str) -> Tensor:
        x = residual(x, features, weights, f"{name}.first", groups)
        return residual(x, features, weights, f"{name}.second", groups)

    x, kept = noisy.T, []
    for level in range(levels):
        x = pair(x, f"down.{level}")
        kept.append(x)
        if level < levels - 1:
            x = convolve(x, weights, f"shrink.{level}", stride=2)
    x = bottleneck = pair(x, "bottom")
    for level in range(levels - 1):
        x = pair(torch.cat([x, kept[levels - 1 - level]]), f"up.{level}")
        x = double(x, weights, f"grow.{level}")
    return convolve(block(x, weights, "last.0", groups), weights, "last.1").T, bottleneck


def attend(queries: Tensor, memory: Tensor, weights: Weights, name: str, heads: int, shift: int) -> Tensor:
    """Attention in which query t sees memory s where s <= t + shift."""
    width = queries.shape[1]
    size = width // heads
    matrices = weights[f"{name}.in_proj_weight"].chunk(3)
    biases = weights[f"{name}.in_proj_bias"].chunk(3)
    q, k, v = (
        torch.stack([m @ token + b for token in tokens])
        for tokens, m, b in zip((queries, memory, memory), matrices, biases, strict=True)
    )
    made = []
    for t in range(len(queries)):
        parts = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            seen = range(min(len(memory), t + shift + 1))
            scores = torch.stack([q[t, own] @ k[s, own] / math.sqrt(size) for s in seen])
            shares = torch.exp(scores) / torch.exp(scores).sum()
            parts.append(sum((shares[s] * v[s, own] for s in seen), torch.zeros(size)))
        made.append(linear(torch.cat(parts), weights, f"{name}.out_proj"))
    return torch.stack(made)


def norm(tokens: Tensor, weights: Weights, name: str) -> Tensor:
    centred = tokens - tokens.mean(1, keepdim=True)
    normal = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def transformer(noisy: Tensor, step: int, condition: Tensor, weights: Weights, *, layers: int, heads: int) -> Tensor:
    """Of one sample [K, A] and its observations [To, O]: the output [K, A], without dropout."""
    width = weights["action_position"].shape[1]
    memory = [step_waves(step, width), *(linear(seen, weights, "condition_token") for seen in condition)]
    memory = [token + place for token, place in zip(memory, weights["condition_position"], strict=True)]
    memory = [linear(mish(linear(token, weights, "memory.0")), weights, "memory.2") for token in memory]
    x = torch.stack([linear(action, weights, "action_token") for action in noisy]) + weights["action_position"]
    for layer in range(layers):
        name = f"decoder.{layer}"
        inner = norm(x, weights, f"{name}.norm1")
        x = x + attend(inner, inner, weights, f"{name}.self_attn", heads, 0)
        inner = norm(x, weights, f"{name}.norm2")
        x = x + attend(inner, torch.stack(memory), weights, f"{name}.multihead_attn", heads, 1)
        inner = norm(x, weights, f"{name}.norm3")
        x = x + torch.stack(
            [
                linear(functional.gelu(linear(token, weights, f"{name}.linear1")), weights, f"{name}.linear2")
                for token in inner
            ]
        )
    return torch.stack([linear(token, weights, "last") for token in norm(x, weights, "norm")])
