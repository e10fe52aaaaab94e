"""Files of the layouts that VIP's and R3M's authors released, with random weights, and their networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models, transforms


def authors_resnet(name: str) -> nn.Module:
    """The network of a released model, with statistics of batch normalisation that no network begins with."""
    depth = {"r3m-34": 34, "r3m-18": 18}.get(name, 50)
    torch.manual_seed(depth)
    network: Any = getattr(models, f"resnet{depth}")(weights=None)
    network.fc = nn.Linear(2048, 1024) if name == "vip" else nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.8, 1.2)
    found: nn.Module = network.eval()
    return found


def write_released(name: str, path: Path) -> nn.Module:
    """Write a file as `train_vip.py` or R3M's `train_representation.py` does, and return its network."""
    network = authors_resnet(name)
    weights = {f"module.convnet.{key}": value for key, value in network.state_dict().items()}
    if name != "vip":
        weights |= {"module.lang_enc.model.embeddings.word_embeddings.weight": torch.zeros(3, 2)}
        weights |= {"module.lang_rew.pred.0.weight": torch.zeros(4, 2)}
    torch.save({"vip" if name == "vip" else "r3m": weights, "global_step": 1_000_000}, path)
    return network


def as_the_authors_embed(network: nn.Module, frames: Tensor) -> Tensor:
    """VIP's and R3M's preprocessing and network, for frames uint8 [T, H, W, 3]."""
    images = frames.permute(0, 3, 1, 2).float()
    steps: list[Any] = [transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])]
    if images.shape[1:] != (3, 224, 224):
        steps = [transforms.Resize(256), transforms.CenterCrop(224), *steps]
    with torch.no_grad():
        embedded: Tensor = network(nn.Sequential(*steps)(images / 255.0))
    return embedded
