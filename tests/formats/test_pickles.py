from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats.pickles import _KNOWN, Recorded, load_pickle


class Camera:
    def __init__(self, name: str) -> None:
        self.name = name


def test_only_named_classes_are_read_and_without_their_methods(tmp_path: Path) -> None:
    file, own = tmp_path / "a.pkl", (Camera.__module__, "Camera")
    file.write_bytes(pickle.dumps({"camera": Camera("front"), "steps": np.arange(3)}))
    found = load_pickle(file, {own})
    assert isinstance(found["camera"], Recorded)
    assert found["camera"].name == "front"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.asarray(found["steps"]), np.arange(3))
    with pytest.raises(BadInputError, match=r"a pickle that needs .*Camera; expected numpy's arrays, plain values\."):
        load_pickle(file)


@pytest.mark.parametrize(
    ("code", "shape", "content"),
    [("f8", (3,), b"\0" * 16), ("f8", (-2,), b"\0" * 16), ("O8", (2,), b"\0" * 16), ("f8,", (2,), b"\0" * 16)],
)
def test_arrays_whose_bytes_do_not_fit_are_no_numbers(code: str, shape: tuple[int, ...], content: bytes) -> None:
    array, kind = _KNOWN["numpy.core.multiarray", "_reconstruct"](), _KNOWN["numpy", "dtype"](code)
    array.__setstate__((1, shape, kind, False, content))
    with pytest.raises(ValueError, match=r"bytes for|an array of"):
        np.asarray(array)


def test_early_protocols_make_known_objects_and_bytes_alone() -> None:
    assert _KNOWN["_codecs", "encode"]("\xe9", "latin1") == b"\xe9"
    with pytest.raises(pickle.UnpicklingError, match="encoding"):
        _KNOWN["_codecs", "encode"]("a", "rot13")
    with pytest.raises(pickle.UnpicklingError, match="an object of"):
        _KNOWN["copyreg", "_reconstructor"](dict, object, None)
