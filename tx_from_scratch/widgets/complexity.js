/* What the four layers of the paper's table cost. The same formulas in Python: tx_from_scratch/complexity.py. */
import { choice, slider, toggle } from "./kit/controls.js";
import { dataTable } from "./kit/data_table.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { linePlot } from "./kit/line_plot.js";

const MIN_LENGTH = 16;
const MAX_LENGTH = 131072;
const GATES = { plain: 1, GRU: 3, LSTM: 4 };
const KEPT_BY_CELL = { plain: 2, GRU: 6, LSTM: 8 }; // numbers per position and unit of width
const BYTES = { fp32: 4, bf16: 2 };
const CELL_NAMES = { plain: "a plain recurrence", GRU: "a GRU", LSTM: "an LSTM" };
const NUMBERS = ["length", "d_model", "kernel_size", "n_neighbors", "n_heads"];
const TRAITS = [...NUMBERS, "projections", "cell", "dilated", "materialized", "number_format"];

/* The four layers in the order of the table: FLOPs, numbers kept for the backward pass, sequential steps, and layers
 * from the first input to the last output (null: there is no way). Every count is a whole number below 2^53. */
export function costs(settings) {
  const { length: n, d_model: d, kernel_size, n_neighbors, projections, cell, dilated } = settings;
  const read = Math.min(n_neighbors, n);
  const projected = projections ? 8 * n * d * d : 0;
  const attention = { sequential: 1, activations: keptByAttention(settings, n), path: 1 };
  return [
    { ...attention, flops: 4 * n * n * d + projected },
    { flops: 4 * GATES[cell] * n * d * d, activations: KEPT_BY_CELL[cell] * n * d, sequential: n, path: n - 1 },
    {
      ...{ flops: 2 * kernel_size * n * d * d, activations: n * d, sequential: 1 },
      path: dilated ? layersByFactor(n, kernel_size) : layersBySteps(n, kernel_size - 1),
    },
    {
      ...{ flops: 4 * read * n * d + projected, activations: keptByAttention(settings, read), sequential: 1 },
      path: layersBySteps(n, read - 1),
    },
  ];
}

function keptByAttention({ length: n, d_model: d, n_heads, projections, materialized }, read) {
  if (materialized) return (projections ? 5 : 3) * n * d + n_heads * n * read;
  return (projections ? 5 : 4) * n * d + n_heads * n;
}

function layersBySteps(n, step) {
  return step === 0 ? null : Math.ceil((n - 1) / step);
}

/* Not by logarithms: ln 125 / ln 5 is a little more than 3. */
function layersByFactor(n, factor) {
  if (factor === 1) return null;
  let layers = 0;
  for (let seen = 1; seen < n; seen *= factor) layers += 1;
  return layers;
}

/* Lengths at which the order changes, as Complexity.crossovers() in Python names them; null where it never does. */
export function crossovers({ d_model: d, kernel_size, n_neighbors, n_heads, projections, cell, materialized }) {
  const meet = (quadratic, linear, other) => (other > linear ? (other - linear) / quadratic : null);
  const projected = projections ? 8 * d * d : 0;
  const kept = (projections ? 5 : 3) * d;
  return {
    recurrence: meet(4 * d, projected, 4 * GATES[cell] * d * d),
    convolution: meet(4 * d, projected, 2 * kernel_size * d * d),
    neighbors: n_neighbors,
    projections: projections ? 2 * d : null,
    recurrence_memory: materialized ? meet(n_heads, kept, KEPT_BY_CELL[cell] * d) : null,
    weights: materialized ? kept / n_heads : null,
  };
}

/* 4,290,000,000 as "4.29 G", with decimal prefixes. */
export function withPrefix(value) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let index = 0;
  let scaled = value;
  while (scaled >= 999.5 && index < prefixes.length - 1) {
    scaled /= 1000;
    index += 1;
  }
  return `${format(Number(scaled.toPrecision(3)))} ${prefixes[index]}`;
}

