"""The model card written beside saved weights."""

from __future__ import annotations

from huggingface_hub import ModelCard, ModelCardData

from counterpoint.encoders.config import EncoderConfig

__all__ = ["model_card"]

_TEMPLATE = """\
---
{{ card_data }}
---

# {{ title }}

A dual encoder of camera frames and instructions, written by
[Counterpoint](https://counterpoint.readthedocs.io).

```python
from counterpoint.encoders import DualEncoder

encoder = DualEncoder.from_pretrained("{{ repo_id }}")
# uint8 or float in [0, 1], [..., H, W, 3] -> [..., {{ config.embed_dim }}]
frames = encoder.encode_image(images)
# [1, {{ config.embed_dim }}]
text = encoder.encode_text(["open the drawer"])
```

## Architecture

| | |
|---|---|
| Image tower | {{ config.image }} {{ config.image_model }} |
| Text tower | {{ text_tower }} |
| Embedding | {{ config.embed_dim }} numbers, raw (not normalised) |
| Weights in `model.safetensors` | {{ "{:,}".format(size) }} numbers |
| Started from | {{ start }} |
{% if config.text == "minilm" %}
The sentence encoder is frozen and is **not** part of `model.safetensors`: it is loaded from
`{{ config.text_model }}`.
{% endif %}
## Preprocessing

Done by the encoder: pixels to [0, 1] by dtype, stretched to {{ config.image_size }} x {{ config.image_size }}
(bilinear, antialiased), minus {{ config.mean }}, divided by {{ config.std }}. Do not normalise before.

## Method

{{ method }}

## Training data

{{ data }}

## Results

{{ results }}
"""


def model_card(
    config: EncoderConfig,
    size: int,
    *,
    title: str = "Counterpoint dual encoder",
    start: str | None = None,
    repo_id: str = "path/or/hub-id",
    method: str = "Not stated.",
    data: str = "Not stated.",
    results: str = "None stated.",
    license: str | None = None,
) -> ModelCard:
    """The card of an encoder.

    Args:
        config: The resolved configuration.
        size: How many numbers the weight file holds.
        title: First heading.
        start: Where training started; when not given, what the configuration says.
        repo_id: What the usage example loads.
        method: Markdown: how it was trained, with the paper.
        data: Markdown: on what.
        results: Markdown: what was measured, with the command.
        license: Identifier of the weights' licence; left out when not given.
    """
    metadata = ModelCardData(
        library_name="counterpoint",
        license=license,
        pipeline_tag="robotics",
        tags=[
            "counterpoint",
            "robotics",
            "representation-learning",
            "contrastive-learning",
            "vision-language",
        ],
    )
    towers = {
        "minilm": f"{config.text_model} (frozen), learned linear map",
        "open_clip": f"that of {config.image_model}",
    }
    card: ModelCard = ModelCard.from_template(
        card_data=metadata,
        template_str=_TEMPLATE,
        config=config,
        size=size,
        text_tower=towers[config.text] + (" (frozen)" if config.freeze_text else ""),
        title=title,
        start=start or config.pretrained or "random weights",
        repo_id=repo_id,
        method=method,
        data=data,
        results=results,
    )
    return card
