from __future__ import annotations

import re

from counterpoint.envs.metaworld.env import DEFAULT_TASKS, INSTRUCTIONS
from studies.harness import presets

PARAPHRASES = presets("metaworld_rewards")["cpu"]["paraphrases"]


def test_sentences_are_short_and_plain() -> None:
    for sentence in (*INSTRUCTIONS.values(), *(p for ps in PARAPHRASES.values() for p in ps)):
        assert re.fullmatch(r"[a-z][a-z', ]+[a-z]", sentence), sentence
        assert 2 <= len(sentence.split()) <= 14, sentence


def test_paraphrases_are_unseen_and_belong_to_one_task() -> None:
    assert set(PARAPHRASES) == set(DEFAULT_TASKS)
    assert len(DEFAULT_TASKS) == 15
    every = [paraphrase for paraphrases in PARAPHRASES.values() for paraphrase in paraphrases]
    assert all(len(paraphrases) >= 3 for paraphrases in PARAPHRASES.values())
    assert len(set(every)) == len(every)
    assert not set(every) & set(INSTRUCTIONS.values())
