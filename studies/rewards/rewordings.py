"""Other wordings of an instruction: the two of AcTOL's section 5.6, and twenty more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

SYNONYMS = {
    "pick up": "lift",
    "place": "put",
    "put": "place",
    "move": "shift",
    "fold": "double over",
    "flip": "turn over",
    "open": "pull open",
    "close": "shut",
    "turn on": "switch on",
    "turn off": "switch off",
    "slide": "push",
}
"""Words and their synonyms."""


def synonym(text: str) -> str:
    """Return the text with the first word or words that have a synonym replaced; the text itself if none has."""
    for word in sorted(SYNONYMS, key=len, reverse=True):
        if re.search(rf"\b{word}\b", text):
            return re.sub(rf"\b{word}\b", SYNONYMS[word], text, count=1)
    return text


def last_part_first(text: str) -> str:
    """Move the last phrase of place or direction to the front: "on the plate, place the cup"."""
    found = list(re.finditer(r"\b(?:from|into|onto|on|in|out|under)\b", text))
    at = found[0].start() if found and found[0].start() > 0 else 0
    return f"{text[at:]}, {text[:at].strip()}" if at else f"now, {text}"


def _at(share: float, change: Callable[[str, int], str]) -> Callable[[str], str]:
    """Return a function that changes a text at the letter nearest to a share of its length, inside a word."""

    def changed(text: str) -> str:
        inside = [n for n in range(1, len(text) - 1) if text[n - 1 : n + 2].isalpha()]
        return change(text, inside[int(share * (len(inside) - 1))]) if inside else text

    return changed


def _template(words: str) -> Callable[[str], str]:
    return lambda text: words.format(action=text)


PAPER: Mapping[str, Callable[[str], str]] = {
    "please for me": _template("Please {action} for me."),
    "help me": _template("Help me {action}."),
}
"""The rewordings of AcTOL's Table 2."""

REWORDINGS: Mapping[str, Mapping[str, Callable[[str], str]]] = {
    "the paper's": PAPER,
    "politeness": {
        "please": _template("please {action}"),
        "please at the end": _template("{action}, please"),
        "could you": _template("Could you {action}?"),
        "would you be so kind": _template("Would you be so kind as to {action}?"),
        "thank you": _template("{action}. Thank you!"),
    },
    "address": {
        "robot": _template("Hey robot, {action}!"),
        "task": _template("Your task is to {action}."),
        "should": _template("The robot should {action}."),
        "want": _template("I want you to {action} now."),
    },
    "synonyms": {
        "synonym": synonym,
        "try": _template("try to {action}"),
        "make sure": _template("make sure to {action}"),
    },
    "order and form": {
        "last part first": last_part_first,
        "no articles": lambda text: re.sub(r"\b(?:the|a|an) ", "", text),
        "capitals": str.upper,
        "full stop": _template("{action}."),
    },
    "typos": {
        "letters swapped": _at(0.3, lambda text, n: text[:n] + text[n + 1] + text[n] + text[n + 2 :]),
        "letter missing": _at(0.5, lambda text, n: text[:n] + text[n + 1 :]),
        "letter doubled": _at(0.7, lambda text, n: text[:n] + text[n] + text[n:]),
        "blank missing": lambda text: text.replace(" ", "", 1),
    },
}
"""By kind and name, a function that returns an instruction in other words."""


HEADS: Mapping[str, str] = {
    "the paper's": "AcTOL's two rewordings",
    "address": "addressed to someone",
    "order and form": "word order and form",
}
"""Heads of tables for kinds of rewordings whose names do not explain themselves."""


def reworded(text: str) -> dict[str, dict[str, str]]:
    """Return the instruction in other words, by kind and name."""
    return {kind: {name: change(text) for name, change in ways.items()} for kind, ways in REWORDINGS.items()}
