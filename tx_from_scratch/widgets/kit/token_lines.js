/* Two columns of tokens, queries and keys, with a line for every weight between them. */
import { element, setAttributes, svgElement, uniqueId } from "./elements.js";
import { memory } from "./memory.js";
import { tokenElement, visible } from "./tokens.js";

const LINE_ROW = 24; // px, the least that a finger hits
const LEVELS = 16; // of opacity; the lines of one level are one path
const LINES_HEIGHT = 440; // px; beyond that the box scrolls
const MOST_LINES = 1500;
const FAINT = 1 / 100; // of the strongest: below that nothing could be seen
const COLUMN_MOVES = { ArrowUp: -1, ArrowDown: 1, PageUp: -15, PageDown: 15 };

/* Which weights are drawn: those of one query, of one key, or of both; without either, all of them. Those below
 * `faint` are left out, and of more than `most` the weakest. Gives the indices in the matrix of those that are drawn,
 * how many are left out, the largest of these, and the share of the weight that they hold. Zeros don't count. */
export function strongest(weights, start, rows, columns, { query = -1, key = -1, faint = 0, most = MOST_LINES }) {
  const runs = []; // of indices: where they begin, how far they are apart, how many they are
  if (query < 0 && key < 0) runs.push({ from: 0, step: 1, count: rows * columns });
  if (query >= 0) runs.push({ from: query * columns, step: 1, count: columns });
  if (key >= 0) runs.push({ from: key, step: columns, count: rows });
  const twice = query >= 0 && key >= 0 ? query * columns + key : -1; // in both runs
  const visit = (visitor) => {
    for (const [number, { from, step, count }] of runs.entries()) {
      for (let position = 0, index = from; position < count; position += 1, index += step) {
        const weight = weights[start + index];
        if (weight > 0 && !(number === 1 && index === twice)) visitor(index, weight);
      }
    }
  };
  const counts = new Uint32Array(65536);
  let all = 0;
  let total = 0;
  visit((index, weight) => {
    counts[weight] += 1;
    all += 1;
    total += weight;
  });
  // The weakest that is drawn; of those just as strong, as many as there is room for.
  let least = 65535;
  let above = 0;
  while (least > 0 && least >= faint && above + counts[least] <= most) above += counts[least--];
  let room = least > 0 && least >= faint ? most - above : 0;
  const indices = new Uint32Array(above + Math.min(room, counts[least]));
  let taken = 0;
  let largest = 0;
  let drawn = 0;
  visit((index, weight) => {
    if (weight > least || (weight === least && room > 0)) {
      if (weight === least) room -= 1;
      indices[taken] = index;
      taken += 1;
      drawn += weight;
    } else if (weight > largest) largest = weight;
  });
  return { indices, hidden: all - taken, largest, share: total ? (total - drawn) / total : 0 };
}

