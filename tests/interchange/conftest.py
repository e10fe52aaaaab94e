"""The real `lerobot` package, offline, with its caches in a folder of the run's own."""

from __future__ import annotations

import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="huggingface-")
os.environ["HF_HOME"] = _home.name
os.environ["HF_HUB_OFFLINE"] = "1"
