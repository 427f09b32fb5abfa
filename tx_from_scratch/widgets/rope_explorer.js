/* RoPE: the angle of every pair at every position, which of them training has shown, and what that does to scores.
 * The same computation in Python: rope_facts() in rope_explorer.py. */
import { MARGIN } from "./kit/axes.js";
import { cappedSlider } from "./kit/capped_slider.js";
import { colorScale, hex, mixed } from "./kit/colors.js";
import { choice, selection, slider } from "./kit/controls.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { heatMap } from "./kit/heat_map.js";
import { legend } from "./kit/legend.js";
import { linePlot } from "./kit/line_plot.js";
import { memory } from "./kit/memory.js";
import { abelBound, angleTable, handsAt, pairProducts, rotaryScores } from "./kit/rotary.js";
import { attentionFactor, FULL_TURN, rotaryFrequencies, scaledBase, scaledFrequencies } from "./kit/rotary.js";
import { scalingFactor } from "./kit/rotary.js";
import { smallClocks } from "./kit/small_clocks.js";

const MAP_ROWS = 240; // more positions than that share rows
const N_CLOCKS = 8;
const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]]; // of long wavelengths, where there is little room
const COLOR_LEVELS = 127; // of color, for seen angles and for unseen ones
const LENGTHS = ["trained_length", "target_length"];
const TABLE = ["d_head", "base", ...LENGTHS, "method"];
const TRAITS = [...TABLE, "position", "vectors", "seed", "peak"];

const METHODS = [
  ["none", "no scaling"],
  ["linear", "linear (position interpolation)"],
  ["ntk", "NTK-aware"],
  ["dynamic_ntk", "dynamic NTK"],
  ["yarn_index", "YaRN, the ramp of its code"],
  ["yarn_rotations", "YaRN, the ramp of the paper"],
];

/* A dense curve in at most 2 · `columns` points: of the values that share a column, the lowest and the highest. */
export function envelope(values, columns) {
  const count = values.length;
  if (count <= 2 * columns) return { x: Array.from(values.keys()), y: Array.from(values) };
  const x = new Float64Array(2 * columns);
  const y = new Float64Array(2 * columns);
  for (let column = 0, start = 0; column < columns; column += 1) {
    const end = Math.floor(((column + 1) * count) / columns);
    let low = start;
    let high = start;
    for (let index = start + 1; index < end; index += 1) {
      if (values[index] < values[low]) low = index;
      if (values[index] > values[high]) high = index;
    }
    x[2 * column] = Math.min(low, high);
    x[2 * column + 1] = Math.max(low, high);
    start = end;
  }
  x.forEach((index, point) => (y[point] = values[index]));
  return { x, y };
}

