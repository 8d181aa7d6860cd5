"""The report as one HTML file: figures, table of the front, and the library that draws them."""

from __future__ import annotations

import html
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.common.parsing import finite
from recur_tune.common.units import format_count, format_duration
from recur_tune.recurrences.registry import NONE
from recur_tune.report.confirmed_front import confirmed_panel
from recur_tune.report.figures.style import Panel, listed
from recur_tune.report.importance import importance_panel
from recur_tune.report.panels import front_panel, windows_panel
from recur_tune.report.parallel import parallel_panel
from recur_tune.report.progress import curves_panel, timeline_panel, volume_panel
from recur_tune.report.search_view import SearchView
from recur_tune.report.template import SCRIPT, STYLE
from recur_tune.search.record.directory import code_version
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import values_of

_DRAWN = {"front", "windows", "volume", "curves"}
_WIDE = {"front", "parallel", "timeline", "fronts"}


def report_panels(search: SearchView) -> list[Panel]:
    """Every figure of a report, the most wanted first."""
    makers = (
        front_panel, confirmed_panel, windows_panel, volume_panel, curves_panel, importance_panel, parallel_panel,
        timeline_panel,
    )  # fmt: skip
    return [make(search) for make in makers]


def picture_panels(panels: Iterable[Panel]) -> list[Panel]:
    """The figures of points and lines, which make up the picture; the confirmed front where there is one."""
    return [panel for panel in panels if panel.key in _DRAWN or (panel.key == "confirmed" and panel.figure)]


def report_page(search: SearchView, panels: Sequence[Panel] | None = None) -> str:
    """A search's report."""
    chosen = report_panels(search) if panels is None else panels
    known = {number: _known(search, number) for number in (*search.state.trials, *search.state.repeats)}
    first, *rest = chosen
    body = [
        f"<h1>{html.escape(search.name)}</h1>",
        f"<p class=about>{_about(search)}</p>",
        numbers(_summary(search)),
        "<div class=panels>",
        section(first),
        _front_table(search),
        *map(section, rest),
        "</div>",
    ]
    return page(f"{search.name}: report", body, chosen, known)


def page(title: str, body: Iterable[str], panels: Iterable[Panel], trials: Mapping[Any, Any]) -> str:
    """A page around its body, with the figures' data and the library that draws them."""
    from plotly.offline import get_plotlyjs

    figures = [{"key": panel.key, "printed": panel.printed, **panel.figure} for panel in panels if panel.figure]
    # A `<` in the data could end the script that it lies in.
    data = json.dumps(finite({"figures": figures, "trials": trials}), separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    scripts = f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>" if figures else ""
    made = time.strftime("%Y-%m-%d %H:%M")
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>", "</head>", "<body>", "<main>",
        *body,
        f"<footer>Made by recur-tune {code_version()} on {made}. This file needs no network.</footer>", "</main>",
        f'<script type="application/json" id="page">{data}</script>', scripts, "</body>", "</html>", "",
    ])  # fmt: skip


def write_page(text: str, path: Path) -> None:
    """Write a page; a failure says how to choose another file."""
    if path.is_dir():
        raise UserError(f"out: {path} is a folder; name a file in it, as {path / 'report.html'}.")
    with elsewhere():
        write_text(path, text)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Add to a failure to write: how to choose another file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; give another place with --out FILE.") from error


def section(panel: Panel) -> str:
    """A figure with title and caption, or a text instead of it."""
    wide = " class=wide" if panel.key in _WIDE else ""
    if panel.figure is None:
        text = f"<p class=words>{html.escape(panel.caption)}</p>"
    else:
        size = f"height: {panel.height}px; min-width: {panel.min_width}px"
        text = f"<p class=caption>{html.escape(panel.caption)}</p>"
        text += f'<div class=scroll><div id="{panel.key}" style="{size}"></div></div>'
        text += f'<div class=printed id="{panel.key}-printed" style="height: {panel.height}px"></div>'
    return f"<section{wide}><h2>{html.escape(panel.title)}</h2>{text}</section>"


def numbers(summary: Mapping[str, str]) -> str:
    """A line of numbers, each with its name."""
    cells = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in summary.items())
    return f"<dl>{''.join(cells)}</dl>"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; the columns `left` hold words."""
    head = "".join(
        f"<th{' class=left' if at in left else ''}>{html.escape(title)}</th>" for at, title in enumerate(titles)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def cell(text: str, kind: str = "") -> str:
    """A cell of a table; `text` is HTML."""
    return f"<td class={kind}>{text}</td>" if kind else f"<td>{text}</td>"


def _front_table(search: SearchView) -> str:
    title = "<h2>The front, and how to train each of it again</h2>"
    if not search.best:
        return f"<section class=wide>{title}<p class=words>No trial is on the front yet.</p></section>"
    objectives = [OBJECTIVES[name] for name in search.spec.objectives]
    rows: list[list[str]] = []
    for trial in search.best:
        reached = [cell(html.escape(one.format(values_of([trial], one)[0]))) for one in objectives]
        rows.append([cell(_linked(search, trial.number)), *reached])
        rows.append([f"<td class=command colspan={len(objectives) + 1}>{_command(search.command(trial))}</td>"])
    caption = "<p class=caption>Best quality first. A click on a command selects all of it.</p>"
    titles = ["trial", *(one.title for one in objectives)]
    return f"<section class=wide>{title}{caption}{table(titles, rows)}</section>"


def _command(text: str) -> str:
    """A command whose lines break between flags, never in one."""
    words = html.escape(text).replace(" --", "</span> <span>--")
    return f"<code><span>{words}</span></code>"


def _linked(search: SearchView, number: int) -> str:
    trial = search.state.trials[number]
    role = f" ({html.escape(trial.role)})" if trial.role else ""
    if url := search.links.get(number):
        return f'<a href="{html.escape(url)}" target="_blank" rel="noopener">{trial.name}</a>{role}'
    return f"{trial.name}{role}"


def _known(search: SearchView, number: int) -> dict[str, str]:
    """A trial's hover text, and its page in MLflow if it has one."""
    words = {"text": search.about(search.state.record(number))}
    return words | {"url": search.links[number]} if number in search.links else words


def _about(search: SearchView) -> str:
    """One sentence about the search."""
    corpus = next(iter(search.configs.values())).corpus  # a search has one
    bases = ", ".join(sorted({config.body_name for config in search.configs.values()}))
    objectives = [OBJECTIVES[name].title for name in search.spec.objectives]
    begun = (
        f", begun {time.strftime('%-d %B %Y', time.localtime(search.state.started))}" if search.state.started else ""
    )
    return html.escape(
        f"A search for {listed(objectives)} with {bases} on {corpus}, "
        f"{format_count(search.spec.budget.tokens)} tokens a trial{begun}."
    )


def _summary(search: SearchView) -> dict[str, str]:
    """The search in numbers."""
    counts = Counter(trial.state for trial in search.state.trials.values())
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    summary = {f"trials: {states}": str(len(search.state.trials)), "on the front": str(len(search.best))}
    for title, is_plain in (("plain", True), ("recurrent", False)):
        own = values_of([one for one in search.complete if (search.kind(one) == NONE) == is_plain], search.quality)
        if own:
            summary[f"best {search.quality.title}, {title}"] = search.quality.format(min(own))
    if search.hypervolume is not None:
        summary["hypervolume"] = f"{search.hypervolume:.3f}"
    return summary | {
        "tokens trained on": format_count(search.tokens), "time": format_duration(search.state.active_seconds),
    }  # fmt: skip
