"""What is installed: the lock and the constraints name the same versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_lock_holds_the_versions_of_the_constraints() -> None:
    locked: dict[str, set[str]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]:
        locked.setdefault(package["name"], set()).add(package.get("version", ""))
    pins = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M)
    assert len(pins) > 5
    assert [pin for pin in pins if pin[1] not in locked.get(pin[0].replace("_", "-"), ())] == []
