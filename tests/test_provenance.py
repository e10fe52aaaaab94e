from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint import provenance


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n" * 2,
            "AMD EPYC (family 26, model 2)",
        ),
        ("processor\t: 0\nmodel name\t: Cortex\n", "Cortex"),
    ],
)
def test_a_processor_has_its_generation(text: str, wanted: str, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert provenance._cpu(info) == wanted


@pytest.mark.parametrize("text", [None, "Hardware : board\n"])
def test_a_processor_without_a_name_is_called_what_python_calls_it(text: str | None, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text)
    assert provenance._cpu(info)
