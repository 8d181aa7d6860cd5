"""Which parameters mattered for which objective."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from recur_tune.reporting.marks import Panel, layout, plain_axis
from recur_tune.reporting.reading import Reading, values_of
from recur_tune.searching.objectives import OBJECTIVES
from recur_tune.searching.state import TrialRecord

_FEWEST = 4  # trials at full budget; from fewer, chance alone would speak
_A_HINT = 30  # below it the figure says so
_TOP = 5  # trials that PED-ANOVA should have among the good ones, by Optuna's advice


def importance_panel(search: Reading) -> Panel:
    """The share of each parameter in what made trials good, for each objective."""
    key, title = "importance", "What mattered"
    trials = search.complete
    if len(trials) < _FEWEST:
        words = f"Importance needs at least {_FEWEST} trials at full budget, and there {_are(len(trials))}."
        return Panel.of_words(key, title, words)
    shares = importances(search)
    if not shares or not any(shares.values()):
        return Panel.of_words(
            key, title, "The trials at full budget do not differ in anything that could have mattered."
        )
    names = sorted({name for one in shares.values() for name in one}, key=lambda name: _total(shares, name))
    rows = [[shares[objective].get(name) for objective in shares] for name in names]
    trace = {
        "type": "heatmap", "x": [OBJECTIVES[name].title for name in shares],
        "y": [name.replace("_of_", "/") for name in names],  # a share's, as the sampler calls it
        "z": rows, "zmin": 0, "zmax": 1, "colorscale": [[0, "#ffffff"], [1, "#3f8fc5"]], "showscale": False,
        "xgap": 3, "ygap": 3, "hoverinfo": "skip",
        "text": [["–" if share is None else f"{share:.0%}" for share in row] for row in rows],
        "texttemplate": "%{text}", "textfont": {"size": 13},
    }  # fmt: skip
    x_axis = plain_axis("", side="top", showgrid=False, linecolor="white", fixedrange=True)
    y_axis = plain_axis("", showgrid=False, linecolor="white", fixedrange=True)
    caption = (
        "Each column shares out 100 %: how much a parameter told the best trials in that objective from the rest "
        "(PED-ANOVA, which knows parameters that only some trials have)."
    )
    if len(trials) < _A_HINT:
        caption += f" From {len(trials)} trials this is a hint, no more."
    height = 110 + 34 * len(names)
    figure = {"data": [trace], "layout": layout(height, xaxis=x_axis, yaxis=y_axis)}
    return Panel(key, title, caption, figure, height)


def importances(search: Reading) -> dict[str, dict[str, float]]:
    """By objective, each parameter's share; empty for an objective in which all trials are equal."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    points = [_in_sampler_names(search, trial) for trial in search.complete]
    found: dict[str, dict[str, float]] = {}
    for name in search.spec.objectives:
        values = values_of(search.complete, OBJECTIVES[name])
        found[name] = _shares(points, values) if len(set(values)) > 1 else {}
    return found


def _in_sampler_names(search: Reading, trial: TrialRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """The point that the sampler chose and what it chose from, conditional parameters only where they exist."""
    import optuna

    space = search.spec.parsed_space
    chosen = optuna.trial.FixedTrial(space.closest(trial.params))
    space.draw(chosen)
    return chosen.params, chosen.distributions


def _shares(points: Sequence[tuple[dict[str, Any], dict[str, Any]]], values: Sequence[float]) -> dict[str, float]:
    import optuna

    study = optuna.create_study()
    for (params, distributions), value in zip(points, values, strict=True):
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=value))
    top = max(0.1, min(0.5, _TOP / len(values)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", optuna.exceptions.ExperimentalWarning
        )  # `normalize`, whose zeros would be shares
        raw = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    whole = sum(raw.values())
    return {name: float(share / whole) for name, share in raw.items()} if whole > 0 else {}


def _total(shares: dict[str, dict[str, float]], name: str) -> float:
    return sum(one.get(name, 0.0) for one in shares.values())


def _are(count: int) -> str:
    return "is one" if count == 1 else f"are {count or 'none'}"
