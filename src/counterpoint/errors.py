"""The one kind of error users meet: what is wrong, where, what was expected, and how to mend it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BadInputError", "MissingExtraError"]


class BadInputError(ValueError):
    """Input the library cannot accept, told in one message.

    The command line prints the message and exits with code 2; from Python it is a `ValueError`.

    Args:
        where: The file, key or argument at fault.
        found: What stands there.
        expected: What should stand there.
        mend: What the user can do about it.
    """

    def __init__(self, where: str | Path, *, found: str, expected: str, mend: str) -> None:
        self.where, self.found, self.expected, self.mend = str(where), found, expected, mend
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; expected {self.expected}. Mend: {self.mend}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts, so that the error crosses process borders whole."""
        return _rebuild, (self.where, self.found, self.expected, self.mend)


def _rebuild(where: str, found: str, expected: str, mend: str) -> BadInputError:
    return BadInputError(where, found=found, expected=expected, mend=mend)


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that brings it.

    Args:
        package: The package that could not be imported.
        extra: The extra of `counterpoint` that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Mend: pip install 'counterpoint[{extra}]'")
