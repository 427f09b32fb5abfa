/* A table of numbers as colored cells on a canvas, with a cursor for pointer and arrow keys. */
import { axes, figure, linear, MARGIN } from "./axes.js";
import { colorScale, packedColor } from "./colors.js";
import { element, svgElement } from "./elements.js";

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/* describe(row, column) is the text shown under the map for the cell below the cursor.
 * pointed(row, column) is called when the cursor moves, with (-1, -1) when it leaves;
 * chosen(row, column) when a cell is clicked, or Enter or the space bar is pressed on it. */
export function heatMap(view, panel, { label, describe, pointed = () => {}, chosen = null, hint = "" }) {
  const canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": `${label}; arrow keys move a cursor` });
  const { svg, size, boxWidth } = figure(view, panel, { label, canvas });
  const text = element("p", { class: "txw-cursor" }, hint);
  panel.append(text);
  const cells = document.createElement("canvas"); // one pixel for each cell
  const cursor = svgElement("g", {});
  const mark = svgElement("g", {});
  let shown = null;
  let framed = ""; // what the axes were drawn for; text is slow to lay out, so they are kept while they fit
  let painted = []; // with a palette: what is on the canvas
  let at = [-1, -1];

  const move = (row, column) => {
    at = [row, column];
    const outside = !shown || row < 0 || row >= shown.rows || column >= shown.columns;
    text.textContent = outside ? hint : describe(row, column);
    cursor.replaceChildren(...(outside ? [] : frameCell(shown, row, column, view.colors)));
    pointed(...(outside ? [-1, -1] : at));
  };
  const follow = (event) => {
    const box = canvas.getBoundingClientRect();
    if (!shown) return;
    const row = Math.floor(((event.clientY - box.top) / box.height) * shown.rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * shown.columns);
    if (row !== at[0] || column !== at[1]) move(clampIndex(row, shown.rows), clampIndex(column, shown.columns));
  };
  canvas.addEventListener("pointermove", follow);
  canvas.addEventListener("pointerdown", follow);
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && move(-1, -1));
  canvas.addEventListener("blur", () => move(-1, -1));
  canvas.addEventListener("click", () => at[0] >= 0 && chosen?.(...at));
  canvas.addEventListener("keydown", (event) => {
    if (!shown) return;
    if (chosen && at[0] >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      chosen(...at);
    }
    if (!MOVES[event.key]) return;
    event.preventDefault();
    const [down, right] = MOVES[event.key];
    const start = at[0] < 0 ? [0 - down, 0 - right] : at;
    move(clampIndex(start[0] + down, shown.rows), clampIndex(start[1] + right, shown.columns));
  });

  /* values: row after row; NaN leaves a gap. scale: "sequential" or "diverging"; or `palette`, CSS colors by value,
   * where null or no entry leaves a gap (the same two arrays again are not painted again). `marked` is a row to put a
   * frame around, `boundary` a place among the rows to draw a line at, 0 being the upper edge. The cells together are
   * at most `height` pixels high, and with `square` as wide as they are high. xTicks, yTicks: [index, text], by
   * default numbers; xLabel, yLabel. */
  return function draw({ values, rows, columns, low, high, scale = "sequential", height = 220, square = false, ...options }) {
    const { margin = MARGIN, palette = null, marked = null, boundary = null, ...ticks } = options;
    const available = Math.max(1, boxWidth() - margin.left - margin.right);
    const fitting = [available / columns, height / rows];
    const [wide, tall] = square ? [Math.min(...fitting), Math.min(...fitting)] : fitting;
    const area = size(whole(tall, rows), { margin, innerWidth: whole(wide, columns) });
    const painting = [values, palette, canvas.width, canvas.height];
    if (!palette || painting.some((part, index) => part !== painted[index])) {
      if (palette) paintPalette(cells, { values, rows, columns, pixels: palette.map(packedColor) });
      else paint(cells, { values, rows, columns, low, high, pixels: colorScale(scale, view.dark).pixels });
      enlarge(cells, canvas);
      painted = painting;
    }
    const x = linear(0, columns, area.left, area.right);
    const y = linear(0, rows, area.top, area.top + area.height);
    shown = { rows, columns, area, x, y };
    const asked = JSON.stringify([rows, columns, area, ticks, view.dark]);
    if (asked !== framed) {
      const outline = { x: area.left, y: area.top, width: area.width, height: area.height, fill: "none" };
      const options = { x, y, grid: false, colors: view.colors, xLabel: "", yLabel: "", ...middles(ticks, shown) };
      svg.replaceChildren(...axes(area, options), svgElement("rect", { ...outline, stroke: view.colors.line }), mark, cursor);
      framed = asked;
    }
    mark.replaceChildren(
      ...(boundary === null ? [] : [divide(shown, boundary, view.colors)]),
      ...(marked === null ? [] : [frameRow(shown, marked, view.colors)]),
    );
    if (at[0] >= 0) move(...at);
  };
}

