"""The model card written beside a saved observation encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

__all__ = ["observation_card"]

_TEMPLATE = """\
---
{{ card_data }}
---

# {{ title }}

An encoder of camera observations for control, written by
[Counterpoint](https://counterpoint.readthedocs.io).

```python
from counterpoint.encoders.observation import ObservationEncoder

encoder = ObservationEncoder.from_pretrained("{{ repo_id }}")
# uint8 or float in [0, 1], [N, {{ frames }}, {{ config.size }}, {{ config.size }}, 3] -> [N, {{ width }}]
state = encoder(observations{{ ", instructions" if film }})
```

## Architecture

| | |
|---|---|
| Kind | {{ config.kind }} {{ config.model }} |
| Observation | {{ config.stack }} frames, {{ config.cameras }} camera(s), {{ config.size }} x {{ config.size }} |
| Embedding | {{ width }} numbers |
| Weights in `model.safetensors` | {{ "{:,}".format(size) }} numbers |
| Started from | {{ start }} |
{% if film %}
The sentence encoder is frozen and is **not** part of `model.safetensors`: it is loaded from
`{{ config.text_model }}`.
{% endif %}
## Preprocessing

Done by the encoder: {{ preprocessing }} Do not normalise before.

## Method

{{ method }}

## Training data

{{ data }}

## Results

{{ results }}
"""

_PREPROCESSING = {
    "pretrained": "each frame is resized, cut and normalised as the authors of the model do it.",
    "centred": "the training frames' mean image is taken off, then their deviation divided out; both are in the "
    "weights.",
    "plain": "pixels in [0, 255] become x / 255 - 0.5.",
}


def observation_card(
    config: Mapping[str, Any],
    width: int,
    size: int,
    *,
    title: str = "Counterpoint observation encoder",
    start: str | None = None,
    repo_id: str = "path/or/hub-id",
    method: str = "Not stated.",
    data: str = "Not stated.",
    results: str = "None stated.",
    license: str | None = None,
) -> ModelCard:
    """The card of an observation encoder.

    Args:
        config: The resolved configuration, as a mapping.
        width: D.
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
        tags=["counterpoint", "robotics", "representation-learning", "contrastive-learning", "control"],
    )
    kind = "pretrained" if config["kind"] == "pretrained" else "centred" if config["centre"] else "plain"
    card: ModelCard = ModelCard.from_template(
        card_data=metadata,
        template_str=_TEMPLATE,
        config=config,
        frames=config["cameras"] * config["stack"],
        film=config["kind"] in ("resnet18_film", "libero"),
        width=width,
        size=size,
        preprocessing=_PREPROCESSING[kind],
        title=title,
        start=start or config["checkpoint"] or "random weights",
        repo_id=repo_id,
        method=method,
        data=data,
        results=results,
    )
    return card
