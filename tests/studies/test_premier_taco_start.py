from __future__ import annotations

from counterpoint.encoders.observation import ObservationConfig
from studies.harness import load_preset
from studies.premier_taco_start import PremierTacoStartConfig, initial_encoder


def test_presets_compare_weights_shift_and_centring() -> None:
    config = load_preset("premier_taco_start", PremierTacoStartConfig, "cpu", {"data": "anywhere"})
    assert isinstance(config, PremierTacoStartConfig)
    assert config.seeds == 2
    factors = {
        (one.get("weights", "drq"), one.get("shift", 4), one.get("centre", False))
        for one in config.settings.values()
        if set(one) <= {"weights", "shift", "centre"}
    }
    assert len(factors) == 8


def test_torchs_weights_are_smaller() -> None:
    theirs, torchs = (
        initial_encoder(ObservationConfig(size=24, width=8), weights, 0).state_dict() for weights in ("drq", "torch")
    )
    name = "body.convnet.2.weight"
    assert theirs[name].norm() > 2 * torchs[name].norm()
    assert torchs["body.convnet.2.bias"].any()