function clampIndex(index, length) {
  return Math.min(length - 1, Math.max(0, index));
}

/* The length of `count` cells of about `side` pixels each, every one a whole number of device pixels if it can be. */
function whole(side, count) {
  const ratio = window.devicePixelRatio || 1;
  return side * ratio >= 1 ? (Math.floor(side * ratio) * count) / ratio : side * count;
}

/* Ticks stand at the middle of their cell. */
function middles({ xTicks, yTicks, ...labels }, { rows, columns, area, x, y }) {
  const at = (ticks, scale, count, room) => {
    const chosen = ticks ?? scale.ticks(room).filter((tick) => Number.isInteger(tick) && tick < count);
    return chosen.map((tick) => (Array.isArray(tick) ? [tick[0] + 0.5, tick[1]] : [tick + 0.5, String(tick)]));
  };
  return { ...labels, xTicks: at(xTicks, x, columns, area.width / 55), yTicks: at(yTicks, y, rows, area.height / 40) };
}

function paint(canvas, { values, rows, columns, low, high, pixels }) {
  paintPixels(canvas, rows, columns, (target) => {
    // What colorIndex() does, written out: called for each of 100,000 cells it would take twice as long.
    const last = pixels.length - 1;
    const factor = high > low ? pixels.length / (high - low) : 0;
    for (let index = 0; index < target.length; index += 1) {
      const color = (values[index] - low) * factor;
      target[index] = color === color ? pixels[color < 0 ? 0 : color > last ? last : color | 0] : 0;
    }
  });
}

function paintPalette(canvas, { values, rows, columns, pixels }) {
  const table = new Uint32Array(256);
  table.set(pixels);
  paintPixels(canvas, rows, columns, (target) => {
    for (let index = 0; index < target.length; index += 1) target[index] = table[values[index]];
  });
}

/* More cells than pixels: average, so that none is left out. Otherwise hard edges. */
function enlarge(cells, canvas) {
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = cells.width > canvas.width || cells.height > canvas.height;
  context.imageSmoothingQuality = "high";
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(cells, 0, 0, canvas.width, canvas.height);
}

function paintPixels(canvas, rows, columns, fill) {
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  fill(new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
}

function frameRow({ area, y }, row, colors) {
  const place = { x: area.left - 1, y: y(row) - 1, width: area.width + 2, height: y(row + 1) - y(row) + 2 };
  return svgElement("rect", { ...place, fill: "none", stroke: colors.ink, "stroke-width": 1.5 });
}

function divide({ area, y }, row, colors) {
  const place = { x1: area.left - 6, x2: area.right + 6, y1: y(row), y2: y(row) };
  return svgElement("line", { ...place, stroke: colors.ink, "stroke-width": 1.5, "stroke-dasharray": "5 3" });
}

function frameCell({ area, x, y }, row, column, colors) {
  const [left, right, top, bottom] = [x(column), x(column + 1), y(row), y(row + 1)];
  const lines = { stroke: colors.alarm, "stroke-width": 1, opacity: 0.7 };
  const [middle, center] = [(top + bottom) / 2, (left + right) / 2];
  const size = { x: left - 1, y: top - 1, width: right - left + 2, height: bottom - top + 2 };
  return [
    svgElement("line", { x1: area.left, x2: left, y1: middle, y2: middle, ...lines }),
    svgElement("line", { x1: center, x2: center, y1: bottom, y2: area.top + area.height, ...lines }),
    svgElement("rect", { ...size, fill: "none", stroke: colors.alarm, "stroke-width": 2 }),
  ];
}
