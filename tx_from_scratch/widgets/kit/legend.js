/* What the colors of a figure mean. */
import { element, svgElement } from "./elements.js";

/* explain([[color, text]]) shows a square of each color with its text; no color (null) is an empty square. */
export function legend(panel) {
  const place = element("p", { class: "txw-legend" });
  panel.append(place);
  let shown = "";
  return function explain(entries) {
    const asked = JSON.stringify(entries);
    if (asked === shown) return;
    shown = asked;
    place.replaceChildren(...entries.map(([color, text]) => element("span", {}, square(color), text)));
  };
}

function square(color) {
  const place = { x: 0.5, y: 0.5, width: 11, height: 11, fill: color ?? "none", stroke: "var(--txw-line)" };
  return svgElement("svg", { width: 12, height: 12, "aria-hidden": "true" }, svgElement("rect", place));
}
