/* Many curves of one kind, of which one is looked at: it stands out, the others stay in the background.
 *
 * The curves are on a canvas: as SVG a dozen of them would take longer than a frame lasts. */
import { axes, figure, linear } from "./axes.js";
import { element, setAttributes, svgElement } from "./elements.js";

// Dashes are made by clearing strips from top to bottom: to dash long curves point by point takes 30 ms.
const GAP = 4; // px
const PERIOD = 9;
const CROWDED = 2; // px within which a curve's points can't be told apart
const STRAIGHT = 1e-7; // px by which a line may bend at a point; over 500 points that is a hundredth of a pixel

/* draw({ x, y, curves, start, chosen, solid, level, point, names, describe }):
 *   x, y     { low, high, label }
 *   curves   arrays, the value at x = start, start + 1, ...; `chosen` is the index of the one looked at
 *   solid    [low, high]: outside these x the curves are dashed, and lines mark the two where they are in view
 *   level    a value to compare with, or null: a dotted line across
 *   point    [x, y] on the chosen curve
 *   names    { chosen, others, level, outside }, for the legend; one that is missing is not listed */
export function curveFamily(view, panel, { label, height = 150 }) {
  const canvas = element("canvas", { role: "img" });
  const { svg, size } = figure(view, panel, { label, canvas });
  const legend = element("p", { class: "txw-legend" });
  panel.append(legend);
  const frame = svgElement("g");
  const marks = svgElement("path", { fill: "none", "stroke-width": 1 });
  const compared = svgElement("path", { fill: "none", "stroke-width": 1.5, "stroke-dasharray": "2 3" });
  const dot = svgElement("circle", { r: 5 });
  svg.append(frame, marks, compared, dot);
  let framed = ""; // what the axes were drawn for; text is slow to lay out, so they are kept while they fit
  let listed = "";
  let painted = [];

  return function draw({ x, y, curves, start, chosen, solid, level = null, point, names, describe }) {
    const area = size(height);
    const bottom = area.top + area.height;
    const right = linear(x.low, x.high, area.left, area.right);
    const up = linear(y.low, y.high, bottom, area.top);
    const asked = JSON.stringify([x, y, area, view.dark]);
    if (asked !== framed) {
      const labels = { xLabel: x.label, yLabel: y.label, colors: view.colors };
      frame.replaceChildren(...axes(area, { x: right, y: up, grid: false, ...labels }));
      framed = asked;
    }
    const edges = solid.filter((edge) => edge > x.low && edge < x.high).map((edge) => right(edge).toFixed(1));
    const lines = edges.map((edge) => `M${edge} ${area.top}V${bottom}`).join("");
    setAttributes(marks, { d: lines, stroke: view.colors.ink });
    const seen = level !== null && level >= y.low && level <= y.high;
    const across = seen ? `M${area.left} ${up(level)}H${area.right}` : "";
    setAttributes(compared, { d: across, stroke: view.colors["series-2"] });
    setAttributes(dot, { cx: right(point[0]), cy: up(point[1]), fill: view.colors.ink, stroke: view.colors.ground });

    // Where only the point has moved, the curves stay.
    const painting = [curves, chosen, JSON.stringify([x, y, solid, area]), view.dark, canvas.width];
    if (painting.some((part, index) => part !== painted[index])) {
      const context = canvas.getContext("2d");
      context.setTransform(canvas.width / area.width, 0, 0, canvas.height / area.height, 0, 0);
      context.clearRect(0, 0, area.width, area.height);
      paintCurves(context, { area, x, y, curves, start, chosen, solid, colors: view.colors });
      paintGrid(context, { area, right, up, color: view.colors.grid });
      painted = painting;
    }

    canvas.setAttribute("aria-label", `${label}: ${describe}`);
    const list = JSON.stringify([names, view.dark]);
    if (list === listed) return;
    const { ink, line, "series-1": first, "series-2": second } = view.colors;
    const entries = [
      [names.chosen, curveSample({ stroke: first, "stroke-width": 2.5 })],
      [names.others, curveSample({ stroke: line, "stroke-width": 1 })],
      [names.level, curveSample({ stroke: second, "stroke-width": 1.5, "stroke-dasharray": "2 3" })],
      [names.outside, curveSample({ stroke: ink, "stroke-width": 1.5, "stroke-dasharray": `${PERIOD - GAP} ${GAP}` })],
    ];
    legend.replaceChildren(...entries.filter(([name]) => name).map(([name, line]) => element("span", {}, line, name)));
    listed = list;
  };
}

function paintCurves(context, { area, x, y, curves, start, chosen, solid, colors }) {
  const scale = { x: area.width / (x.high - x.low || 1), y: area.height / (y.high - y.low || 1) };
  context.lineJoin = "round";
  const stroke = (shown, color, width) => {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.beginPath();
    for (const curve of shown) traceCurve(context, curve, (start - x.low) * scale.x, y.high, scale);
    context.stroke();
  };
  stroke(curves.filter((_, index) => index !== chosen), colors.line, 1);
  stroke([curves[chosen]], colors["series-1"], 2.5);
  const [from, to] = solid.map((edge) => (edge - x.low) * scale.x);
  for (let gap = from - GAP; gap > -GAP; gap -= PERIOD) context.clearRect(gap, 0, GAP, area.height);
  for (let gap = to; gap < area.width; gap += PERIOD) context.clearRect(gap, 0, GAP, area.height);
}

/* The grid goes behind what is there already; its ticks are those that axes() names. */
function paintGrid(context, { area, right, up, color }) {
  context.globalCompositeOperation = "destination-over";
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  for (const tick of right.ticks(Math.max(2, area.width / 55))) {
    context.moveTo(right(tick) - area.left, 0);
    context.lineTo(right(tick) - area.left, area.height);
  }
  for (const tick of up.ticks(Math.max(2, area.height / 40))) {
    context.moveTo(0, up(tick) - area.top);
    context.lineTo(area.width, up(tick) - area.top);
  }
  context.stroke();
  context.globalCompositeOperation = "source-over";
}

/* Adds a curve to the path, its first point at `left` px. What lies on a straight line needs no points between its
 * ends; of several corners within CROWDED px the first, the lowest, the highest and the last are enough. Without the
 * first and the last one, the straight lines to and from them would be drawn askew. */
function traceCurve(context, values, left, top, scale) {
  const last = values.length - 1;
  const group = Math.max(1, Math.floor(CROWDED / scale.x));
  context.moveTo(left, (top - values[0]) * scale.y);
  for (let first = 1; first <= last; first += group) {
    let [earliest, lowest, highest, latest] = [-1, -1, -1, -1];
    for (let index = first; index < first + group && index <= last; index += 1) {
      const bend = index < last ? (values[index + 1] - 2 * values[index] + values[index - 1]) * scale.y : 1;
      if (bend < STRAIGHT && bend > -STRAIGHT) continue;
      if (earliest < 0) earliest = lowest = highest = index;
      if (values[index] < values[lowest]) lowest = index;
      if (values[index] > values[highest]) highest = index;
      latest = index;
    }
    if (earliest < 0) continue;
    let drawn = -1;
    for (const index of [earliest, Math.min(lowest, highest), Math.max(lowest, highest), latest]) {
      if (index > drawn) context.lineTo(left + index * scale.x, (top - values[index]) * scale.y);
      drawn = index;
    }
  }
}

function curveSample(look) {
  const line = svgElement("line", { x1: 0, x2: 20, y1: 5, y2: 5, ...look });
  return svgElement("svg", { width: 20, height: 10, "aria-hidden": "true" }, line);
}
