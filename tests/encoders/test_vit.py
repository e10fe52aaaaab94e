from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder, ViTConfig
from counterpoint.errors import BadInputError

SMALL = ViTConfig(model="vit_tiny_patch16_224", patch=8, embed_dim=24, depth=2, heads=3)


def config(**changes: object) -> ObservationConfig:
    return ObservationConfig.model_validate({"kind": "vit", "size": 32, "stack": 1, "vit": SMALL, **changes})


def pictures(n: int, views: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (n, views, 32, 32, 3), dtype=torch.uint8)


def test_the_paper_s_encoder_is_vit_s_with_196_tokens() -> None:
    encoder = ObservationEncoder(ObservationConfig(kind="vit", size=224, stack=1))
    vit: Any = encoder.vits[0]
    assert encoder.embed_dim == 384
    assert sum(p.numel() for p in vit.parameters()) == 21_665_664  # ViT-S/16 without a classifier
    assert vit.patch_embed.num_patches == 196


def test_it_is_timm_s_model_on_pictures_in_minus_one_to_one() -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(config()).eval()
    frames = pictures(3)
    images = frames[:, 0].permute(0, 3, 1, 2) / 255 * 2 - 1
    torch.testing.assert_close(encoder(frames), encoder.vits[0](images))
    torch.testing.assert_close(encoder(frames), encoder(frames / 255), rtol=1e-5, atol=1e-6)


def test_each_camera_has_its_own() -> None:
    encoder = ObservationEncoder(config(cameras=2)).eval()
    assert len(encoder.vits) == 2
    assert encoder.embed_dim == 48
    frames = pictures(3, 2)
    together = encoder(frames)
    frames[:, 1] = 0
    assert torch.equal(encoder(frames)[:, :24], together[:, :24])
    assert not torch.equal(encoder(frames)[:, 24:], together[:, 24:])


def test_a_stack_s_frames_are_channels() -> None:
    encoder = ObservationEncoder(config(stack=3))
    vit: Any = encoder.vits[0]
    assert vit.patch_embed.proj.in_channels == 9
    assert encoder(pictures(2, 3)).shape == (2, 24)


def test_models_without_a_class_token_pool_as_timm_does() -> None:
    encoder = ObservationEncoder(
        config(vit=ViTConfig(model="vit_base_patch16_siglip_224", embed_dim=24, depth=1, heads=3))
    )
    assert encoder(pictures(2)).shape == (2, 24)


def test_saved_and_loaded(tmp_path: Path) -> None:
    encoder = ObservationEncoder(config(cameras=2)).eval()
    encoder.save_pretrained(tmp_path)
    again = ObservationEncoder.from_pretrained(tmp_path)
    frames = pictures(2, 2)
    assert torch.equal(encoder(frames), again(frames))
    assert again.config == encoder.config


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3
    )
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    encoder = ObservationEncoder(config(checkpoint=str(tmp_path / "vit.safetensors")))
    for mine, theirs in zip(encoder.vits[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vit": ViTConfig(model="vit_of_no_kind")}, "vit: found vit_of_no_kind"),
        ({"vit": ViTConfig(model="resnet18")}, "vit: found resnet18"),
        ({"embed_dim": 100}, "found 100; expected 24"),
    ],
)
def test_what_cannot_be_built_is_one_message(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        ObservationEncoder(config(**changes))


def test_settings_of_other_kinds_are_refused() -> None:
    with pytest.raises(ValidationError, match="centre has no meaning"):
        config(centre=True)
    with pytest.raises(ValidationError, match="vit is for kind 'vit'"):
        ObservationConfig(vit=SMALL)
    with pytest.raises(BadInputError, match="which has no tokens"):
        _ = ObservationEncoder(ObservationConfig()).vits