function render({ model, el }) {
  const view = frame({ model, el, label: "RoPE explorer" });
  slider(view, "d_head", { label: "width d of a head" });
  slider(view, "base", { label: "base", logarithmic: 10 });
  slider(view, "trained_length", { label: "trained length L", logarithmic: true });
  slider(view, "target_length", { label: "target length L′", logarithmic: true });
  selection(view, "method", { label: "scaling for longer texts", options: METHODS });
  const last = () => model.get("target_length") - 1;
  const capped = { traits: ["target_length"], highest: last };
  cappedSlider(view, "position", { label: "position p, or distance", ...capped });
  const names = ["constant", "random", "chosen"];
  choice(view, "vectors", { label: "vectors q and k", options: names.map((name) => [name, name]) });
  const optional = {
    random: slider(view, "seed", { label: "seed" }),
    chosen: cappedSlider(view, "peak", { label: "distance of the largest score", ...capped }),
  };

  let shown = null; // what the map shows, for the text under the cursor
  const mapPanel = view.panel("Angles of the pairs");
  const drawMap = heatMap(view, mapPanel, {
    ...{ label: "Angles", hint: "Point at a cell, or go there with the arrow keys; click or press Enter to stay." },
    describe: (row, pair) => describeCell(shown, row, pair),
    chosen: (row) => view.set("position", rowStart(shown.table, row)),
  });
  const explainMap = legend(mapPanel);
  const clockPanel = view.panel("Their hands at position p");
  const drawClocks = smallClocks(view, clockPanel, { label: "Clock hands" });
  const explainClocks = legend(clockPanel);
  const drawRatios = linePlot(view, view.panel("Their frequencies, scaled"), { label: "Scaled frequencies" });
  const scorePanel = view.panel("Score of a query with a key behind it, against their distance");
  scorePanel.classList.add("txw-wide");
  const drawScores = linePlot(view, scorePanel, { label: "Score by distance" });

  const latest = memory(); // Only what a setting changes is computed, and drawn, again.
  function draw() {
    const settings = Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)]));
    for (const trait of ["position", "peak"]) settings[trait] = Math.min(settings[trait], last());
    const { vectors, position } = settings;
    const table = latest("table", TABLE.map((trait) => settings[trait]), () =>
      angleTable(settings, MAP_ROWS, shown?.table),
    );
    const only = (name, trait) => (vectors === name ? settings[trait] : null);
    const products = [table, vectors, only("random", "seed"), only("chosen", "peak")];
    const result = latest("scores", products, () => rotaryScores(table, settings));
    const bound = latest("bound", [table, vectors], () => (vectors === "constant" ? abelBound(table, settings) : null));
    const inUse = scaledFrequencies(settings, position + 1);
    shown = { settings, table };
    for (const [name, control] of Object.entries(optional)) control.hidden = vectors !== name;

    const palette = latest("palette", [view.dark], () => mapColors(view));
    const row = rowOf(table, position);
    latest("map", [table, row, palette, view.width], () =>
      drawMap({ ...mapOf(table, settings, latest), palette, marked: row }),
    );
    explainMap([
      [palette[COLOR_LEVELS - 1], `seen, ${view.dark ? "lighter" : "darker"} for larger cosines`],
      [palette[2 * COLOR_LEVELS - 1], "never seen in training"],
    ]);
    const hands = handsAt(table, inUse, position);
    drawClocks(clocksOf(table, inUse, hands));
    explainClocks([
      [mixed(view.colors.ground, view.colors["series-1"], 0.28), "angles seen in training"],
      [view.colors.alarm, "never seen: a round tip"],
    ]);
    const look = [view.width, view.dark];
    // Only dynamic NTK has frequencies that depend on the position.
    const end = settings.method === "dynamic_ntk" ? position : null;
    latest("ratios", [table, end, ...look], () => drawRatios(ratiosOf(table, inUse, settings)));
    const columns = Math.round(Math.min(300, Math.max(100, view.width / 3)));
    latest("curves", [result, bound, position, columns, ...look], () =>
      drawScores(scoresOf(result, bound, settings, { columns, latest })),
    );
    view.say(...sentences(table, inUse, hands, { ...result, bound }, settings));
  }
  view.draws(TRAITS, draw);
  return view.end;
}

/* Colors by level: first those of angles that training has shown, then, toward the warning color, the others. */
function mapColors(view) {
  const levels = Array.from({ length: COLOR_LEVELS }, (_, level) => level / (COLOR_LEVELS - 1));
  const { colors } = colorScale("sequential", view.dark);
  const { ground, alarm } = view.colors;
  return [
    ...levels.map((level) => hex(colors[Math.round(level * 200)])),
    ...levels.map((level) => mixed(ground, alarm, 0.3 + 0.7 * level)),
  ];
}

function rowOf({ length, rows }, position) {
  let row = Math.floor((position * rows) / length);
  if (Math.floor(((row + 1) * length) / rows) <= position) row += 1; // rows end at whole positions
  return row;
}

function rowStart({ length, rows }, row) {
  return Math.floor((row * length) / rows);
}

