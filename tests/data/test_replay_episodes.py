from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from counterpoint.data.replay import EpisodeTable


@given(st.lists(st.integers(0, 3), max_size=300))
def test_the_table_is_a_queue(drops: list[int]) -> None:
    table, model = EpisodeTable(), list[tuple[int, int, int, int]]()
    for number, drop in enumerate(drops):
        table.append(3 * number, number + 1, number % 2 == 1, number**2)
        model.append((3 * number, number + 1, number % 2, number**2))
        count = min(drop, len(model)) if number % 5 == 0 else 0
        table.drop_oldest(count)
        del model[:count]
    assert len(table) == len(model)
    for place, field in enumerate(("start", "length", "terminated", "checksum")):
        assert table[field].tolist() == [row[place] for row in model]
    again = EpisodeTable.from_rows(json.loads(json.dumps(table.rows())))
    assert again.rows() == table.rows()
