/* A circle with hands: sine to the right, cosine up, so that angle 0 is twelve o'clock and angles grow clockwise. */
import { figure } from "./axes.js";
import { element, setAttributes, svgElement } from "./elements.js";
import { memory } from "./memory.js";

/* draw({ hands, trail, angle, describe }): a circle, hands [{ hand, name, series, dash }], the arc by which the
 * first one is turned, and `trail`, [sine, cosine, sine, ...], where the hand stands at every position. */
export function clockFace(view, panel, { label, height = 190 }) {
  const { svg, size } = figure(view, panel, { label });
  const legend = element("p", { class: "txw-legend" });
  panel.append(legend);
  const latest = memory();
  const trailPath = svgElement("path", { fill: "none", "stroke-width": 3, "stroke-linecap": "round", opacity: 0.45 });
  const circle = svgElement("circle", { fill: "none" });
  const moving = svgElement("g");
  svg.append(circle, trailPath, moving);

  return function draw({ hands, trail, angle, describe }) {
    const { width } = size(height, { margin: { left: 4, right: 4, top: 4, bottom: 4 } });
    // A hand whose sine and cosine run at different speeds can be longer than the circle's radius.
    const longest = latest("longest", [trail], () => farthest(trail));
    const reach = Math.max(1, longest, ...hands.map(({ hand }) => Math.hypot(...hand)));
    const radius = (Math.min(width, height) / 2 - 12) / reach;
    const center = { x: 4 + width / 2, y: 4 + height / 2 };
    const at = ([sine, cosine], share = 1) =>
      `${(center.x + share * radius * sine).toFixed(1)} ${(center.y - share * radius * cosine).toFixed(1)}`;
    latest("ground", [trail, radius, view.width, view.dark], () => {
      setAttributes(circle, { cx: center.x, cy: center.y, r: radius, stroke: view.colors.line });
      let d = "";
      for (let index = 0; index < trail.length; index += 2) d += `M${at([trail[index], trail[index + 1]])}h0`;
      setAttributes(trailPath, { d, stroke: view.colors.line });
    });
    const color = (series) => view.colors[series ? `series-${series}` : "ink"];
    const lines = hands.map(({ hand, series, dash }) =>
      svgElement("path", {
        d: `M${center.x} ${center.y}L${at(hand)}`,
        ...{ stroke: color(series), "stroke-width": 3, "stroke-dasharray": dash, "stroke-linecap": "round" },
      }),
    );
    // The arc starts where the first hand points, and is drawn in short chords.
    const start = Math.atan2(hands[0].hand[0], hands[0].hand[1]);
    const arc = Array.from({ length: 49 }, (_, step) => {
      const direction = start + (angle * step) / 48;
      return at([Math.sin(direction), Math.cos(direction)], 0.4);
    });
    moving.replaceChildren(
      svgElement("path", { d: `M${arc.join("L")}`, fill: "none", stroke: view.colors.quiet, "stroke-width": 1.5 }),
      ...lines,
      svgElement("circle", { cx: center.x, cy: center.y, r: 3, fill: view.colors.ink }),
    );
    legend.replaceChildren(
      ...hands.map(({ name, series, dash }) => {
        const look = { stroke: color(series), "stroke-width": 3, "stroke-dasharray": dash };
        const sample = svgElement("line", { x1: 1, x2: 19, y1: 5, y2: 5, ...look });
        const drawn = svgElement("svg", { width: 20, height: 10, "aria-hidden": "true" }, sample);
        return element("span", {}, drawn, name);
      }),
    );
    svg.setAttribute("aria-label", `${label}: ${describe}`);
  };
}

/* The greatest length among hands given as [sine, cosine, sine, ...]. */
function farthest(trail) {
  let longest = 0;
  for (let index = 0; index < trail.length; index += 2) {
    longest = Math.max(longest, Math.hypot(trail[index], trail[index + 1]));
  }
  return longest;
}
