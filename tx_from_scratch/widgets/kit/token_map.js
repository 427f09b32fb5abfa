/* A matrix between two lists of tokens: colored cells on a canvas, tokens on both axes, and a cursor that leaves
 * the row and the column of a token bright. Queries go down, keys across. */
import { figure } from "./axes.js";
import { colorScale } from "./colors.js";
import { element, svgElement } from "./elements.js";
import { visible } from "./tokens.js";

const CELL_LIMIT = 34; // px; larger cells are no easier to read
const MAP_HEIGHT = 440;
const LABEL_CHARACTERS = 16;
const NARROW = 420; // px; there the labels get less room
const LABEL_ROOM = 13; // px between the lines of text that stand above each other
const SLANTED_ROOM = 17;
const CURSOR_MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/* The largest of each group of cells, so that no peak is lost where there are more cells than pixels.
 * `weights` holds the matrix from `start`, row after row; `tall` <= rows, `wide` <= columns. */
export function pooled(weights, start, rows, columns, tall, wide) {
  if (tall === rows && wide === columns) return weights.subarray(start, start + rows * columns);
  const result = new weights.constructor(tall * wide);
  const place = new Uint32Array(columns);
  for (let column = 0; column < columns; column += 1) place[column] = Math.floor((column * wide) / columns);
  let index = start;
  for (let row = 0; row < rows; row += 1) {
    const base = Math.floor((row * tall) / rows) * wide;
    for (let column = 0; column < columns; column += 1) {
      const at = base + place[column];
      if (weights[index] > result[at]) result[at] = weights[index];
      index += 1;
    }
  }
  return result;
}

