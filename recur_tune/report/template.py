"""Style and script of a report's page, which needs nothing from the network."""

from recur_tune.report.figures.placing import PLACE_NAMES

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #1f2328;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 0 0 4px; }
p { margin: 0 0 8px; max-width: 110ch; }
.about, .caption { color: #4b535d; }
.caption { font-size: 0.92rem; }
.words { padding: 20px; max-width: none; background: #f6f7f8; border-radius: 8px; }
.note { padding: 12px 16px; border-left: 4px solid #d55e00; background: #fdf5ef; max-width: none; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 4px 24px; margin: 20px 0 28px;
     padding: 16px 0; border: solid #d9dde1; border-width: 1px 0; }
dl div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
dt { color: #4b535d; font-size: 0.85rem; line-height: 1.3; }
dd { margin: 0; font-size: 1.45rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
.panels { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 40px 40px; }
section { min-width: 0; }
.below { margin-top: 40px; }
.wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 16px 8px 0; text-align: right; vertical-align: top; border-bottom: 1px solid #e5e8eb;
         white-space: nowrap; }
th { color: #4b535d; font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child, .left { text-align: left; }
td.command { white-space: normal; padding: 0 0 12px; }
tr:has(+ tr > .command) td { border: 0; }
tr > td:last-child, th:last-child { padding-right: 0; }
code { font: 0.82rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
td.command span { display: inline-block; }
td.command code { display: block; padding: 6px 10px; background: #f6f7f8; border-radius: 6px; user-select: all; }
a { color: #0a5ea8; }
footer { margin-top: 48px; color: #4b535d; font-size: 0.85rem; }
@media (max-width: 700px) {
  main { padding: 20px 14px 40px; }
  h1 { font-size: 1.45rem; }
  .panels { grid-template-columns: minmax(0, 1fr); gap: 32px; }
  dl { grid-template-columns: repeat(2, 1fr); gap: 12px 16px; }
  dd { font-size: 1.2rem; }
}
.printed { position: absolute; left: -9999px; width: 875px; visibility: hidden; }
@page { size: A4; margin: 14mm 12mm; }
@media print {
  body { font-size: 13px; print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .panels { display: block; }
  section { break-inside: avoid; margin-bottom: 28px; }
  section:has(table) { break-inside: auto; }
  h2, .caption { break-after: avoid; }
  tr { break-inside: avoid; }
  tr:has(+ tr > .command) { break-after: avoid; }
  .scroll { overflow: visible; }
  .scroll:has(+ .printed) { display: none; }
  .printed { position: static; visibility: visible; zoom: 0.8; }
}
"""

SCRIPT = (
    PLACE_NAMES
    + """
const page = JSON.parse(document.getElementById("page").textContent);
const touch = matchMedia("(hover: none)").matches;
let touched = null;
const look = {  // nothing leaves this page: plotly would offer to send a figure's data to its makers
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", displayModeBar: !touch && "hover",
  modeBarButtonsToRemove: ["zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
};

function tell(trace) {  // figures carry a trial's number, the page knows the rest once
  if (!trace.customdata) return trace;
  const own = trace.hovertext || [];
  const text = trace.customdata.map((trial, at) =>
    [own[at], (page.trials[trial] || {}).text].filter(Boolean).join("<br>"));
  return {...trace, hovertext: text, hoverinfo: "text"};
}

function open_run(event) {
  const trial = event.points[0].customdata, known = page.trials[trial];
  const again = touched === trial;
  touched = trial;
  if (touch && !again) return;  // a first touch only shows
  if (known && known.url) window.open(known.url, "_blank", "noopener");
}

const waiting = new Map(page.figures.map(figure => [document.getElementById(figure.key), figure]));

function draw(place) {
  if (!waiting.has(place)) return;
  const {data, layout} = waiting.get(place);
  waiting.delete(place);
  watch.unobserve(place);
  if (touch) layout.dragmode = false;  // a finger on a figure scrolls the page
  if (innerWidth < 700) {
    if (layout.coloraxis) layout.coloraxis.colorbar.len = 1;
    // A long legend would take the figure's place, and the caption says the same.
    if (data.filter(one => one.showlegend !== false).length > 5) layout.showlegend = false;
  }
  const drawn = Plotly.newPlot(place, data.map(tell), layout, look);
  place.on("plotly_click", open_run);
  place.on("plotly_afterplot", () => place_names(place));
  // A browser repeats a touch as a mouse's click, and plotly would count two: a double click, which resets the axes.
  place.addEventListener("touchend", event => {
    if (event.cancelable && event.target.classList.contains("drag")) event.preventDefault();
  });
  return drawn.then(place_names).then(painted).then(() => { place.dataset.drawn = Math.round(performance.now()); });
}

const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));

// A figure is drawn when the reader comes near it, one after the other and each seen before the next is begun.
let turn = Promise.resolve();
const watch = new IntersectionObserver(seen => seen.filter(one => one.isIntersecting).forEach(one => {
  turn = turn.finally(() => draw(one.target));
}), {rootMargin: "500px"});
waiting.forEach((figure, place) => watch.observe(place));

// Paper has a width of its own, and all figures have to be on it at once: they are drawn for it a second time.
const paper = figure => document.getElementById(`${figure.key}-printed`);
addEventListener("beforeprint", () => page.figures.forEach(figure => {
  const {data, layout} = figure.printed || figure, place = paper(figure);
  Plotly.newPlot(place, data, {...layout, width: place.clientWidth, height: place.clientHeight}, {staticPlot: true});
  place_names(place);
}));
addEventListener("afterprint", () => page.figures.forEach(figure => Plotly.purge(paper(figure))));
"""
)
