"""A report as a picture: the page's own figures, read back from what is drawn."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from recur_tune.report.compare import comparison
from recur_tune.report.confirmed_front import confirmed_panel
from recur_tune.report.figures.labels import finish
from recur_tune.report.figures.pictures import empty_picture, picture_of, write_picture
from recur_tune.report.figures.style import Panel
from recur_tune.report.panels import front_panel, windows_panel
from recur_tune.report.progress import curves_panel, volume_panel
from recur_tune.report.search_view import read_search
from tests.report import begun, confirmed, few, make, many, opening, params_of, validated
from tests.tracking.marks import shape_of

TITLE = "a $title_{ of its $own"
SEARCHES = {
    "few": few(), "many": many(60), "begun": opening() + begun(0, 100, params_of(), 4e5, 2.0**25),
    "far apart": [
        *opening(),
        *begun(0, 100, params_of(), 4e4, 2.0**22), validated(0, 101, 4000, 60.0, "complete"),
        *begun(1, 101, params_of(), 9e5, 2.0**26), validated(1, 102, 4000, 50.0, "complete"),
    ],
}  # fmt: skip
DASHES = {"solid": "-", "dash": "--", "dot": ":"}


@pytest.fixture(scope="module", params=SEARCHES.values(), ids=SEARCHES.keys())
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Panel, Axes]]:
    """Every figure of a search that a picture can have, with the axes that it was drawn on."""
    search = read_search(make(tmp_path_factory.mktemp("search"), events=request.param))
    panels = [panel_of(search) for panel_of in (front_panel, windows_panel, volume_panel, curves_panel)]
    axes = {one.get_title(loc="left").replace("\n", " "): one for one in picture_of(panels, TITLE).axes}
    return [(panel, axes[panel.title]) for panel in panels]


def traces(panel: Panel, kind: str) -> list[dict[str, Any]]:
    """Those of a figure with marks, lines or text; what only stands in the legend has no place."""
    data = panel.figure["data"] if panel.figure else []
    return [trace for trace in data if kind in trace["mode"] and trace["x"] != [None]]


class Mark(NamedTuple):
    """A point."""

    x: float
    y: float
    symbol: str
    edge: str | None
    colour: float | None  # the number that its colour stands for


def asked_marks(panel: Panel) -> Counter[Mark]:
    marks = Counter[Mark]()
    for trace in traces(panel, "markers"):
        count, marker = len(trace["x"]), trace["marker"]
        symbol, colour = marker.get("symbol", "circle"), marker["color"]
        symbols = symbol if isinstance(symbol, list) else [symbol] * count
        colours = [None] * count if isinstance(colour, str) else colour
        edges = [to_hex(marker["line"]["color"]) if "line" in marker else None] * count
        marks += Counter(map(Mark, trace["x"], trace["y"], symbols, edges, colours))
    return marks


def drawn_marks(axes: Axes) -> Counter[Mark]:
    marks = Counter[Mark]()
    for collection in axes.collections:
        assert collection.get_offset_transform() == axes.transData
        places, colours = np.ma.getdata(collection.get_offsets()).tolist(), collection.get_array()
        hollow, [width] = len(collection.get_facecolors()) == 0, collection.get_linewidths()
        symbol = f"{shape_of(collection)}{'-open' if hollow else ''}"
        edge = to_hex(collection.get_edgecolors()[0]) if width and not hollow else None
        for at, (x, y) in enumerate(places):
            colour = None if colours is None else float(colours[at])
            marks[Mark(x, y, symbol, edge, colour)] += 1
    return marks


def test_every_mark_of_the_page_is_in_the_picture(drawn: Any) -> None:
    for panel, axes in drawn:
        assert drawn_marks(axes) == asked_marks(panel), panel.key


def test_every_line_is_there_in_its_style(drawn: Any) -> None:
    for panel, axes in drawn:
        asked = [
            (trace["x"], trace["y"], DASHES[trace["line"].get("dash", "solid")], trace["line"].get("shape") == "hv")
            for trace in traces(panel, "lines")
        ]
        upright = panel.figure["layout"].get("shapes", ()) if panel.figure else ()
        asked += [([line["x0"]] * 2, [0, 1], ":", False) for line in upright]
        found = [
            (*map(list, line.get_data()), line.get_linestyle(), line.get_drawstyle() == "steps-post")
            for line in axes.lines
            if len(line.get_xydata())
        ]
        assert sorted(found) == sorted(asked), panel.key


def names_of(axes: Axes) -> list[Text]:
    return [text for text in axes.texts if re.fullmatch(r"T\d+", text.get_text())]


def test_names_stand_near_their_marks(drawn: Any) -> None:
    for panel, axes in drawn:
        places = {
            text: axes.transData.transform((x, y))
            for trace in traces(panel, "text")
            for text, x, y in zip(trace["text"], trace["x"], trace["y"], strict=True)
        }
        found = {text.get_text(): text.get_window_extent() for text in names_of(axes)}
        assert found.keys() <= places.keys() and len(found) >= 0.8 * len(places), panel.key
        for name, box in found.items():
            assert np.abs(places[name] - np.clip(places[name], box.min, box.max)).max() < 70, "pixels"


def covered(axes: Axes) -> list[str]:
    """Names of a figure that leave the picture, or lie on a mark, on an error bar or on another label."""
    texts = [text for text in axes.figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    boxes = {text: text.get_window_extent() for text in texts if not (text.axes and text not in shown(text.axes))}
    marks = []
    for collection in axes.collections:
        if isinstance(collection, PathCollection):
            half = np.sqrt(np.max(collection.get_sizes())) / 2 * axes.figure.dpi / 72
            marks += [Bbox([at - half, at + half]) for at in axes.transData.transform(collection.get_offsets())]
        elif isinstance(collection, LineCollection):
            marks += [Bbox(axes.transData.transform(segment)).padded(3, 0) for segment in collection.get_segments()]
    found = []
    for name in names_of(axes):
        others = [box for text, box in boxes.items() if text is not name]
        outside = axes.figure.bbox.count_contains(boxes[name].corners()) < 4
        found += [name.get_text()] * (outside or any(boxes[name].overlaps(one) for one in [*others, *marks]))
    return found


def shown(axes: Axes) -> set[Text]:
    """Texts of axes that are drawn: ticks beyond an axis' ends are not."""
    inside = [
        tick.label1
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]
    return {*axes.texts, *inside, axes._left_title, axes.xaxis.label, axes.yaxis.label}  # type: ignore[attr-defined]