/* pointed(query, key) and chosen(query, key) as in tokenMap(); the queries begin `shift` rows below the keys. */
export function tokenLines(view, panel, { rowTokens, columnTokens, shift = 0, pointed, chosen }) {
  const svg = svgElement("svg", { class: "txw-lines-drawing", "aria-hidden": "true" });
  const sides = [
    { name: "query", tokens: rowTokens, report: (call, index) => call(index, -1) },
    { name: "key", tokens: columnTokens, report: (call, index) => call(-1, index) },
  ];
  let shown = null;
  for (const [side, column] of sides.entries()) {
    column.options = column.tokens.map((token, index) => {
      const attributes = { role: "option", id: uniqueId(column.name), "data-index": index, title: visible(token) };
      return element("div", attributes, tokenElement(token));
    });
    const attributes = { class: "txw-tokens", role: "listbox", tabindex: 0, "aria-label": `${column.name} tokens` };
    column.list = element("div", attributes, ...column.options);
    column.selected = -1;
    const indexAt = (event) => Number(event.target.closest("[data-index]")?.dataset.index ?? -1);
    column.list.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") column.report(pointed, indexAt(event));
    });
    column.list.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointed(-1, -1));
    column.list.addEventListener("click", (event) => {
      if (!document.getSelection().isCollapsed) return; // the reader selects text
      const index = indexAt(event);
      column.report(chosen, index === shown.fixed[side] ? -1 : index);
    });
    column.list.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = column.tokens.length - 1;
      const here = shown.fixed[side];
      let next = null;
      if (COLUMN_MOVES[event.key]) next = here < 0 ? 0 : Math.min(last, Math.max(0, here + COLUMN_MOVES[event.key]));
      else if (event.key === "Home") next = 0;
      else if (event.key === "End") next = last;
      else if (event.key === "Escape") next = -1;
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        sides[event.key === "ArrowLeft" ? 0 : 1].list.focus({ preventScroll: true });
      }
      if (next === null) return;
      event.preventDefault();
      pointed(-1, -1);
      column.report(chosen, next);
    });
  }
  const content = element("div", { class: "txw-lines" }, sides[0].list, svg, sides[1].list);
  const box = element("div", { class: "txw-scroll" }, content);
  const heads = sides.map(({ name }) => element("span", {}, name));
  const whole = element("div", {}, element("div", { class: "txw-lines-heads", "aria-hidden": "true" }, ...heads), box);
  panel.append(whole);
  const height = LINE_ROW * Math.max(rowTokens.length + shift, columnTokens.length);
  sides[0].list.style.paddingTop = `${shift * LINE_ROW}px`;

  /* Only the box scrolls, never the page. To ask it where it stands would make the browser lay it out. */
  let scrolled = 0;
  const visibleHeight = Math.min(height, LINES_HEIGHT);
  box.style.height = `${visibleHeight}px`;
  box.addEventListener("scroll", () => (scrolled = box.scrollTop), { passive: true });
  const scroll = (y) => (box.scrollTop = scrolled = Math.min(height - visibleHeight, Math.max(0, y)));
  const reveal = (row) => {
    const y = row * LINE_ROW;
    if (y < scrolled || y + LINE_ROW > scrolled + visibleHeight) scroll(y - visibleHeight / 2);
  };
  const asked = { at: null, width: 0 };
  const latest = memory();
  let placed = false;

  return {
    /* weights: the matrix from `start`, row after row; `high` is drawn opaque. Gives what strongest() does. */
    draw({ weights, start, high, query, key, fixed }) {
      const before = shown?.fixed ?? [-1, -1];
      shown = { fixed };
      if (asked.at !== view.width) Object.assign(asked, { at: view.width, width: content.clientWidth });
      const width = asked.width;
      const column = Math.round(Math.min(180, width * 0.34));
      const rows = rowTokens.length;
      const columns = columnTokens.length;
      const choose = () => strongest(weights, start, rows, columns, { query, key, faint: high * FAINT });
      // To look at the whole matrix takes a while, and it comes back whenever the pointer leaves a token.
      const lines = query < 0 && key < 0 ? latest("all", [weights, start, high], choose) : choose();
      const paths = new Array(LEVELS).fill("");
      const [left, right] = [column + 4, width - column - 4];
      const factor = high ? LEVELS / high : 0;
      for (let number = 0; number < lines.indices.length; number += 1) {
        const index = lines.indices[number];
        const row = Math.floor(index / columns);
        const level = Math.min(LEVELS - 1, Math.floor(weights[start + index] * factor));
        const [from, to] = [row + shift, index - row * columns];
        paths[level] += `M${left} ${(from + 0.5) * LINE_ROW}L${right} ${(to + 0.5) * LINE_ROW}`;
      }
      // Behind the tokens at the other end of a token's lines, bars as long as their weights.
      let bars = "";
      const bar = (x, index, length) =>
        `M${x} ${index * LINE_ROW + 2}h${length.toFixed(1)}v${LINE_ROW - 4}h${(-length).toFixed(1)}Z`;
      const longest = column / 65535;
      if (query >= 0) for (let index = 0; index < columns; index += 1) {
        const weight = weights[start + query * columns + index];
        if (weight) bars += bar(width - column, index, weight * longest);
      }
      if (key >= 0) for (let index = 0; index < rows; index += 1) {
        const weight = weights[start + index * columns + key];
        if (weight) bars += bar(column, index + shift, -weight * longest);
      }
      setAttributes(svg, { width, height });
      whole.style.setProperty("--txw-column", `${column}px`);
      content.style.height = `${height}px`;
      svg.replaceChildren(
        svgElement("path", { d: bars, fill: view.colors.accent, opacity: 0.35 }),
        ...paths.map((d, level) => {
          const opacity = (level + 0.5) / LEVELS;
          return svgElement("path", { d, stroke: view.colors.accent, opacity });
        }),
      );
      for (const [side, index] of [query, key].entries()) {
        const { list, options, selected } = sides[side];
        if (fixed[side] < 0) list.removeAttribute("aria-activedescendant");
        else list.setAttribute("aria-activedescendant", options[fixed[side]].id);
        if (selected === index) continue;
        options[selected]?.removeAttribute("aria-selected");
        options[index]?.setAttribute("aria-selected", "true");
        sides[side].selected = index;
      }
      if (!placed) scroll(shift * LINE_ROW);
      placed = true;
      if (fixed[1] !== before[1] && fixed[1] >= 0) reveal(fixed[1]);
      if (fixed[0] !== before[0] && fixed[0] >= 0) reveal(fixed[0] + shift);
      return lines;
    },
  };
}
