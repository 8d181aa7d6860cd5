"""The front as a picture and as a page."""

from __future__ import annotations

import math
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from recur_tune.searching.front import front
from recur_tune.searching.state import SearchState
from recur_tune.tracking.plots import front_page, front_picture
from tests.searching import OBJECTIVES, state_of, trial


def many(count: int = 40) -> SearchState:
    """Trials of every kind and state."""
    dice = random.Random(0)
    states = ["complete", "complete", "stopped", "failed", "running", "infeasible"]
    return state_of(
        *(
            trial(
                number, None if state in ("failed", "infeasible") else dice.uniform(20, 40), dice.uniform(1e7, 1e9),
                dice.uniform(1e9, 4e10), state, {"recurrence": dice.choice(["none", "memory"]), "window": 300 + number},
            )
            for number, state in enumerate(dice.choice(states) for _ in range(count))
        )
    )  # fmt: skip


def equal() -> SearchState:
    return state_of(*(trial(number, 30.0, 1e8, 2e9) for number in range(3)))


def one_bad() -> SearchState:
    """Five plain trials, and a recurrent one that is cheap and good for nothing."""
    plain = (
        trial(number, 30.0 - number, 1e8 + 1e7 * number, 2e9, params={"recurrence": "none"}) for number in range(5)
    )
    return state_of(*plain, trial(9, 1e9, 5e7, 2e9, params={"recurrence": "memory"}))


STATES = {
    "none": state_of(),
    "unfinished": state_of(trial(0, None, 1e8, 2e9, "running"), trial(1, 40, 1e8, 2e9, "failed")),
    "only stopped": state_of(trial(0, 40, 1e8, 2e9, "stopped")),
    "one": state_of(trial(0, 30, 1e8, 2e9, params={"recurrence": "memory"})),
    "equal": equal(),
    "not finite": state_of(trial(0, math.nan, 1e8, 2e9), trial(1, 30, 1e8, 2e9), trial(2, math.inf, 1e8, 2e9)),
    "one bad": one_bad(),
    "many": many(),
}
CHOICES = [
    OBJECTIVES, OBJECTIVES[:2], ("peak_memory", "perplexity"), ("perplexity", "token_perplexity"),
]  # fmt: skip


def draw(state: SearchState, path: Path, objectives: tuple[str, ...] = OBJECTIVES) -> Image.Image:
    front_picture(state, objectives, path, "a $title_ of {its} own")
    return Image.open(path).convert("RGB")


@pytest.mark.parametrize("objectives", CHOICES, ids="-".join)
@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_every_search_has_a_picture(tmp_path: Path, state: SearchState, objectives: tuple[str, ...]) -> None:
    for found in state.trials.values():
        for validation in found.validations:
            validation.metrics["token_perplexity"] = validation.metrics["word_perplexity"] / 2
    path = tmp_path / "new" / "front.png"
    front_picture(state, objectives, path, "a title")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1280, 800)
    assert [found.name for found in path.parent.iterdir()] == ["front.png"], "nothing half-written stays"


def test_a_picture_replaces_the_one_before_and_shows_something_else(tmp_path: Path) -> None:
    before = draw(state_of(), tmp_path / "front.png")
    after = draw(many(), tmp_path / "front.png")
    assert before.tobytes() != after.tobytes()
    assert len(after.getcolors(2**20)) > 2 * len(before.getcolors(2**20)), "marks, and a bar of colours"


def test_one_bad_trial_does_not_flatten_the_others(tmp_path: Path) -> None:
    good = state_of(*(found for found in one_bad().trials.values() if found.number != 9))

    def heights(picture: Image.Image) -> int:
        """The rows that the plain trials' marks take."""
        blue = (0, 0x72, 0xB2)
        rows = [y for y in range(picture.height) for x in range(0, 1280, 4) if picture.getpixel((x, y)) == blue]
        inside = [y for y in rows if y < 640]  # below is the legend
        return max(inside) - min(inside)

    alone = heights(draw(good, tmp_path / "good.png", OBJECTIVES[:2]))
    assert heights(draw(one_bad(), tmp_path / "bad.png", OBJECTIVES[:2])) > 0.8 * alone > 200


@pytest.mark.parametrize("objectives", CHOICES[:3], ids="-".join)
@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_every_search_has_a_page_of_its_own(tmp_path: Path, state: SearchState, objectives: tuple[str, ...]) -> None:
    path = tmp_path / "front.html"
    front_page(state, objectives, path, "<b>mine</b>")
    page = path.read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)\s*=", page), "it needs no network"
    assert len(page) < 6_000_000
    assert "<title>&lt;b&gt;mine&lt;/b&gt;</title>" in page
    assert [found.name for found in tmp_path.iterdir()] == ["front.html"]
    drawn = page[page.rindex("Plotly.newPlot") :]
    for found in front(state.trials.values(), objectives):
        assert f'"{found.name}"' in drawn, "its name stands beside its mark"


def test_a_trial_tells_all_about_itself_under_the_pointer(tmp_path: Path) -> None:
    params = {"recurrence": "memory", "learning_rate": 0.000123456, "base": "<i>"}
    seen = state_of(trial(7, 30.5, 1e8, 2**31, params=params), trial(8, 40, 1e8, 2**31, "stopped"))
    seen.trials[7].role = "paper"
    front_page(seen, OBJECTIVES, tmp_path / "front.html", "title")
    page = (tmp_path / "front.html").read_text()
    drawn = page[page.rindex("Plotly.newPlot") :].encode().decode("unicode_escape")
    assert "<b>T7</b> complete (paper)<br>perplexity per word: 30.5<br>FLOPs/token: 100M<br>peak memory: 2 GiB" in drawn
    assert "recurrence = memory<br>learning_rate = 0.0001235<br>base = &lt;i&gt;" in drawn
    assert "<b>T8</b> stopped<br>" in drawn and "stopped early" in drawn


def test_neither_library_is_imported_before_something_is_drawn_nor_are_pictures_global(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from recur_tune.tracking.plots import front_picture\n"
        "from recur_tune.searching.state import SearchState\n"
        "assert not {'matplotlib', 'plotly'} & sys.modules.keys()\n"
        "front_picture(SearchState(), ['perplexity', 'peak_memory'], Path(sys.argv[1]), 'x')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "front.png")], check=True)