/* pointed(query, key): the pointer is there; -1 stands for none. chosen(query, key): clicked, or moved by key. */
export function tokenMap(view, panel, { label, pointed, chosen }) {
  const name = `${label}; arrow keys move a cursor`;
  const canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": name });
  const { svg, size, boxWidth } = figure(view, panel, { label, canvas });
  const box = svg.parentElement;
  const cells = document.createElement("canvas"); // one pixel for each cell
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "11px system-ui, sans-serif";
  const names = svgElement("g");
  const cursor = svgElement("g");
  svg.append(names, cursor);
  let shown = null;
  let at = [-1, -1];

  const place = (event) => {
    const { left, top } = box.getBoundingClientRect();
    const { area, wide, tall, rows, columns } = shown;
    const row = Math.floor((event.clientY - top - area.top) / tall);
    const column = Math.floor((event.clientX - left - area.left) / wide);
    // Beside the map stand the tokens themselves: one of them alone means its row, or its column.
    const [inRow, inColumn] = [row >= 0 && row < rows, column >= 0 && column < columns];
    if (inRow && (inColumn || column < 0)) return [row, inColumn ? column : -1];
    return inColumn && row >= rows ? [-1, column] : [-1, -1];
  };
  box.addEventListener("pointermove", (event) => event.pointerType === "mouse" && shown && pointed(...place(event)));
  box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointed(-1, -1));
  box.addEventListener("click", (event) => {
    if (!shown) return;
    const [query, key] = place(event);
    const again = query === shown.chosen[0] && key === shown.chosen[1];
    chosen(...(again ? [-1, -1] : [query, key]));
  });
  canvas.addEventListener("keydown", (event) => {
    if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
    const { rows, columns } = shown;
    const [query, key] = shown.chosen;
    let next = null;
    if (CURSOR_MOVES[event.key]) {
      const [down, right] = CURSOR_MOVES[event.key];
      const within = (index, step, count) => (index < 0 ? 0 : Math.min(count - 1, Math.max(0, index + step)));
      next = [within(query, down, rows), within(key, right, columns)];
    } else if (event.key === "Home") next = [Math.max(0, query), 0];
    else if (event.key === "End") next = [Math.max(0, query), columns - 1];
    else if (event.key === "Escape") next = [-1, -1];
    if (!next) return;
    event.preventDefault();
    pointed(-1, -1);
    chosen(...next);
  });

  /* A label of the axis, cut where it is too long; the strong one, for the cursor, covers what it stands on. */
  const text = (token) => visible(token, boxWidth() < NARROW ? LABEL_CHARACTERS - 6 : LABEL_CHARACTERS);
  const widest = (tokens, every) => {
    let width = 0;
    for (let index = 0; index < tokens.length; index += every) {
      width = Math.max(width, ruler.measureText(text(tokens[index])).width);
    }
    return width;
  };
  const rowLabel = ({ area, tall }, index, token, strong) => {
    const y = area.top + (index + 0.5) * tall;
    return svgElement("text", { x: area.left - 5, y: y + 4, "text-anchor": "end", class: strong }, text(token));
  };
  const columnLabel = ({ area, wide, level }, index, token, strong) => {
    const x = area.left + (index + 0.5) * wide;
    const y = area.top + area.height;
    if (level) return svgElement("text", { x, y: y + 14, "text-anchor": "middle", class: strong }, text(token));
    const transform = `translate(${(x + 4).toFixed(1)} ${y + 11}) rotate(-45)`;
    return svgElement("text", { transform, "text-anchor": "end", class: strong }, text(token));
  };

  return {
    /* weights: the matrix from `start`, row after row, of which `high` takes the brightest color. */
    draw({ weights, start, rows, columns, high, rowTokens, columnTokens }) {
      const full = boxWidth();
      const some = (tokens) => Math.ceil(tokens.length / 100); // enough of them to know how much room labels need
      const left = Math.ceil(widest(rowTokens, some(rowTokens))) + 28;
      const room = Math.max(1, full - left - 4);
      let [wide, tall] = [Math.min(CELL_LIMIT, room / columns), Math.min(CELL_LIMIT, MAP_HEIGHT / rows)];
      const side = Math.min(wide, tall);
      const uneven = rows === columns ? 1 : side < 4 ? 12 : 2; // cells of a long narrow map need not be square
      [wide, tall] = [Math.min(wide, side * uneven), Math.min(tall, side * uneven)];
      const longest = Math.ceil(widest(columnTokens, some(columnTokens)));
      const level = longest + 6 <= wide;
      const bottom = level ? 34 : Math.ceil((longest + 11) * Math.SQRT1_2) + 26;
      const margin = { left, right: 4, top: 4, bottom };
      const area = size(tall * rows, { margin, innerWidth: wide * columns });

      const [down, across] = [Math.min(rows, canvas.height), Math.min(columns, canvas.width)];
      const values = pooled(weights, start, rows, columns, down, across);
      const { pixels } = colorScale("sequential", view.dark);
      if (cells.width !== across) cells.width = across;
      if (cells.height !== down) cells.height = down;
      const target = cells.getContext("2d");
      const image = target.createImageData(across, down);
      const colors = new Uint32Array(image.data.buffer);
      const factor = high ? 256 / high : 0;
      for (let index = 0; index < colors.length; index += 1) {
        colors[index] = pixels[Math.min(255, (values[index] * factor) | 0)];
      }
      target.putImageData(image, 0, 0);
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.drawImage(cells, 0, 0, canvas.width, canvas.height);

      const geometry = JSON.stringify([area, wide, tall, level, bottom, view.dark]);
      if (shown?.geometry === geometry) return; // text is slow to lay out: it stays while it fits
      const place = { area, wide, tall, level, bottom, rows, columns, rowTokens, columnTokens, geometry };
      shown = { ...place, chosen: shown?.chosen ?? [-1, -1] };
      const thinned = (tokens, cell, least, label) => {
        const every = Math.max(1, Math.ceil(least / cell));
        return tokens.flatMap((token, index) => (index % every ? [] : [label(shown, index, token, null)]));
      };
      const outline = { x: area.left, y: area.top, width: area.width, height: area.height };
      const middle = `translate(12 ${area.top + area.height / 2}) rotate(-90)`;
      const end = area.top + area.height + bottom - 5;
      names.replaceChildren(
        svgElement("rect", { ...outline, fill: "none", stroke: view.colors.line }),
        svgElement("text", { transform: middle, "text-anchor": "middle" }, "query"),
        svgElement("text", { x: area.left + area.width / 2, y: end, "text-anchor": "middle" }, "key"),
        ...thinned(rowTokens, tall, LABEL_ROOM, rowLabel),
        ...thinned(columnTokens, wide, level ? 1 : SLANTED_ROOM, columnLabel),
      );
      at = [-2, -2];
    },
    /* Shows the cursor at a query, a key, or where both meet. `fixed`: [query, key] where a click or a key put it. */
    mark(query, key, fixed) {
      shown.chosen = fixed;
      if (query === at[0] && key === at[1]) return;
      at = [query, key];
      const { area, wide, tall, rowTokens, columnTokens } = shown;
      const [row, column] = [area.top + query * tall, area.left + key * wide];
      const [bottom, right] = [area.top + area.height, area.right];
      // Everything outside the row and the column fades: what is left are up to four rectangles.
      const rest = (start, end, from, to, none) => (none ? [[start, end]] : [[start, from], [to, end]]);
      const downs = rest(area.top, bottom, row, row + tall, query < 0);
      const acrosses = rest(area.left, right, column, column + wide, key < 0);
      const faded = downs.flatMap(([y1, y2]) => acrosses.map(([x1, x2]) => `M${x1} ${y1}H${x2}V${y2}H${x1}Z`)).join("");
      const parts = [];
      if (query >= 0 || key >= 0) parts.push(svgElement("path", { d: faded, fill: view.colors.ground, opacity: 0.72 }));
      const line = { fill: "none", stroke: view.colors.alarm };
      const lines = [];
      if (query >= 0) lines.push(`M${area.left} ${row}H${right}M${area.left} ${row + tall}H${right}`);
      if (key >= 0) lines.push(`M${column} ${area.top}V${bottom}M${column + wide} ${area.top}V${bottom}`);
      if (lines.length) parts.push(svgElement("path", { d: lines.join(""), ...line, opacity: 0.75 }));
      if (query >= 0 && key >= 0) {
        const cell = { x: column - 1, y: row - 1, width: wide + 2, height: tall + 2 };
        parts.push(svgElement("rect", { ...cell, ...line, "stroke-width": 2 }));
      }
      if (query >= 0) parts.push(rowLabel(shown, query, rowTokens[query], "txw-strong txw-halo"));
      if (key >= 0) parts.push(columnLabel(shown, key, columnTokens[key], "txw-strong txw-halo"));
      cursor.replaceChildren(...parts);
      names.setAttribute("opacity", parts.length ? 0.45 : 1);
    },
    /* How many cells share a pixel, in either direction; 1 where all can be seen. */
    crowding() {
      const ratio = window.devicePixelRatio || 1;
      return Math.max(1, 1 / (shown.wide * ratio), 1 / (shown.tall * ratio));
    },
  };
}
