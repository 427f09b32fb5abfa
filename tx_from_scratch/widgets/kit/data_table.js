/* A table of figures with headers, updated in place so that a screen reader keeps its position. */
import { element } from "./elements.js";

/* columns: headers, the first over the rows' own. Returns update(rows): each row is [header, cell, cell, ...], a cell
 * { text, note, best }: the figure, a smaller line below it, and whether to stress it. The number of rows stays. */
export function dataTable(view, panel, { label, columns }) {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const body = element("tbody");
  const table = element("table", { class: "txw-table" }, element("thead", {}, head), body);
  // Where it is too wide, it scrolls by itself, by the arrow keys too.
  const region = element("div", { class: "txw-scroll txw-focusable", tabindex: 0, role: "region" }, table);
  region.setAttribute("aria-label", label);
  panel.append(region);
  let places = [];

  const cell = (name, attributes) => {
    const text = element("span");
    const note = element("small");
    return { node: element(name, attributes, text, note), text, note };
  };
  const put = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  return function update(rows) {
    if (places.length !== rows.length) {
      places = rows.map(([, ...figures]) => [cell("th", { scope: "row" }), ...figures.map(() => cell("td", {}))]);
      body.replaceChildren(...places.map((row) => element("tr", {}, ...row.map(({ node }) => node))));
    }
    rows.forEach((row, r) =>
      row.forEach(({ text, note = "", best = false }, c) => {
        const place = places[r][c];
        put(place.text, text);
        put(place.note, note);
        place.node.toggleAttribute("data-best", best);
      }),
    );
  };
}