function mapOf(table, { trained_length, target_length }, latest) {
  const { rows, pairs, means, mostlyUnseen } = table;
  // The same array again is not painted again.
  const values = latest("levels", [table], () => {
    const levels = new Uint8Array(means.length);
    for (let index = 0; index < levels.length; index += 1) {
      const level = Math.round(((means[index] + 1) / 2) * (COLOR_LEVELS - 1));
      levels[index] = Math.min(COLOR_LEVELS - 1, Math.max(0, level)) + COLOR_LEVELS * mostlyUnseen[index];
    }
    return levels;
  });
  const step = 10 ** Math.floor(Math.log10(target_length / 2));
  const every = step * [1, 2, 5].find((factor) => target_length / (factor * step) <= 6);
  const ticks = Array.from({ length: Math.ceil(target_length / every) }, (_, index) => index * every);
  return {
    ...{ values, rows, columns: pairs, height: MAP_ROWS, margin: { ...MARGIN, left: 56, right: 8 } },
    yTicks: ticks.map((tick) => [(tick * rows) / target_length - 0.5, format(tick)]),
    boundary: trained_length < target_length ? (trained_length * rows) / target_length : null,
    ...{ xLabel: "pair i", yLabel: "position p" },
  };
}

function describeCell({ table, settings }, row, pair) {
  const { pairs, means, mostlyUnseen } = table;
  const [from, to] = [rowStart(table, row), rowStart(table, row + 1) - 1];
  const where = from === to ? `p = ${format(from)}` : `p = ${format(from)} to ${format(to)}`;
  const wavelength = FULL_TURN / scaledFrequencies(settings, to + 1)[pair];
  const cosine = `cosine ${from === to ? "" : "on average "}${format(means[row * pairs + pair])}`;
  const verdict = mostlyUnseen[row * pairs + pair] ? "never seen" : "seen";
  return `${where}, i = ${pair}: ${cosine}, λ ${format(wavelength)}, ${verdict} in training`;
}

function clocksOf({ pairs, seen }, inUse, { turns, outside }) {
  const spread = Array.from({ length: N_CLOCKS }, (_, clock) => Math.round((clock * (pairs - 1)) / (N_CLOCKS - 1)));
  const clocks = [...new Set(spread)].map((pair) => ({
    ...{ turn: turns[pair], covered: seen[pair], outside: outside[pair] },
    caption: [`i = ${pair}`, `λ ${shortened(FULL_TURN / inUse[pair])}`],
  }));
  const count = clocks.filter((clock) => clock.outside).length;
  return { clocks, describe: `${count} of the ${clocks.length} shown point where they never were in training` };
}

/* A positive number in three digits, thousands as k, millions as M and so on. */
function shortened(value) {
  const rounded = Number(value.toPrecision(3));
  const [size, unit] = UNITS.find(([size]) => rounded >= size) ?? [1, ""];
  return format(rounded / size) + unit;
}

function ratiosOf({ theta, pairs, seen }, inUse, settings) {
  const x = Array.from({ length: pairs }, (_, pair) => pair);
  const factor = scalingFactor(settings, settings.target_length);
  const ratios = (frequencies) => Array.from(frequencies, (turn, pair) => turn / theta[pair]);
  const level = { x: [0, pairs - 1], y: [1 / factor, 1 / factor], name: `1/s = ${format(1 / factor)}` };
  const lines = [{ ...level, series: 3, dash: 2 }];
  if (settings.method.startsWith("yarn")) {
    const ofCode = settings.method === "yarn_index";
    const other = { ...settings, method: ofCode ? "yarn_rotations" : "yarn_index" };
    const y = ratios(scaledFrequencies(other, settings.target_length));
    lines.push({ x, y, series: 2, dash: 1, name: `the ramp of ${ofCode ? "the paper" : "its code"}` });
  }
  const y = ratios(inUse);
  const [, name] = METHODS.find(([method]) => method === settings.method);
  lines.push({ x, y, series: 1, dash: 0, name });
  const slow = seen.findIndex((share) => share < 1);
  return {
    x: { low: 0, high: pairs - 1, label: "pair i" },
    y: { low: 0, high: 1.05, label: "scaled θ / θ" },
    lines,
    marks: slow < 0 ? [] : [{ x: slow, dash: 1, name: "from here under a turn in training" }],
    describe: `from ${format(y[0])} for the fastest pair to ${format(y[pairs - 1])} for the slowest`,
  };
}