/* Half octaves, and the lengths at which a line has a corner. */
function curveLengths({ length, n_neighbors }) {
  const steps = Array.from({ length: 27 }, (_, step) => Math.round(MIN_LENGTH * 2 ** (step / 2)));
  const all = new Set([...steps, length, Math.max(MIN_LENGTH, n_neighbors)]);
  return [...all].sort((one, other) => one - other);
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Complexity" });
  view.root.style.setProperty("--txw-panel", "300px");
  slider(view, "length", { label: "length n", logarithmic: true });
  slider(view, "d_model", { label: "width d", logarithmic: true });
  toggle(view, "projections", { label: "count the projections" });
  choice(view, "cell", { label: "recurrence", options: Object.keys(GATES).map((name) => [name, name]) });
  slider(view, "kernel_size", { label: "kernel k" });
  toggle(view, "dilated", { label: "dilated" });
  slider(view, "n_neighbors", { label: "neighbors r", logarithmic: true });
  slider(view, "n_heads", { label: "heads h", logarithmic: true });
  toggle(view, "materialized", { label: "attention weights kept" });
  choice(view, "number_format", { label: "number format", options: Object.keys(BYTES).map((name) => [name, name]) });

  const drawFlops = linePlot(view, view.panel("FLOPs of one layer"), { label: "FLOPs over length" });
  const drawMemory = linePlot(view, view.panel("Kept for the backward pass"), { label: "Memory over length" });
  const tablePanel = view.panel("One layer on one sequence; the least in bold");
  tablePanel.style.gridColumn = "1 / -1";
  const columns = ["Layer", "FLOPs", "Kept", "Sequential", "Longest path"];
  const updateTable = dataTable(view, tablePanel, { label: "Cost of the four layers", columns });

  const draw = () => {
    const settings = Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)]));
    const here = costs(settings);
    const crossing = crossovers(settings);
    const lengths = curveLengths(settings);
    const curves = lengths.map((length) => costs({ ...settings, length }));
    const bytes = BYTES[settings.number_format];
    const plot = { settings, lengths, curves, names: namesOf(settings), here };
    const { recurrence, convolution, neighbors, recurrence_memory } = crossing;
    const restricted = settings.materialized ? neighbors : null;
    drawFlops(
      plotOf(plot, { label: "FLOPs", value: ({ flops }) => flops, meetings: [recurrence, convolution, neighbors] }),
    );
    drawMemory(
      plotOf(plot, {
        ...{ label: "bytes", value: ({ activations }) => bytes * activations },
        meetings: [recurrence_memory, restricted],
      }),
    );
    updateTable(rowsOf(settings, here, bytes));
    view.say(...sentences(settings, here, crossing));
  };
  view.draws(TRAITS, draw);
  return view.end;
}

function namesOf({ cell, kernel_size, n_neighbors }) {
  const recurrence = cell === "plain" ? "recurrence" : cell;
  return ["self-attention", recurrence, `convolution, k = ${kernel_size}`, `attention to ${n_neighbors}`];
}

/* Four lines over the length, where you are, and where self-attention meets another layer. */
function plotOf({ settings, lengths, curves, names, here }, { label, value, meetings }) {
  const lines = names.map((name, index) => ({
    ...{ x: lengths, y: curves.map((layers) => value(layers[index])), name, series: index + 1, dash: index },
  }));
  const values = lines.flatMap(({ y }) => y);
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.ceil(Math.log10(Math.max(...values)));
  const crossed = meetings.filter((at) => at !== null && at >= MIN_LENGTH && at <= MAX_LENGTH);
  const marks = crossed.map((at, index) => ({
    ...{ x: at, y: value(costs({ ...settings, length: at })[0]) },
    name: index ? "" : "self-attention meets another",
  }));
  const decades = Array.from({ length: high - low + 1 }, (_, step) => low + step);
  const every = Math.ceil(decades.length / 5);
  return {
    x: { low: MIN_LENGTH, high: MAX_LENGTH, label: "length n", logarithmic: 2 },
    y: {
      ...{ low: 10 ** low, high: 10 ** high, label, logarithmic: 10 },
      ticks: decades.filter((_, index) => index % every === 0).map((power) => [10 ** power, `10${raised(power)}`]),
    },
    lines,
    marks: [{ x: settings.length, name: `n = ${format(settings.length)}`, dash: 0 }, ...marks],
    describe: names.map((name, index) => `${name} ${withPrefix(value(here[index]))}`).join(", "),
  };
}

