"""Label placement on pages: names beside marks, placed by the browser, which alone knows how wide a figure is.

The rule is that of pictures (`labels`): no name covers a mark or another name, or leaves the axes; one without room is
left out, and the pointer still tells it. It is applied again whenever the figure changes its size or its range.
"""

PLACE_NAMES = """
const SIDES = ["top right", "bottom left", "bottom right", "top left", "top center", "bottom center", "middle right",
               "middle left"];

function side_box(side, [x, y], wide, size, radius) {  // left, top, right, bottom, as plotly writes it
  const away = radius / 0.8 + 1;
  const left = side.endsWith("right") ? x + away : side.endsWith("left") ? x - away - wide : x - wide / 2;
  const top = side.startsWith("top") ? y - away - 1.25 * size
    : side.startsWith("bottom") ? y + away - 0.25 * size : y - 0.75 * size;
  return [left, top, left + wide, top + 1.25 * size];
}

const overlaps = (one, other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];

function boxes_between([x0, y0], [x1, y1]) {  // a line as small boxes
  const count = Math.max(1, Math.ceil(Math.min(Math.abs(x1 - x0), Math.abs(y1 - y0)) / 3));
  const at = part => [x0 + (x1 - x0) * part / count, y0 + (y1 - y0) * part / count];
  return [...Array(count).keys()].map(part => {
    const [[a, b], [c, d]] = [at(part), at(part + 1)];
    return [Math.min(a, c) - 1, Math.min(b, d) - 1, Math.max(a, c) + 1, Math.max(b, d) + 1];
  });
}

function place_names(place) {
  const {xaxis, yaxis, shapes} = place._fullLayout, traces = place._fullData;
  const named = traces.filter(trace => trace.mode === "markers+text");
  if (!named.length) return;
  const seen = JSON.stringify([xaxis._length, yaxis._length, xaxis.range, yaxis.range, traces.map(one => one.visible)]);
  if (place.names_seen === seen) return;
  place.names_seen = seen;
  place.all_names = place.all_names || named.map(trace => [...trace.text]);

  const shown = traces.filter(trace => trace.visible === true && trace.x && trace.x[0] !== null);
  const spot = (x, y) => [xaxis.d2p(x), yaxis.d2p(y)];
  const taken = [], lines = [], on_lines = new Set(), middles = [];
  for (const trace of shown) {
    const spots = Array.from(trace.x, (x, at) => spot(x, trace.y[at]));
    if (trace.mode.includes("markers")) spots.forEach(([x, y], at) => {
      const reach = 0.6 * trace.marker.size + 1;
      taken.push([x - reach, y - reach, x + reach, y + reach]);
      middles.push([x, y]);
      const error = ((trace.error_y || {}).array || [])[at];
      if (error) taken.push([x - 5, yaxis.d2p(trace.y[at] + error) - 1, x + 5, yaxis.d2p(trace.y[at] - error) + 1]);
    });
    if (trace.mode.includes("lines")) spots.forEach((here, at) => {
      on_lines.add(`${trace.x[at]},${trace.y[at]}`);
      if (at === 0) return;
      const before = spots[at - 1], corner = trace.line.shape === "hv" ? [here[0], before[1]] : before;
      lines.push(...boxes_between(before, corner), ...boxes_between(corner, here));
    });
  }
  for (const line of shapes || [])
    if (line.yref === "y") lines.push(...boxes_between(spot(line.x0, line.y0), spot(line.x1, line.y1)));

  const pen = document.createElement("canvas").getContext("2d");
  const texts = place.all_names.map(names => names.map(() => ""));
  const sides = texts.map(names => names.map(() => SIDES[0]));
  const asked = named.flatMap((trace, of) => trace.visible === true ? place.all_names[of].map((name, at) => ({
    trace, of, at, name, first: on_lines.has(`${trace.x[at]},${trace.y[at]}`),
  })) : []);
  for (const {trace, of, at, name} of [...asked.filter(one => one.first), ...asked.filter(one => !one.first)]) {
    const mark = spot(trace.x[at], trace.y[at]), {size, family} = trace.textfont;
    pen.font = `${size}px ${family}`;
    const wide = pen.measureText(name).width;
    const distance = ([x, y], box) => Math.hypot(x - (box[0] + box[2]) / 2, y - (box[1] + box[3]) / 2);
    const free = SIDES.map(side => ({side, box: side_box(side, mark, wide, size, trace.marker.size / 2)}))
      .filter(({box}) => box[0] >= 0 && box[1] >= 0 && box[2] <= xaxis._length && box[3] <= yaxis._length)
      .filter(({box}) => !taken.some(other => overlaps(box, other)))
      .map(({side, box}) => ({side, box, cost: 2 * middles.some(one => distance(one, box) < distance(mark, box) - 1)
        + lines.some(line => overlaps(box, line))}));
    if (!free.length) continue;
    const chosen = free.reduce((best, one) => one.cost < best.cost ? one : best);
    taken.push(chosen.box);
    texts[of][at] = name;
    sides[of][at] = chosen.side;
  }
  return Plotly.restyle(place, {text: texts, textposition: sides}, named.map(trace => trace.index));
}
"""