function scoresOf({ scores, largest }, bound, settings, { columns, latest }) {
  const { vectors, position, trained_length, target_length } = settings;
  const curve = latest("envelope", [scores, columns], () => envelope(scores, columns));
  const lines = [{ ...curve, series: 1, dash: 0, name: `${vectors} vectors` }];
  if (bound) {
    // The bound is so loose that only its shape fits into the same plot; the read-out has its value.
    const shape = latest("shape", [bound, columns], () => envelope(bound.map((value) => value / bound[0]), columns));
    lines.unshift({ ...shape, series: 2, dash: 1, name: "shape of the upper bound, scaled to start at 1" });
  }
  // Whole steps, so that the axis stays where it is while the curve moves a little.
  const step = vectors === "constant" ? 0.25 : 1;
  const low = curve.y.reduce((least, value) => Math.min(least, value), 0);
  const high = Math.max(0, scores[largest]);
  const marks = [{ x: position, y: scores[position], series: 1 }];
  if (trained_length < target_length) marks.unshift({ x: trained_length, dash: 1, name: "trained length" });
  return {
    x: { low: 0, high: target_length - 1, label: "distance" },
    y: {
      ...{ low: Math.floor(low / step) * step, high: Math.ceil(high / step - 1e-9) * step },
      label: vectors === "constant" ? "share of q·k" : "q·k / √d",
    },
    ...{ lines, marks },
    describe: `${format(scores[position])} at distance ${format(position)}, largest at distance ${format(largest)}`,
  };
}

function sentences(table, inUse, { outside }, { scores, largest, rising, bound }, settings) {
  const { theta, pairs, seen, unseen } = table;
  const { position, trained_length, target_length } = settings;
  const strong = (text) => element("strong", {}, text);
  const slow = seen.filter((share) => share < 1).length;
  const [fastest, slowest] = [theta[0], theta[pairs - 1]].map((turn) => strong(format(FULL_TURN / turn)));
  const before = [
    ...["Wavelengths from ", fastest, " to ", slowest, " positions; "],
    ...[ strong(`${slow} of ${pairs}`), " pairs turn less than once in the "],
    `${format(trained_length)} positions of training. `,
  ];
  const angles = [
    ...[strong(`${format(100 * unseen)} %`), ` of the angles up to position ${format(target_length - 1)}`],
    ...[` were never seen, at position ${format(position)} those of `],
    ...[strong(`${outside.filter(Boolean).length} of ${pairs}`), " pairs. "],
  ];
  const here = [`At distance ${format(position)} the score is `, strong(format(scores[position]))];
  const shape = bound
    ? [
        ...[` of q·k, RoFormer’s bound allows up to ${format(bound[position])} times q·k; `],
        "the score rises in ",
        ...[strong(`${format(100 * rising)} %`), " of the steps to a longer distance."],
      ]
    : ["; the largest, ", strong(format(scores[largest])), ", is at distance ", strong(format(largest)), "."];
  return [...before, ...scalingWords(inUse, settings, strong), ...angles, ...here, ...shape];
}

function scalingWords(inUse, settings, strong) {
  const { method, position } = settings;
  if (method === "none") return [];
  const factor = scalingFactor(settings, position + 1);
  const slowest = strong(format(FULL_TURN / inUse[inUse.length - 1]));
  const whose = method === "dynamic_ntk" ? `In a text that ends at position ${format(position)}, s = ` : "With s = ";
  const words = [whose, strong(format(factor)), " the slowest wavelength is ", slowest];
  if (method.endsWith("ntk")) words.push(", base′ = ", strong(format(scaledBase(settings, factor), 4)));
  if (method.startsWith("yarn")) {
    const sharper = attentionFactor(settings, factor);
    words.push(", cosines and sines are multiplied by ", strong(format(sharper, 4)));
    words.push(`, scores by ${format(sharper ** 2, 4)}`);
  }
  return [...words, ". "];
}

const compute = {
  ...{ rotaryFrequencies, scaledFrequencies, scalingFactor, scaledBase, attentionFactor },
  ...{ angleTable, pairProducts, rotaryScores, abelBound, envelope, handsAt },
};
export default { render, compute };
