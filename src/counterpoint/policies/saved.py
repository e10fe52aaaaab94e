"""Any saved policy, whatever its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from counterpoint.encoders.hub import CONFIG
from counterpoint.errors import BadInputError
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.folder import policy_folder, read_tree

__all__ = ["SavedPolicy", "load_policy"]

SavedPolicy: TypeAlias = ClonedPolicy | DiffusionPolicy

_KINDS: dict[str, type[ClonedPolicy] | type[DiffusionPolicy]] = {"cloned": ClonedPolicy, "diffusion": DiffusionPolicy}


def load_policy(folder: str | Path, *, map_location: str = "cpu") -> SavedPolicy:
    """A saved policy of the kind that its `config.json` names, ready to act.

    Args:
        folder: Written by `save_pretrained`, or a run that holds one in `policy/`.
        map_location: Where it shall live.

    Raises:
        BadInputError: No policy there, a damaged one, or one of an unknown kind.
    """
    source = policy_folder(folder)
    kind = read_tree(source).get("kind", "cloned")  # policies that tell no kind are cloned
    if kind not in _KINDS:
        raise BadInputError(
            source / CONFIG, f"kind {kind!r}", f"one of {', '.join(_KINDS)}", "load it with the version that wrote it"
        )
    return _KINDS[kind].from_pretrained(source, map_location=map_location)
