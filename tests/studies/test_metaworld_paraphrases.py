from __future__ import annotations

import re

from counterpoint.envs.metaworld.env import DEFAULT_TASKS, INSTRUCTIONS
from studies.metaworld_paraphrases import PARAPHRASES, help_me, please


def test_sentences_fit_into_the_conversational_styles() -> None:
    for sentence in (*INSTRUCTIONS.values(), *(p for ps in PARAPHRASES.values() for p in ps)):
        assert re.fullmatch(r"[a-z][a-z', ]+[a-z]", sentence), sentence
        assert 2 <= len(sentence.split()) <= 14, sentence


def test_conversational_styles() -> None:
    assert please("open the drawer") == "Please open the drawer for me."
    assert help_me("open the drawer") == "Help me open the drawer."


def test_paraphrases_are_unseen_and_belong_to_one_task() -> None:
    assert set(PARAPHRASES) == set(DEFAULT_TASKS)
    assert len(DEFAULT_TASKS) == 15
    every = [paraphrase for paraphrases in PARAPHRASES.values() for paraphrase in paraphrases]
    assert all(len(paraphrases) >= 3 for paraphrases in PARAPHRASES.values())
    assert len(set(every)) == len(every)
    assert not set(every) & set(INSTRUCTIONS.values())
