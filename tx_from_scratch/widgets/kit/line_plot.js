/* Lines, bars and marks over two axes, all in SVG, with a legend in which dashes tell lines apart as colors do. */
import { axes, figure, linear, logarithmic } from "./axes.js";
import { element, setAttributes, svgElement, uniqueId } from "./elements.js";
import { memory } from "./memory.js";

const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

/* draw({ x, y, lines, bars, marks }):
 *   x, y    { low, high, label, logarithmic (base 2 or 10), ticks }
 *   lines   [{ x, y, name, series (1 to 4) }], values that are not finite leave a gap
 *   bars    { edges, heights, name, series }
 *   marks   [{ x, name, series }], vertical; [{ x, y, series }], points */
export function linePlot(view, panel, { label, height = 150 }) {
  const { svg, size } = figure(view, panel, { label });
  const legend = element("p", { class: "txw-legend" });
  panel.append(legend);
  const clip = svgElement("rect");
  const id = uniqueId("clip");
  const content = svgElement("g", { "clip-path": `url(#${id})` });
  const frame = svgElement("g");
  svg.append(svgElement("clipPath", { id }, clip), frame, content);
  let framed = ""; // what the axes were drawn for; text is slow to lay out, so they are kept while they fit
  let listed = ""; // what the legend lists, kept likewise
  const latest = memory();

  return function draw({ x, y, lines = [], bars = null, marks = [], describe = "" }) {
    const area = size(height);
    const right = scaleOf(x, area.left, area.right);
    const up = scaleOf(y, area.top + area.height, area.top);
    const asked = JSON.stringify([x, y, area, view.dark]);
    if (asked !== framed) {
      const options = { xLabel: x.label, yLabel: y.label, xTicks: x.ticks, yTicks: y.ticks, colors: view.colors };
      frame.replaceChildren(...axes(area, { x: right, y: up, ...options }));
      setAttributes(clip, { x: area.left, y: area.top - 5, width: area.width + 6, height: area.height + 10 });
      framed = asked;
    }

    const drawn = [];
    const entries = [];
    const enter = (thing, dash) => {
      const color = view.colors[thing.series ? `series-${thing.series}` : "ink"];
      if (thing.name) entries.push([color, dash, thing.name]);
      return color;
    };
    if (bars) drawn.push(svgElement("path", { d: rectangles(bars, right, up, y), fill: enter(bars, null), opacity: 0.8 }));
    for (const line of lines) {
      const dash = DASHES[line.dash ?? line.series - 1];
      const color = enter(line, dash);
      // The same arrays again, on the same axes, are the same path: a long one is not written and read once more.
      drawn.push(
        latest(`line ${drawn.length}`, [line.x, line.y, asked, color, dash], () =>
          stroke("path", { d: path(line, right, up), fill: "none" }, color, dash),
        ),
      );
    }
    for (const mark of marks) {
      const dash = DASHES[mark.dash ?? 0];
      const [color, at] = [enter(mark, mark.y === undefined ? dash : "point"), right(mark.x)];
      if (mark.y === undefined) {
        drawn.push(stroke("line", { x1: at, x2: at, y1: area.top, y2: area.top + area.height }, color, dash));
      } else if (Number.isFinite(mark.y)) {
        drawn.push(svgElement("circle", { cx: at, cy: up(mark.y), r: 5, fill: color, stroke: view.colors.ground }));
      }
    }
    content.replaceChildren(...drawn);
    const list = JSON.stringify(entries);
    if (list !== listed) {
      legend.replaceChildren(...entries.map(([color, dash, name]) => element("span", {}, swatch(color, dash), name)));
      listed = list;
    }
    svg.setAttribute("aria-label", describe ? `${label}: ${describe}` : label);
  };
}

function stroke(name, place, color, dash) {
  return svgElement(name, { ...place, stroke: color, "stroke-width": 2, "stroke-dasharray": dash });
}

function scaleOf({ low, high, logarithmic: base }, start, end) {
  return base ? logarithmic(low, high, start, end, base) : linear(low, high, start, end);
}

/* All bars as one path: a thousand elements would take longer than the frame lasts. */
function rectangles({ edges, heights }, right, up, y) {
  const floor = up(y.logarithmic ? y.low : Math.max(y.low, 0));
  let d = "";
  for (let index = 0; index < heights.length; index += 1) {
    const [from, to, top] = [right(edges[index]), right(edges[index + 1]), Math.min(up(heights[index]), floor)];
    const gap = Math.min(1, (to - from) / 4);
    if (top < floor) d += `M${(from + gap / 2).toFixed(1)} ${floor}V${top.toFixed(1)}H${(to - gap / 2).toFixed(1)}V${floor}Z`;
  }
  return d;
}

function path({ x, y }, right, up) {
  let d = "";
  let pen = "M";
  for (let index = 0; index < x.length; index += 1) {
    const [across, above] = [right(x[index]), up(y[index])];
    if (Number.isFinite(across) && Number.isFinite(above)) {
      d += `${pen}${across.toFixed(1)} ${above.toFixed(1)}`;
      pen = "L";
    } else pen = "M";
  }
  return d;
}

/* A sample of a line, or a point, or a filled square for bars. */
function swatch(color, dash) {
  if (dash === "point") {
    const point = svgElement("circle", { cx: 10, cy: 5, r: 4, fill: color });
    return svgElement("svg", { width: 20, height: 10, "aria-hidden": "true" }, point);
  }
  const shape =
    dash === null
      ? svgElement("rect", { x: 4, y: 1, width: 10, height: 8, fill: color, opacity: 0.8 })
      : svgElement("line", { x1: 0, x2: 20, y1: 5, y2: 5, stroke: color, "stroke-width": 2, "stroke-dasharray": dash });
  return svgElement("svg", { width: 20, height: 10, "aria-hidden": "true" }, shape);
}