function raised(power) {
  return String(power).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
}

/* The table's rows: every figure with its formula. */
function rowsOf({ length: n, n_neighbors, kernel_size: k, cell, projections, dilated, materialized }, here, bytes) {
  const projected = projections ? " + 8nd²" : "";
  const kept = (weights) =>
    materialized ? `${projections ? 5 : 3}nd + ${weights}` : `${projections ? 5 : 4}nd + hn`;
  const neighbors = `r = ${format(n_neighbors)}${n_neighbors > n ? ", so all n" : ""}`;
  const notes = [
    ["", `4n²d${projected}`, kept("hn²"), "", ""],
    [cell === "plain" ? "plain" : cell, `${4 * GATES[cell]}nd²`, `${KEPT_BY_CELL[cell]}nd`, "n", "n − 1"],
    [`k = ${k}`, `${2 * k}nd²`, "nd", "", dilated ? "⌈log n / log k⌉" : "⌈(n − 1)/(k − 1)⌉"],
    [neighbors, `4rnd${projected}`, kept("hrn"), "", "⌈(n − 1)/(r − 1)⌉"],
  ];
  const layers = ["Self-attention", "Recurrence", "Convolution", "Attention to neighbors"];
  const figures = here.map((cost) => [cost.flops, bytes * cost.activations, cost.sequential, cost.path ?? Infinity]);
  const least = [0, 1, 2, 3].map((column) => Math.min(...figures.map((row) => row[column])));
  return figures.map((row, index) => [
    { text: layers[index], note: notes[index][0] },
    ...row.map((figure, column) => ({
      text: column > 1 ? format(figure) : `${withPrefix(figure)}${column ? "B" : ""}`.trim(),
      note: notes[index][column + 1],
      best: figure === least[column],
    })),
  ]);
}

function sentences(settings, here, crossing) {
  const { length: n, d_model: d, n_heads, kernel_size, projections, cell, materialized } = settings;
  const strong = (text) => element("strong", {}, text);
  const below = (at) => (at === null ? ["at no length"] : ["below n = ", strong(format(at, 6))]);
  const [attention] = here;
  const share = (part, whole) => `${format((100 * part) / whole, 2)} %`;
  const parts = [`At n = ${format(n)}, d = ${format(d)} self-attention takes `];
  parts.push(strong(`${withPrefix(attention.flops)}FLOP`));
  if (projections) {
    parts.push(", ", strong(share(8 * n * d * d, attention.flops)), " of it for the projections, which scores and ");
    parts.push("weighted sum outweigh from n = 2d = ", strong(format(2 * d)), " on. ");
  } else {
    parts.push(" without its projections, which would add ", strong(`${withPrefix(8 * n * d * d)}FLOP`), ". ");
  }
  parts.push(`It takes fewer than ${CELL_NAMES[cell]} `, ...below(crossing.recurrence));
  parts.push(`, fewer than a convolution with k = ${kernel_size} `, ...below(crossing.convolution), ". ");
  if (materialized) {
    parts.push("Its weights are ", strong(share(n_heads * n * n, attention.activations)), " of what it keeps, more ");
    parts.push("than all else from n = ", strong(format(Math.ceil(crossing.weights), 6)), " on. ");
  }
  parts.push("Matrix products alone are counted, a multiplication with its addition as two FLOPs.");
  return parts;
}

export default { render, compute: { costs, crossovers, withPrefix } };