def test_no_name_covers_anything_or_leaves_the_picture(drawn: Any, tmp_path: Path) -> None:
    assert [name for _, axes in drawn for name in covered(axes)] == []


def test_nor_does_one_of_a_confirmed_front_or_of_a_comparison(tmp_path: Path) -> None:
    make(tmp_path, "others", few())
    search = read_search(make(tmp_path, "books", confirmed(many(200), 16)))
    for panel in (confirmed_panel(search), comparison(tmp_path, ["books", "others"]).panel):
        axes = picture_of([panel], TITLE).axes[0]
        assert covered(axes) == [] and len(names_of(axes)) >= 6


def test_axes_are_the_page_s(drawn: Any) -> None:
    for panel, axes in drawn:
        for name, axis in (("xaxis", axes.xaxis), ("yaxis", axes.yaxis)):
            asked = panel.figure["layout"][name] if panel.figure else {"title": {"text": ""}}
            assert axis.get_label_text() == asked["title"]["text"]
            assert axis.get_scale() == asked.get("type", "linear")
            if ends := asked.get("range"):
                assert axis.get_view_interval() == pytest.approx(
                    np.power(10.0, ends) if axis.get_scale() == "log" else ends
                )
            if "tickvals" in asked:
                found = dict(zip(axis.get_ticklocs(), (one.get_text() for one in axis.get_ticklabels()), strict=True))
                assert found == dict(zip(asked["tickvals"], asked["ticktext"], strict=True))


def test_the_legend_names_what_the_page_s_names(drawn: Any) -> None:
    for panel, axes in drawn:
        look, data = (panel.figure["layout"], panel.figure["data"]) if panel.figure else ({}, [])
        asked = [trace["name"] for trace in data if trace.get("showlegend", True) and trace.get("name")]
        legend = axes.get_legend()
        found = [text.get_text() for text in legend.get_texts()] if legend else []
        assert found == (asked if look.get("showlegend", True) else []), panel.key


def test_colours_have_a_bar_with_the_page_s_ends(drawn: Any) -> None:
    (panel, axes), *others = drawn
    bars = [one for one in axes.figure.axes if one not in [axes, *(other for _, other in others)]]
    asked = [panel.figure["layout"]["coloraxis"]] if panel.figure else []
    for bar, colours in zip(bars, asked, strict=True):
        assert bar.get_ylabel() == colours["colorbar"]["title"]["text"] == "peak memory"
        assert bar.get_ylim() == pytest.approx((colours["cmin"], colours["cmax"]))
        for collection in axes.collections:
            if collection.get_array() is not None:
                assert collection.get_clim() == (colours["cmin"], colours["cmax"])


def test_where_the_page_has_words_for_a_figure_the_picture_has_them_too(drawn: Any) -> None:
    for panel, axes in drawn:
        assert (panel.caption in [text.get_text() for text in axes.texts]) == (panel.figure is None)


def test_a_name_keeps_clear_of_another_point_s_error_bar() -> None:
    picture, axes = empty_picture(TITLE)
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.scatter([50, 52], [50, 80])
    axes.errorbar([52], [80], yerr=[70], fmt="none")
    finish(picture, [(axes, {"data": [{"mode": "markers+text", "x": [50], "y": [50], "text": ["T1"]}]})])
    assert [text.get_text() for text in names_of(axes)] == ["T1"] and covered(axes) == []


def test_pictures_are_whole_files(tmp_path: Path) -> None:
    front = front_panel(read_search(make(tmp_path, events=few())))
    png, pdf = tmp_path / "new" / "report.png", tmp_path / "new" / "report.pdf"
    write_picture([front], TITLE, png)
    write_picture([front], TITLE, pdf)
    with Image.open(png) as image:
        image.load()  # raises where something is missing
        assert (image.format, image.size) == ("PNG", (1500, 780))
    assert pdf.read_bytes().startswith(b"%PDF") and pdf.read_bytes().rstrip().endswith(b"%%EOF")
    assert {path.name for path in png.parent.iterdir()} == {"report.png", "report.pdf"}, "nothing half-written stays"
