from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from counterpoint.formats.lru import LRUCache


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60), st.integers(1, 100))
def test_no_more_is_kept_than_the_limit(calls: list[tuple[int, int]], limit: int) -> None:
    kept: LRUCache[int] = LRUCache(limit)
    sizes: dict[int, int] = {}
    for key, size in calls:
        known = sizes.setdefault(key, size)
        assert kept.get(key, lambda key=key, known=known: (key, known)) == key  # type: ignore[misc]
        assert kept.bytes <= limit or len(kept) == 1


def test_the_longest_unused_goes_first() -> None:
    kept: LRUCache[str] = LRUCache(limit=2)
    made: list[str] = []

    def get(key: str) -> None:
        kept.get(key, lambda: (made.append(key) or key, 1))  # type: ignore[func-returns-value]

    for key in "abacab":
        get(key)
    assert made == ["a", "b", "c", "b"]
