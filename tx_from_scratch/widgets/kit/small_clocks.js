/* Several clocks side by side, each with one hand and a shaded part that the hand has been in before.
 *
 * Angle 0 is twelve o'clock and angles grow clockwise, as on the large clock face. All clocks together are a few
 * paths: their number costs next to nothing. */
import { figure } from "./axes.js";
import { setAttributes, svgElement } from "./elements.js";

const CAPTION_LINES = [13, 26]; // baselines below a clock, px
const CAPTION_HEIGHT = 36;

/* draw({ clocks, describe }): clocks [{ turn, covered, outside, caption }], at most as many as fit in rows of `perRow`:
 * where the hand points and how far the shaded part goes, both in turns (one or more is all of it), whether to warn
 * about the hand, and two lines of text. */
export function smallClocks(view, panel, { label, perRow = 4, largest = 30 }) {
  const { svg, size, boxWidth } = figure(view, panel, { label });
  const parts = {
    shade: svgElement("path", { stroke: "none" }),
    rims: svgElement("path", { fill: "none" }),
    hands: svgElement("path", { fill: "none", "stroke-width": 2.5, "stroke-linecap": "round" }),
    warnings: svgElement("path", { fill: "none", "stroke-width": 2.5, "stroke-linecap": "round" }),
    tips: svgElement("path", { stroke: "none" }), // the warning in another form than color
    captions: svgElement("g"),
  };
  svg.append(...Object.values(parts));
  let lines = []; // the captions' text elements
  let framed = "";

  return function draw({ clocks, describe }) {
    const cell = Math.max(1, boxWidth()) / perRow;
    const radius = Math.max(1, Math.min(largest, cell / 2 - 4));
    const step = 2 * radius + CAPTION_HEIGHT;
    const centers = clocks.map((_, index) => ({
      x: ((index % perRow) + 0.5) * cell,
      y: 2 + radius + Math.floor(index / perRow) * step,
    }));
    const asked = `${clocks.length} ${cell} ${view.dark}`;
    if (asked !== framed) {
      framed = asked;
      const margin = { left: 0, right: 0, top: 2, bottom: 0 };
      size(Math.ceil(clocks.length / perRow) * step, { margin });
      lines = centers.map(({ x, y }) =>
        CAPTION_LINES.map((below) => svgElement("text", { x, y: y + radius + below, "text-anchor": "middle" })),
      );
      parts.captions.replaceChildren(...lines.flat());
      setAttributes(parts.rims, { d: centers.map((at) => sector(at, radius, 1)).join(""), stroke: view.colors.line });
      setAttributes(parts.shade, { fill: view.colors["series-1"], opacity: 0.28 });
      setAttributes(parts.hands, { stroke: view.colors.ink });
      for (const name of ["warnings", "tips"]) {
        parts[name].setAttribute(name === "tips" ? "fill" : "stroke", view.colors.alarm);
      }
    }
    const paths = { shade: "", hands: "", warnings: "", tips: "" };
    clocks.forEach(({ turn, covered, outside, caption }, index) => {
      const at = centers[index];
      paths.shade += sector(at, radius, covered);
      paths[outside ? "warnings" : "hands"] += `M${place(at, 0, 0)}L${place(at, radius * 0.9, turn)}`;
      if (outside) paths.tips += sector(pointAt(at, radius * 0.9, turn), 4.5, 1);
      caption.forEach((text, line) => {
        const node = lines[index][line];
        if (node.textContent !== text) node.textContent = text;
      });
    });
    for (const [name, d] of Object.entries(paths)) parts[name].setAttribute("d", d);
    svg.setAttribute("aria-label", `${label}: ${describe}`);
  };
}

function pointAt({ x, y }, radius, turn) {
  const angle = 2 * Math.PI * turn;
  return { x: x + radius * Math.sin(angle), y: y - radius * Math.cos(angle) };
}

function place(center, radius, turn) {
  const { x, y } = pointAt(center, radius, turn);
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

/* The part of a disk from twelve o'clock over so many turns; a whole one is drawn as two halves. */
function sector(center, radius, turns) {
  const arc = (large, end) => `A${radius} ${radius} 0 ${large} 1 ${place(center, radius, end)}`;
  if (turns >= 1) return `M${place(center, radius, 0)}${arc(0, 0.5)}${arc(0, 1)}Z`;
  return `M${place(center, 0, 0)}L${place(center, radius, 0)}${arc(turns > 0.5 ? 1 : 0, turns)}Z`;
}
