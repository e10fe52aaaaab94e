from __future__ import annotations

import pytest
from pydantic import ValidationError

from counterpoint.encoders.base import IMAGE_TOWERS
from counterpoint.encoders.towers import EncoderConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "convnet", "image_model": "RN50"}, "no meaning for image 'convnet'"),
        ({"image": "timm"}, "needs image_model"),
        ({"image": "open_clip"}, "needs image_model"),
        ({"image": "timm", "image_model": "test_vit", "text": "open_clip"}, "text half of an open_clip model"),
        (
            {"image": "open_clip", "image_model": "RN50", "text": "open_clip", "text_model": "x"},
            "text_model has no meaning",
        ),
        ({"freeze_text": True}, "MiniLM never trains"),
        ({"image": "vit"}, "image"),
        ({"image_size": 0}, "greater than 0"),
        ({"size": 64}, "Extra inputs are not permitted"),
    ],
)
def test_combinations_without_meaning_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EncoderConfig.model_validate(fields)


def test_every_image_kind_has_a_builder() -> None:
    kinds = EncoderConfig.model_json_schema()["properties"]["image"]["enum"]
    assert sorted(kinds) == sorted(IMAGE_TOWERS)


def test_json_round_trip() -> None:
    config = EncoderConfig(image="timm", image_model="test_vit", image_size=64, mean=(0.1, 0.2, 0.3))
    assert EncoderConfig.model_validate_json(config.model_dump_json()) == config
