"""The origin of a result: commit, versions and hardware, written into every run and every result file."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "counterpoint", "torch", "numpy", "av", "pyarrow", "accelerate", "open_clip_torch", "timm",
    "sentence-transformers", "metaworld", "mujoco", "gymnasium", "gymnasium-robotics", "minari",
    "ogbench", "scipy", "lerobot", "jax",
)  # fmt: skip


_downloads: dict[str, str] = {}


def note_download(name: str, revision: str) -> None:
    """Record weights that this process took: the commit of a Hub repository, or the digest of a released file."""
    _downloads[name] = revision


def provenance() -> dict[str, Any]:
    """Return the commit, True if the tree differs from it, package versions, downloads, Python and hardware."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "downloads": dict(_downloads),
        "python": platform.python_version(),
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "accelerator": _accelerator()},
    }


def _git(*arguments: str) -> str | None:
    """Return the output of git in this file's folder; `None` outside a checkout."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name with the numbers of its generation, because virtual machines name only the brand."""
    lines = info.read_text().splitlines() if info.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    numbers = [f"{name} {fields[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in fields]
    return fields["model name"] + (f" ({', '.join(numbers)})" if numbers else "")


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
