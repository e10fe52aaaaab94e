"""Lazy tables: each name stands for an object, which is imported when the name is looked up.

Other packages extend a table by entry points. For example, entry points of the group `counterpoint.formats` add formats
of data sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError, require_known


def imported(place: str) -> Any:
    """Return the object at "package.module:attribute", imported now."""
    return EntryPoint("", place, "").load()


class LazyTable(Mapping[str, Any]):
    """A table from names to objects, each imported on first use.

    The library's own names come first. A package cannot replace them: an entry point with one of these names is
    ignored.

    Args:
        what: The kind of object for messages, such as "environment suite".
        own: The library's own objects: "package.module:attribute" by name.
        group: The group of entry points that extend the table; by default there is none.
    """

    def __init__(self, what: str, own: Mapping[str, str], group: str = "") -> None:
        self.what, self.group = what, group
        self._own: dict[str, Any] = dict(own)

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by name."""
        found = entry_points(group=self.group) if self.group else ()
        return {point.name: point for point in found if point.name not in self._own}

    def __setitem__(self, name: str, thing: Any) -> None:
        """Add an object of the running program under a name."""
        self._own[name] = thing

    def __getitem__(self, name: str) -> Any:
        """Return the object of a name, imported now.

        Raises:
            KeyError: If the name is unknown.
            BadInputError: If the package that adds the name cannot be imported.
        """
        if name in self._own:
            thing = self._own[name]
            return imported(thing) if isinstance(thing, str) else thing
        point = self._others[name]
        try:
            return point.load()
        except Exception as error:  # importing a module may raise anything
            package = point.dist.name if point.dist else "an installed package"
            where, found = f"{self.what} {name!r} of {package}", f"{point.value} ({type(error).__name__}: {error})"
            hint = f"repair or uninstall {package}"
            raise BadInputError(where, found, "an object that can be imported", hint) from error

    def __iter__(self) -> Iterator[str]:
        """Yield the library's names, then those of other packages."""
        yield from self._own
        yield from self._others

    def __len__(self) -> int:
        return len(self._own) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._others

    def find(self, name: object, where: str | Path, found: str | None = None) -> Any:
        """Return the object of a name that a user gave.

        Args:
            name: The name.
            where: The file, key or argument that holds it.
            found: Description of the name for the message; by default the kind of object (`what`) and the name.

        Raises:
            BadInputError: If the name is unknown (the nearest known name is suggested), or its package cannot be
                imported.
        """
        require_known(name, self, where, found or f"{self.what} {name!r}")
        return self[str(name)]
