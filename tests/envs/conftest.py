from __future__ import annotations

import pytest

from counterpoint.envs.rendering import choose_backend

choose_backend()  # before any test imports a simulator


@pytest.fixture(scope="session")
def simulator() -> None:
    pytest.importorskip("metaworld", reason="needs the extra `sim`")
