/* Scales from values to pixels, their ticks, and axes drawn in SVG. */
import { element, format, svgElement } from "./elements.js";

/* A scale maps a value to a pixel: scale(value); it knows its `ticks`, and `invert` goes back. */
export function linear(low, high, start, end) {
  const extent = high - low || 1;
  const scale = (value) => start + ((value - low) / extent) * (end - start);
  scale.invert = (pixel) => low + ((pixel - start) / (end - start)) * extent;
  scale.ticks = (count) => {
    const rough = extent / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const first = Math.ceil(low / step - 1e-9);
    const length = Math.max(0, Math.floor(high / step + 1e-9) - first + 1);
    return Array.from({ length }, (_, index) => Number(((first + index) * step).toPrecision(12)));
  };
  return scale;
}

/* Every factor of `base` takes the same way; ticks are powers of it. */
export function logarithmic(low, high, start, end, base = 2) {
  const inner = linear(Math.log(low), Math.log(high), start, end);
  const scale = (value) => inner(Math.log(value));
  scale.invert = (pixel) => Math.exp(inner.invert(pixel));
  scale.ticks = (count) => {
    const [first, last] = [low, high].map((bound) => Math.log(bound) / Math.log(base));
    const powers = Math.floor(last + 1e-9) - Math.ceil(first - 1e-9) + 1;
    const every = Math.max(1, Math.ceil(powers / Math.max(1, count)));
    return Array.from({ length: Math.ceil(powers / every) }, (_, index) =>
      Number((base ** (Math.ceil(first - 1e-9) + index * every)).toPrecision(12)),
    );
  };
  return scale;
}

export const MARGIN = { left: 46, right: 10, top: 6, bottom: 34 };

/* A place for a drawing: SVG for lines and text and, where there are many points, a canvas below it. */
export function figure(view, panel, { label, canvas = null }) {
  const svg = svgElement("svg", canvas ? { "aria-hidden": "true" } : { role: "img", "aria-label": label });
  const box = element("div", { class: "txw-figure" }, ...(canvas ? [canvas, svg] : [svg]));
  panel.append(box);
  // Asking for a width makes the browser lay the page out; it is asked only when the widget's own has changed.
  let asked = { at: null, width: 0 };
  const boxWidth = () => {
    if (asked.at !== view.width) asked = { at: view.width, width: box.clientWidth };
    return asked.width;
  };
  return {
    svg,
    boxWidth,
    /* Gives the figure its size, and the canvas its place in it: all but the margins. */
    size(height, { margin = MARGIN, innerWidth = null } = {}) {
      const width = innerWidth ?? Math.max(1, boxWidth() - margin.left - margin.right);
      const full = height + margin.top + margin.bottom;
      box.style.height = `${full}px`;
      svg.setAttribute("width", boxWidth());
      svg.setAttribute("height", full);
      if (canvas) {
        const ratio = window.devicePixelRatio || 1;
        const [columns, rows] = [width, height].map((length) => Math.max(1, Math.round(length * ratio)));
        if (canvas.width !== columns) canvas.width = columns;
        if (canvas.height !== rows) canvas.height = rows;
        const place = { left: margin.left, top: margin.top, width, height };
        for (const [name, value] of Object.entries(place)) canvas.style[name] = `${value}px`;
      }
      return { width, height, left: margin.left, top: margin.top, right: margin.left + width };
    },
  };
}

/* Ticks and names of both axes around the area, as SVG. */
export function axes(area, { x, y, xLabel, yLabel, xTicks, yTicks, grid = true, colors }) {
  const bottom = area.top + area.height;
  const parts = [];
  for (const [value, text] of xTicks ?? x.ticks(Math.max(2, area.width / 55)).map((tick) => [tick, format(tick)])) {
    const at = x(value);
    if (grid) parts.push(svgElement("line", { x1: at, x2: at, y1: area.top, y2: bottom, stroke: colors.grid }));
    parts.push(svgElement("text", { x: at, y: bottom + 13, "text-anchor": "middle" }, text));
  }
  for (const [value, text] of yTicks ?? y.ticks(Math.max(2, area.height / 40)).map((tick) => [tick, format(tick)])) {
    const at = y(value);
    if (grid) parts.push(svgElement("line", { x1: area.left, x2: area.right, y1: at, y2: at, stroke: colors.grid }));
    parts.push(svgElement("text", { x: area.left - 5, y: at + 4, "text-anchor": "end" }, text));
  }
  const middle = area.top + area.height / 2;
  const turned = `translate(11 ${middle}) rotate(-90)`;
  parts.push(
    svgElement("text", { x: area.left + area.width / 2, y: bottom + 28, "text-anchor": "middle" }, xLabel),
    svgElement("text", { transform: turned, "text-anchor": "middle" }, yLabel),
  );
  return parts;
}
