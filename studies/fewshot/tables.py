"""The tables of a few-shot study in Markdown, for its folder and for the documentation."""

from __future__ import annotations

from studies.fewshot.summary import score_titles
from studies.harness import Tree, estimate, markdown, number, seeds


def tables(result: Tree) -> str:
    """Return a table for each kind of score, the reference's lead over other rows, and pretraining's last numbers.

    Args:
        result: The content of `fewshot.json`.
    """
    config, kinds = result["config"], score_titles(result["curves"])
    parts = [
        f"**{config['title']}**: {result['score']} on unseen tasks, {config['data']['demonstrations']} demonstrations, "
        f"{config['seeds']} seeds, {config['evaluation']['episodes']} episodes an evaluation."
    ]
    parts += [f"{title.capitalize()}:\n\n{scores(result, kind)}" for kind, title in kinds.items()]
    parts.append(
        "A task's interval pools the episodes of all seeds (95 %), whose own scores are in parentheses; that of the "
        "best three does not account for their choice. IQM: interquartile mean over tasks and seeds, stratified "
        f"bootstrap over seeds, of which there are only {config['seeds']}."
    )
    if centring := _centring(config):
        parts.append(centring)
    if result["improvement"]["last"]:
        parts.append(f"Probability that {config['reference']} is better:\n\n{lead(result)}")
    if result["pretraining"]:
        parts.append(f"Pretraining, at its end (a window accuracy of 0.5 is chance):\n\n{pretraining(result)}")
    notes = [f"{name} {run['note']}" for name, run in result["pretraining"].items() if "note" in run]
    parts += [f"Note: {message}." for message in [*notes, *result.get("warnings", [])]]
    return "\n\n".join(parts) + "\n"


def scores(result: Tree, kind: str) -> str:
    """Return methods by tasks, each cell over the pooled episodes, and the aggregate over tasks."""
    tasks, rows = result["config"]["data"]["unseen_tasks"], []
    for row, cells in result["table"].items():
        whole = result["aggregate"][kind][row]
        own = [f"{estimate(cells[task][kind])} ({seeds(cells[task][kind]['by_seed'])})" for task in tasks]
        rows.append([row, *own, number(whole["mean"]["value"]), estimate(whole["iqm"])])
    return markdown(["method", *tasks, "mean", "IQM"], rows)


def lead(result: Tree) -> str:
    """Return the probability that the reference is better than each other row."""
    kinds, found = score_titles(result["curves"]), result["improvement"]
    rows = [[row, *(estimate(found[kind][row]) for kind in kinds)] for row in found["last"]]
    return markdown([f"{result['config']['reference']} better than", *kinds.values()], rows)


def pretraining(result: Tree) -> str:
    """Return the last numbers of each pretraining, on held-out episodes if there are any."""
    rows = []
    for name, run in result["pretraining"].items():
        last = run["metrics"].get("val") or run["metrics"]["train"]
        accuracies = [number(last.get(key)) for key in ("window_accuracy", "categorical_accuracy")]
        rows.append([name, f"{run['batch']}", number(last["loss"], 3), *accuracies, f"{run['seconds'] / 60:.1f}"])
    return markdown(["pretraining, seed", "batch", "loss", "window accuracy", "accuracy in the batch", "minutes"], rows)


def _centring(config: Tree) -> str:
    """Return a sentence on the frames whose mean is subtracted from each row's images or features, if it is."""
    by_source: dict[str, list[str]] = {"their demonstrations": [], "the pretraining data's frames": []}
    for row in config["rows"]:
        own = row if row["pretraining"] is None else config["pretrainings"][row["pretraining"]]
        if own["encoder"].get("centre", config["encoder"]["centre"]) and own["initialize_from"] is None:
            by_source["their demonstrations" if own is row else "the pretraining data's frames"].append(row["name"])
    parts = [f"those of {', '.join(rows)} on {frames}" for frames, rows in by_source.items() if rows]
    what = "Features of the image model" if config["encoder"]["kind"] == "pretrained" else "Images"
    return f"{what} are centred: {'; '.join(parts)}." if parts else ""
