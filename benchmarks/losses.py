"""Time of the losses, forward and backward on one thread, compared with the authors' forms and with a whole step.

    OMP_NUM_THREADS=1 python benchmarks/losses.py [--rounds 5] [--out benchmarks/results/losses.json]

Numbers are medians of processor milliseconds over rounds in which our form and the authors' form take turns, on one set
of random float32 inputs, after one warm-up run each. Both forms must first agree in value and gradient, in double
precision.

- VLO + bridge: the authors' form is a loop over videos (`frames[b]`) and, within each video, over positives.
- DecisionNCE: compared with two bare products [B, D] x [D, B] and their backward pass.
- ICon: the authors' form samples keys anew for every layer and computes the contrast without optimisations.

A share is the time of the loss divided by the time of the forward and backward pass of the recipe's image encoder on
the batch's images. (Premier-TACO's pass has an anchor with gradient and two observations without.) This pass is
measured on eight images and scaled to the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import timm
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint import objectives as library
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.base import other_rows
from counterpoint.objectives.icon import farthest_point_sampling, grid_positions
from counterpoint.objectives.premier_taco import premier_taco_window_loss
from counterpoint.objectives.r3m import LanguageReward
from measuring import medians, parser, write

TEMPERATURE = 0.01
D = 1024  # of CLIP's ResNet-50
Loss = Callable[..., Tensor]


def actol_video(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    """Return one video's L_VLO + L_BB in its log form, computed like the authors' code, by a loop over positives."""
    T = len(frames)
    similarity = functional.normalize(frames, dim=1) @ functional.normalize(text, dim=0)
    others = ~torch.eye(T, dtype=torch.bool)
    score = -(similarity[:, None] - similarity).abs()[others].view(T, T - 1) / TEMPERATURE
    distance = (times[:, None] - times).abs()[others].view(T, T - 1)
    greatest = score.max(dim=1, keepdim=True).values.detach()
    e = (score - greatest).exp()
    order = score.new_zeros(())
    for j in range(T - 1):
        negatives = (distance >= distance[:, j : j + 1]).to(score.dtype)
        denominator = (negatives * e).sum(1).log() + greatest[:, 0]
        order = order - (score[:, j] - denominator).sum()
    times = times.to(frames.dtype)
    share = ((times - times[0]) / (times[-1] - times[0]))[1:-1]
    variance = share * (times[-1] - times[1:-1])
    mean = frames[0] + share[:, None] * (frames[-1] - frames[0])
    gap = ((frames[1:-1] - mean) ** 2).sum(1) / (torch.log(1 + 2 * variance) + 1e-6)
    return order / (T * (T - 1)) + gap.mean()


def authors_actol(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    return torch.stack([actol_video(frames[b], text[b], times[b]) for b in range(len(frames))]).mean()


def actol(frames: Tensor, text: Tensor, times: Tensor) -> Tensor:
    order = library.vlo_loss(frames, text, times, temperature=TEMPERATURE)
    return order + library.brownian_bridge_loss(frames, times, form="log_variance")


def two_products(frames: Tensor, text: Tensor) -> Tensor:
    return (frames[:, 0] @ text.T).sum() + (frames[:, 1] @ text.T).sum()


def authors_keys(mask: Tensor, count: int, side: int) -> Tensor:
    """Return keys by farthest point sampling of float masks [n, P], from one random order of tokens for the batch."""
    n, P = mask.shape
    order = torch.randperm(P)
    locations = grid_positions(side, side).to(mask.dtype)[order].expand(n, P, 2)
    allowed, images = mask[:, order], torch.arange(n)
    nearest, index = mask.new_full((n, P), torch.inf), mask[:, order].argsort(dim=1, descending=True)[:, 0]
    keys = [index]
    while len(keys) < count:
        distance = torch.cdist(locations, locations[images, index][:, None], p=1)[..., 0]
        nearest = torch.minimum(nearest, distance)
        index = (nearest * allowed).argmax(1)
        keys.append(index)
    return order[torch.stack(keys, 1)]


def authors_icon(tokens: Any, mask: Tensor, agent: Tensor | None = None, environment: Tensor | None = None) -> Tensor:
    """Return the authors' ICon loss of tokens [L, n, P, D]; if no keys are given, they are sampled for every layer."""
    side, losses = round(mask.shape[1] ** 0.5), []
    inside = mask.to(tokens[0].dtype)

    def contrast(query: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        query, positive, negative = (functional.normalize(x, dim=-1) for x in (query, positive, negative))
        right = torch.einsum("nd,npd->np", query, positive) / 0.3
        wrong = torch.einsum("nd,nmd->nm", query, negative) / 0.3
        logits = torch.cat([right[..., None], wrong[:, None].expand(-1, right.shape[1], -1)], -1)
        return functional.cross_entropy(logits.flatten(0, 1), torch.zeros(right.numel(), dtype=torch.int64))

    for x in tokens:
        sides = [(inside, agent, 10), (1 - inside, environment, 50)]
        keys = [authors_keys(own, count, side) if given is None else given for own, given, count in sides]
        k_a, k_e = (x.gather(1, own[..., None].expand(-1, -1, x.shape[-1])) for own in keys)
        q_a, q_e = ((x * own[..., None]).sum(1) / own.sum(1, keepdim=True) for own, _, _ in sides)
        losses.append(contrast(q_a, k_a, k_e) + contrast(q_e, k_e, k_a))
    weights = (0.1 * torch.arange(len(tokens), dtype=tokens[0].dtype)).softmax(0)
    return weights @ torch.stack(losses)


def icon(tokens: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return the library's loss with its own sampling of keys."""
    side = round(mask.shape[1] ** 0.5)
    positions = grid_positions(side, side)
    keys = [farthest_point_sampling(own, count, positions=positions) for own, count in ((mask, 10), (~mask, 50))]
    return library.icon_loss(tokens, mask, *keys)


def passes(loss: Loss, leaves: tuple[Tensor, ...], *constants: Any) -> Callable[[], object]:
    """Return a function that runs `loss` forward and backward."""
    return lambda: torch.autograd.grad(loss(*leaves, *constants), leaves)


def agree(ours: Loss, theirs: Loss, leaves: tuple[Tensor, ...], *constants: Any) -> None:
    """Raise an error if the two forms differ in value or gradient."""
    wide = tuple(x.detach().double().requires_grad_() for x in leaves)
    values = [form(*wide, *constants) for form in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(value, wide) for value in values), rtol=1e-7, atol=1e-10)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def image_ms(model: str, rounds: int) -> float:
    """Return the time of an image encoder's forward and backward pass for one image of 224 pixels."""
    vit, images = timm.create_model(model, num_classes=0), torch.randn(8, 3, 224, 224)
    return medians(rounds, step=lambda: vit(images).square().mean().backward())["step"] / 8


def triple_ms(rounds: int) -> float:
    """Return the encoder's time in a step of Premier-TACO for one anchor and its two observations of 9 x 84 x 84."""
    encoder, images = ObservationEncoder(ObservationConfig()), torch.randint(256, (8, 3, 84, 84, 3), dtype=torch.uint8)

    def step() -> None:
        torch.autograd.backward([encoder(images).square().mean()])
        with torch.no_grad():
            encoder(images.repeat(2, 1, 1, 1, 1))

    return medians(rounds, step=step)["step"] / 8


def baseline(name: str, B: int, F: int) -> Callable[[], object]:
    """Return a function that runs a baseline's loss forward and backward."""
    frames, text, rewards = leaf(B, F, D), leaf(B, D), torch.full((B,), -1.0)
    rows, reward = other_rows(torch.arange(B), 15), LanguageReward(D, D)
    negatives: dict[str, Any] = {"language_negatives": rows[:9].view(3, 3, B), "time_negatives": rows[9:].view(3, 2, B)}
    losses: dict[str, Loss] = {
        "clip_goal": lambda x, y: library.clip_goal_loss(x[:, 0], y),
        "liv": lambda x, y: library.liv_loss(x, y, rewards, image_negatives=rows[:3], text_negatives=rows[3:6]),
        "vip": lambda x: library.vip_loss(x, rewards, negatives=rows[:3]),
        "r3m": lambda x, y: library.r3m_loss(reward.logit, x, y, **negatives),
        "tcn": lambda x: library.tcn_loss(x[:, 0], x[:, 1], x[:, 2:]),
    }
    return passes(losses[name], (frames,) if name in ("vip", "tcn") else (frames, text))


def measure(rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    resnet, vit = image_ms("resnet50", 2), image_ms("vit_small_patch16_224", 2)
    rows: list[dict[str, Any]] = []

    def add(name: str, size: str, images: float, runs: dict[str, Callable[[], object]]) -> None:
        found = medians(rounds, **runs)
        row = {"loss": name, "size": size, "ms": round(found["ours"], 2)}
        if "theirs" in found:
            row |= {"theirs_ms": round(found["theirs"], 1), "ratio": round(found["theirs"] / found["ours"], 2)}
        rows.append(row | ({"share_of_step": round(found["ours"] / images, 6)} if images else {}))
        print(rows[-1], flush=True)

    for T in (10, 32, 64):
        frames, text = leaf(128, T, D), leaf(128, D)
        times = torch.rand(128, 300).argsort(1)[:, :T].sort(1).values
        agree(actol, authors_actol, (frames[:8], text[:8]), times[:8])
        forms = {"ours": actol, "theirs": authors_actol}
        runs = {name: passes(form, (frames, text), times) for name, form in forms.items()}
        add("VLO + bridge", f"B=128, T={T}, D={D}", 128 * T * resnet, runs)
    frames, text = leaf(1024, 2, D), leaf(1024, D)
    for name, loss in (("decisionnce_p", library.decisionnce_p_loss), ("decisionnce_t", library.decisionnce_t_loss)):
        runs = {"ours": passes(loss, (frames, text)), "theirs": passes(two_products, (frames, text))}
        add(name, f"B=1024, F=2, D={D}", 2048 * resnet, runs)
    mask = torch.zeros(128, 14, 14, dtype=torch.bool)
    mask[:, 3:10, 3:10] = True
    mask, tokens, few = mask.flatten(1), tuple(leaf(128, 196, 384) for _ in range(12)), leaf(2, 4, 196, 8)
    positions = grid_positions(14, 14)
    keys = [farthest_point_sampling(own[:4], count, positions=positions) for own, count in ((mask, 10), (~mask, 50))]
    agree(library.icon_loss, authors_icon, (few,), mask[:4], *keys)
    runs = {
        "ours": passes(lambda *x: icon(x, mask), tokens),
        "theirs": passes(lambda *x: authors_icon(x, mask), tokens),
    }
    add("icon", "128 images, 196 tokens of 384, 12 layers", 128 * vit, runs)
    for name, B, F in (("clip_goal", 1024, 1), ("liv", 512, 5), ("vip", 32, 4), ("r3m", 16, 5), ("tcn", 16, 6)):
        add(name, f"B={B}, F={F}, D={D}", B * F * resnet, {"ours": baseline(name, B, F)})
    g, valid = (leaf(4096, 100), leaf(4096, 100), leaf(4096, 1, 100)), torch.ones(4096, 1, dtype=torch.bool)
    runs = {"ours": passes(lambda *x: premier_taco_window_loss(*x, valid=valid), g)}
    add("premier_taco", "B=4096, D=100", 4096 * triple_ms(2), runs)
    logits = tuple(leaf(256, 256, 2) for _ in range(2))
    runs = {"ours": passes(lambda a, b: library.td_infonce_loss(a, b, b, discount=0.99), logits)}
    add("td_infonce", "B=256, twins", 0, runs)
    return rows


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    head = ["loss", "size", "ours, ms", "reference, ms", "reference / ours", "share of the step"]
    share = [f"{100 * row['share_of_step']:.3g} %" if "share_of_step" in row else "" for row in rows]
    cells = [[row["loss"], row["size"], row["ms"], row.get("theirs_ms", ""), row.get("ratio", "")] for row in rows]
    return {"head": head, "rows": [[*map(str, own), part] for own, part in zip(cells, share, strict=True)]}


def main() -> None:
    options = parser(5).parse_args()
    torch.set_num_threads(1)
    rows = measure(options.rounds)
    write("losses", {"threads": 1, "losses": rows, "tables": {"losses": table(rows)}}, options.out)


if __name__ == "__main__":
    main()
