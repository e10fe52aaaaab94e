"""The table of a few-shot benchmark in Markdown, for pages and terminals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.fewshot.summary import score_titles
from studies.harness import markdown


def tables(result: Mapping[str, Any]) -> str:
    """A table for each kind of score, then how sure the reference's lead is, and what pretraining came to.

    Args:
        result: What `fewshot.json` holds.
    """
    config, kinds = result["config"], score_titles(result["curves"])
    parts = [
        f"**{config['title']}**: {result['score']} on unseen tasks, {config['data']['demonstrations']} demonstrations, "
        f"{config['seeds']} seeds, {config['evaluation']['episodes']} episodes an evaluation."
    ]
    parts += [f"{title.capitalize()}:\n\n{_scores(result, kind)}" for kind, title in kinds.items()]
    parts.append(
        "A task's interval pools the episodes of all seeds (95 %); that of the best three does not account for their "
        "choice. IQM: interquartile mean over tasks and seeds, stratified bootstrap over seeds, "
        f"of which there are only {config['seeds']}."
    )
    if centring := _centring(config):
        parts.append(centring)
    if result["improvement"]["last"]:
        parts.append(f"Probability that {config['reference']} is better:\n\n{_improvement(result, kinds)}")
    if result["pretraining"]:
        parts.append(f"Pretraining, at its end:\n\n{_pretraining(result)}")
    parts += [f"Note: {message}." for message in result.get("warnings", [])]
    return "\n\n".join(parts) + "\n"


def _scores(result: Mapping[str, Any], kind: str) -> str:
    tasks = list(result["config"]["data"]["unseen_tasks"])
    rows = []
    for row, cells in result["table"].items():
        whole = result["aggregate"][kind][row]
        numbers = [_interval(cells[task][kind], "score") for task in tasks]
        rows.append([row, *numbers, f"{whole['mean']['value']:.2f}", _interval(whole["iqm"], "value")])
    return markdown(["method", *tasks, "mean", "IQM"], rows)


def _centring(config: Mapping[str, Any]) -> str:
    """What the rows' frames are centred on, where they are: not the same frames for all."""
    demonstrations: list[str] = []
    pretraining: list[str] = []
    for row in config["rows"]:
        run = config["pretrainings"].get(row["pretraining"])
        settings = (row if run is None else run)["encoder"]
        started = row["initialize_from"] if run is None else run["initialize_from"]
        if settings.get("centre", config["encoder"]["centre"]) and started is None:
            (demonstrations if run is None else pretraining).append(row["name"])
    told = [
        f"those of {', '.join(rows)} on {frames}"
        for rows, frames in ((demonstrations, "their demonstrations"), (pretraining, "the pretraining data's frames"))
        if rows
    ]
    return f"Images are centred: {'; '.join(told)}." if told else ""


def _improvement(result: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    rows = [
        [f"than {row}", *(_interval(result["improvement"][kind][row], "probability") for kind in kinds)]
        for row in result["improvement"]["last"]
    ]
    return markdown(["", *kinds.values()], rows)


def _pretraining(result: Mapping[str, Any]) -> str:
    rows = []
    for name, run in result["pretraining"].items():
        window, among = run.get("window_accuracy"), run.get("batch_accuracy")
        split = "val" if "val" in run["metrics"] else "train"
        rows.append(
            [
                name,
                f"{run['metrics'][split]['loss']:.3f} ({split})",
                "" if window is None else f"{window:.2f}",
                "" if among is None else f"{among:.2f}",
                run.get("note", ""),
            ]
        )
    return markdown(["run", "loss", "window accuracy (0.5 is chance)", "accuracy in the batch", ""], rows)


def _interval(found: Mapping[str, float], key: str) -> str:
    return f"{found[key]:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
