"""OpenAI's CLIP RN50, written plainly from the paper (Radford et al., 2021), as an oracle.

Parameters carry the names of OpenAI's released state dicts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample: nn.ModuleDict | None = None
        if stride > 1 or width_in != 4 * width:
            self.downsample = nn.ModuleDict(
                {"0": nn.Conv2d(width_in, 4 * width, 1, bias=False), "1": nn.BatchNorm2d(4 * width)}
            )

    def pool(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, self.stride) if self.stride > 1 else x

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(self.pool(y)))
        if self.downsample is not None:
            x = self.downsample["1"](self.downsample["0"](self.pool(x)))
        out: Tensor = (x + y).relu()
        return out


class AttentionPool(nn.Module):
    def __init__(self, cells: int, width: int, heads: int, out: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.randn(cells + 1, width) * width**-0.5)
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + self.positional_embedding
        n, cells, width = tokens.shape
        size = width // self.heads
        query = self.q_proj(tokens[:, 0]).reshape(n, self.heads, size)
        key = self.k_proj(tokens).reshape(n, cells, self.heads, size)
        value = self.v_proj(tokens).reshape(n, cells, self.heads, size)
        weight = (torch.einsum("nhs,nchs->nhc", query, key) * size**-0.5).softmax(dim=-1)
        pooled: Tensor = self.c_proj(torch.einsum("nhc,nchs->nhs", weight, value).reshape(n, width))
        return pooled


class ModifiedResNet(nn.Module):
    def __init__(self, layers: tuple[int, int, int, int], width: int, heads: int, size: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        width_in = width
        for stage, depth in enumerate(layers):
            blocks = []
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(width_in, width * 2**stage, stride))
                width_in = 4 * width * 2**stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.attnpool = AttentionPool((size // 32) ** 2, 32 * width, heads, out)

    def forward(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)).relu()
        x = nn.functional.avg_pool2d(x, 2)
        for i in (1, 2, 3, 4):
            x = getattr(self, f"layer{i}")(x)
        pooled: Tensor = self.attnpool(x)
        return pooled


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.gelu = QuickGELU()
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        future = torch.full((length, length), float("-inf")).triu(1)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=future, need_weights=False)[0]
        out: Tensor = x + self.mlp["c_proj"](self.gelu(self.mlp["c_fc"](self.ln_2(x))))
        return out


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*(ResidualAttentionBlock(width, heads) for _ in range(layers)))


class OpenAIClip(nn.Module):
    """RN50: 1024 dimensions, 224 px, 77 tokens of 49,408."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = ModifiedResNet((3, 4, 6, 3), width=64, heads=32, size=224, out=1024)
        self.token_embedding = nn.Embedding(49408, 512)
        self.positional_embedding = nn.Parameter(torch.randn(77, 512) * 0.01)
        self.transformer = Transformer(512, heads=8, layers=12)
        self.ln_final = nn.LayerNorm(512)
        self.text_projection = nn.Parameter(torch.randn(512, 1024) * 512**-0.5)

    def encode_image(self, images: Tensor) -> Tensor:
        encoded: Tensor = self.visual(images)
        return encoded

    def encode_text(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.positional_embedding
        x = self.ln_final(self.transformer.resblocks(x))
        # The end-of-text token has the highest number of all.
        ends = x[torch.arange(len(tokens)), tokens.argmax(dim=1)]
        projected: Tensor = ends @ self.text_projection
        return projected

    def released(self) -> dict[str, Tensor]:
        """The state dict as OpenAI's package holds it after `clip.load`, without `logit_scale`."""
        settings = {"input_resolution": 224, "context_length": 77, "vocab_size": 49408}
        return dict(self.state_dict()) | {name: torch.tensor(value) for name, value in settings.items()}


def released_clip(seed: int) -> OpenAIClip:
    """Random weights under which images and texts differ and no branch is silent."""
    torch.manual_seed(seed)
    model = OpenAIClip()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model.eval()
