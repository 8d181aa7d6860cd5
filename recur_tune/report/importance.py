"""Parameter importance: the share of each parameter in each objective's variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recur_tune.report.figures.style import Figure, Panel, layout, plain_axis
from recur_tune.report.search_view import SearchView
from recur_tune.report.shares import Shares, shares_of
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.space import Fixed

_BAR, _WHISKER = "#7fb3d5", "#1f2328"
_LONG = 1.8  # length of an axis in units of 100 %; the numbers stand at its end
_GAP = 0.03  # between two columns, of the figure's width


def importance_panel(search: SearchView) -> Panel:
    """The share of each parameter in each objective, with its error."""
    key, title = "importance", "What mattered"
    found = importances(search)
    shares = {name: one for name, one in found.items() if isinstance(one, Shares)}
    missing = "; ".join(one for one in found.values() if isinstance(one, str))
    if not shares:
        return Panel.of_words(key, title, f"Not enough trials yet: {missing}.")
    space = search.spec.parsed_space
    labels = [space.label(name, one) for name, one in space.all_parameters.items() if not isinstance(one, Fixed)]
    labels.sort(key=lambda label: sum(one.mean.get(label, 0.0) for one in shares.values()))
    caption = f"Each column adds up to 100 %. {_in_words(shares)}{f' Not here: {missing}.' if missing else ''}"
    height = 100 + 30 * len(labels)
    return Panel(key, title, caption, _figure(shares, labels, height), height, min_width=130 + 130 * len(shares))


def importances(search: SearchView) -> dict[str, Shares | str]:
    """Each objective's shares; or why there are none, as part of a sentence."""
    return {name: shares_of(search, OBJECTIVES[name]) for name in search.spec.objectives}


def _in_words(shares: Mapping[str, Shares]) -> str:
    """How the shares were computed, and their error, in words."""
    sources = "; ".join(one.source for one in shares.values())
    words = [f"It is the objective's variance over the space (Sobol's total effects): {sources}."]
    words += [
        _verdict(OBJECTIVES[name].title, one)
        for name, one in shares.items()
        if OBJECTIVES[name].kind == "quality" and len(one.mean) > 1
    ]
    if not all(one.is_computed for one in shares.values()):
        words.append("Whiskers and ± are a standard deviation over bootstrap resamples of the trials.")
    return " ".join(words)


def _verdict(title: str, shares: Shares) -> str:
    """Whether the first parameter's share exceeds the second's by more than both errors."""
    first, second, *_ = sorted(shares.mean, key=lambda label: -shares.mean[label])
    gap = shares.mean[first] - shares.mean[second]
    if gap > shares.error[first] + shares.error[second]:
        return f"For {title} {_shown(first)} stands out."
    return f"For {title} {_shown(first)} and {_shown(second)} cannot be told apart yet."


def _figure(shares: Mapping[str, Shares], labels: Sequence[str], height: int) -> Figure:
    """A column of bars for each objective, over the same rows."""
    wide = (1 + _GAP) / len(shares) - _GAP
    rows = [_shown(label) for label in labels]
    y_axis = plain_axis("", type="category", categoryarray=rows, categoryorder="array", showgrid=False, fixedrange=True)
    look = layout(height, 56, yaxis=y_axis, showlegend=False, bargap=0.35)
    traces: list[Figure] = []
    for at, (name, one) in enumerate(shares.items()):
        number = "" if at == 0 else str(at + 1)
        means, errors = ([by.get(label, 0.0) for label in labels] for by in (one.mean, one.error))
        left = at * (wide + _GAP)
        x_axis = plain_axis(
            OBJECTIVES[name].title, side="top", range=[0, _LONG], domain=[left, left + wide], tickvals=[0, 1],
            ticktext=["0", "100 %"], tickangle=0, tickfont={"size": 10}, fixedrange=True,
        )  # fmt: skip
        x_axis["title"]["font"] = {"size": 12}  # two titles have to fit side by side
        look[f"xaxis{number}"] = x_axis
        whiskers = {"type": "data", "array": errors, "color": _WHISKER, "thickness": 1.5, "width": 0}
        place = {"y": rows, "xaxis": f"x{number}", "hoverinfo": "skip"}
        traces.append({
            "type": "bar", "orientation": "h", "name": OBJECTIVES[name].title, "x": means, "marker": {"color": _BAR},
            **place, **({} if one.is_computed else {"error_x": whiskers}),
        })  # fmt: skip
        traces.append({
            "type": "scatter", "mode": "text", "x": [_LONG] * len(rows), "textposition": "middle left",
            "textfont": {"size": 11}, **place,
            "text": [_percent(mean, error) for mean, error in zip(means, errors, strict=True)],
        })  # fmt: skip
    return {"data": traces, "layout": look}


def _percent(mean: float, error: float) -> str:
    """A share as text; a small one is `< 1 %`, not `0 %`."""
    share = "0 %" if mean == 0 else "< 1 %" if mean < 0.005 else f"{100 * mean:.0f} %"
    return f"{share[:-2]} ± {max(1.0, 100 * error):.0f} %" if error else share


def _shown(label: str) -> str:
    return label.replace("_of_", "/")  # the sampler's name of a parameter that is a share of another
