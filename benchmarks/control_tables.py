"""The tables of `docs/results.md` on pretraining for control and few-shot policies, for `fill_results.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goal_tables import load, table


def interval(found: Mapping[str, float], key: str) -> str:
    """A number and its interval."""
    return f"{found[key]:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def fewshot(name: str, kind: str) -> str:
    """Methods by tasks: each cell over the pooled episodes, the whole as interquartile mean."""
    found = load(f"fewshot_{name}")
    if found is None:
        return table(["method", "success"], [["all", "not run"]])
    tasks: Sequence[str] = found["config"]["data"]["unseen_tasks"]
    rows = []
    for row, cells in found["table"].items():
        whole = found["aggregate"][kind][row]
        by_seed = [", ".join(f"{one:.2f}" for one in cells[task][kind]["by_seed"]) for task in tasks]
        numbers = [
            f"{interval(cells[task][kind], 'score')} ({seeds})" for task, seeds in zip(tasks, by_seed, strict=True)
        ]
        rows.append([row, *numbers, f"{whole['mean']['value']:.2f}", interval(whole["iqm"], "value")])
    return table(["method", *tasks, "mean", "IQM"], rows)


def fewshot_lead(name: str) -> str:
    """How probable it is that the reference is better than each other row."""
    found = load(f"fewshot_{name}")
    if found is None:
        return table(["than", "probability"], [["all", "not run"]])
    kinds = {"best3": "mean of the best three evaluations", "last": "last evaluation"}
    rows = [
        [row, *(interval(found["improvement"][kind][row], "probability") for kind in kinds)]
        for row in found["improvement"]["last"]
    ]
    return table([f"{found['config']['reference']} better than", *kinds.values()], rows)


def fewshot_pretraining(name: str) -> str:
    """What each pretraining came to on held-out episodes of its own tasks."""
    found = load(f"fewshot_{name}")
    head = ["pretraining, seed", "batch", "loss", "window accuracy", "accuracy in the batch", "minutes"]
    if found is None:
        return table(head, [["all", *["not run"] * 5]])
    rows = []
    for run, about in found["pretraining"].items():
        own = found["config"]["pretrainings"][run.rpartition("-")[0]]["train"]
        batch = own.get("batch_size", found["config"]["train"]["batch_size"])
        last = about["metrics"].get("val") or about["metrics"]["train"]
        window, among = last.get("window_accuracy"), last.get("categorical_accuracy")
        rows.append(
            [
                run,
                f"{batch}",
                f"{last['loss']:.3f}",
                "" if window is None else f"{window:.2f}",
                "" if among is None else f"{among:.2f}",
                f"{about['seconds'] / 60:.1f}",
            ]
        )
    return table(head, rows)


def start() -> str:
    """What lets the window loss start, one change at a time.

    Loss and distance from chance are of each setting's own draws; accuracies of one draw for all.
    """
    found = load("premier_taco_start")
    head = ["setting", "own loss", "below own chance, nats", "window accuracy", "accuracy in the batch"]
    if found is None:
        return table(head, [["all", *["not run"] * 4]])
    rows = []
    for name, about in found["found"].items():
        last, common = about["validation"][-1], about["common"]
        rows.append(
            [
                name,
                f"{last['loss']:.3f}",
                f"{last['chance_gap']:.3f}",
                f"{common['window_accuracy']:.2f}",
                f"{common['categorical_accuracy']:.2f}",
            ]
        )
    return table(head, rows)


def experts() -> str:
    """What the planners with true dynamics earn on dm_control."""
    found = load("dmc_experts")
    head = ["task", "expert return", "random return", "episodes"]
    if found is None:
        return table(head, [["all", *["not run"] * 3]])
    rows = [
        [task, f"{about['expert_return']:.0f}", f"{about['random_return']:.0f}", f"{about['n']}"]
        for task, about in found["tasks"].items()
    ]
    return table(head, rows)


def nstep_loading() -> str:
    """Triples a second from the memory-mapped store."""
    found = load("nstep_loading")
    head = ["case", "triples a second", "GB a second", "a block copy of as many bytes takes"]
    if found is None:
        return table(head, [["all", *["not run"] * 3]])
    rows = []
    for name, case in found["cases"].items():
        parts = {"": case} if "triples_per_second_wall" in case else case
        for value, numbers in parts.items():
            rows.append(
                [
                    f"{name} {value}".strip(),
                    f"{numbers['triples_per_second_wall']:,}",
                    f"{numbers['gigabytes_per_second']}",
                    f"{numbers['block_over_this']} of it",
                ]
            )
    return table(head, rows)


def update() -> str:
    """One Premier-TACO update beside the authors' step, and each stage's share."""
    found = load("premier_taco_update")
    head = ["update, one thread", "ms", "plain over it", "of it, processor ms: shift", "anchor", "targets"]
    head += ["heads, loss", "backward", "Adam"]
    if found is None:
        return table(head, [["all", *["not run"] * 8]])
    keys = ("augmentation", "encode anchor", "encode targets", "heads and loss", "backward", "Adam")
    rows = []
    for title, part in (("", "as_it_is"), (", memory kept", "memory_kept")):
        if part not in found:
            continue
        for name, numbers in found[part]["update"].items():
            stages = found[part]["stages_processor_ms"][name]
            ratio = f"{numbers['plain_over_this_wall']:.2f}"
            rows.append([f"{name}{title}", f"{numbers['wall_ms']:.0f}", ratio, *(f"{stages[key]:.0f}" for key in keys)])
    return table(head, rows)


TABLES = {
    "premier taco update": update,
    "fewshot best": lambda: fewshot("cpu", "best3"),
    "fewshot last": lambda: fewshot("cpu", "last"),
    "fewshot lead": lambda: fewshot_lead("cpu"),
    "fewshot pretraining": lambda: fewshot_pretraining("cpu"),
    "premier taco start": start,
    "dmc experts": experts,
    "nstep loading": nstep_loading,
}
