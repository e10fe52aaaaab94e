from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from studies.fewshot.config import FewshotConfig, FewshotData
from tests.studies.fewshot_world import small_benchmark

CURL: dict[str, Any] = {"objective": {"name": "curl"}}
PRETRAINED = {"name": "p", "pretraining": "premier_taco"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    return small_benchmark(tmp_path_factory.mktemp("squares"))


def test_steps_are_the_suite_s_by_default() -> None:
    suites = get_args(FewshotData.model_fields["suite"].annotation)
    limits = {suite: FewshotData(suite=suite, unseen_tasks=("a",)).limit for suite in suites}
    assert limits == {"metaworld": 200, "dmc": 500, "robosuite": None, "libero": None, "robomimic": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "nobody"}, "reference"),
        ({"rows": [{"name": "a", "pretraining": "b"}], "reference": "a"}, "pretraining of a"),
        ({"rows": [{"name": "a"}, {"name": "a"}], "reference": "a"}, "names of their own"),
        ({"rows": [{"name": "a b"}], "reference": "a b"}, "letters"),
        ({"rows": [{"name": "a-b"}, {"name": "a/b"}], "reference": "a-b"}, "would both be a-b-top"),
        ({"pretrainings": {"a/b": CURL, "a-b": CURL}, "rows": [{"name": "a"}], "reference": "a"}, "would both"),
        ({"rows": [PRETRAINED | {"encoder": {"width": 8}}], "reference": "p"}, "belong to its pretraining"),
        ({"rows": [PRETRAINED | {"initialize_from": "x"}], "reference": "p"}, "belong to its pretraining"),
        ({"rows": [{"name": "a", "clone": {"cloning.freeze": True}}], "reference": "a"}, "cloning.freeze"),
        ({"rows": [{"name": "a", "clone": {"cloning": {"freeze": True}}}], "reference": "a"}, "cloning.freeze"),
        ({"clone": {"cloning": {"freeze": True}}}, "cloning.freeze"),
        ({"rows": [{"name": "a", "clone": {"seed": 3}}], "reference": "a"}, "seed"),
        ({"pretrainings": {"premier_taco": CURL | {"train": {"seed": 3}}}}, "seed"),
        ({"data": {"unseen_tasks": ["a"], "more_demonstrations": {"b": 9}}}, "unseen_tasks only, not of b"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_bad_configurations_are_told(config: FewshotConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FewshotConfig.model_validate(config.model_dump() | change)
