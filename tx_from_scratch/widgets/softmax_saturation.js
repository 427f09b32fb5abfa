/* Scores of random queries and keys, the softmax over them, and what is left of its gradient.
 * The same computation in Python: saturation() in softmax_saturation.py. */
import { button, choice, numberField, slider, toggle } from "./kit/controls.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { linePlot } from "./kit/line_plot.js";
import { memory } from "./kit/memory.js";
import { roundAll, rounder } from "./kit/number_formats.js";
import { normals } from "./kit/random.js";

const N_QUERIES = 8; // a multiple of 4
const MAX_KEYS = 64;
const MAX_WIDTH = 1024;
const BINS = 31;
const TRAITS = ["d_k", "n_keys", "scaled", "activation", "number_format", "samples"];

/* The widths at which the curves are computed. Their roots are powers of two, by which division is exact, so that the
 * sums of both curves are the same. */
const WIDTHS = [1, 4, 16, 64, 256, 1024];

/* Samples times `activation`, rounded to the format: what all widths share. */
export function inputs({ samples, activation, number_format }) {
  return roundAll(samples, number_format, activation);
}

/* Scores, (query, key), row after row. Sums run in double precision; the result is rounded to the format. */
function scoresOf({ numbers, d_k, n_keys, scaled, number_format }) {
  const round = rounder(number_format);
  const scores = new Float64Array(N_QUERIES * n_keys);
  const queries = new Float64Array(N_QUERIES * d_k);
  const divisor = scaled ? Math.sqrt(d_k) : 1;
  for (let row = 0; row < N_QUERIES; row += 1) {
    for (let entry = 0; entry < d_k; entry += 1) {
      queries[row * d_k + entry] = round(numbers[row * MAX_WIDTH + entry] / divisor);
    }
  }
  // Four queries at once, so that each key is fetched a quarter as often, and no sum waits for the one before it.
  for (let row = 0; row < N_QUERIES; row += 4) {
    const a = row * d_k;
    for (let column = 0; column < n_keys; column += 1) {
      const start = (N_QUERIES + column) * MAX_WIDTH;
      let first = 0;
      let second = 0;
      let third = 0;
      let fourth = 0;
      for (let entry = 0; entry < d_k; entry += 1) {
        const number = numbers[start + entry];
        first += queries[a + entry] * number;
        second += queries[a + d_k + entry] * number;
        third += queries[a + 2 * d_k + entry] * number;
        fourth += queries[a + 3 * d_k + entry] * number;
      }
      scores[row * n_keys + column] = round(first);
      scores[(row + 1) * n_keys + column] = round(second);
      scores[(row + 2) * n_keys + column] = round(third);
      scores[(row + 3) * n_keys + column] = round(fourth);
    }
  }
  return scores;
}

/* Each row's softmax; where a score is infinite that is NaN, as it is everywhere else. */
function softmaxRows(scores, n_keys, number_format) {
  const round = rounder(number_format);
  const weights = new Float64Array(scores.length);
  for (let start = 0; start < scores.length; start += n_keys) {
    let largest = -Infinity;
    for (let index = start; index < start + n_keys; index += 1) largest = Math.max(largest, scores[index]);
    let sum = 0;
    for (let index = start; index < start + n_keys; index += 1) {
      weights[index] = Math.exp(scores[index] - largest);
      sum += weights[index];
    }
    for (let index = start; index < start + n_keys; index += 1) {
      weights[index] = round(weights[index] / sum);
    }
  }
  return weights;
}

/* Scores and weights at one width, and what the weights are like. `numbers` are those of inputs(). */
export function saturation(settings) {
  const { n_keys, scaled, activation, d_k, number_format } = settings;
  const scores = scoresOf(settings);
  const weights = softmaxRows(scores, n_keys, number_format);
  const predicted = activation ** 2 * (scaled ? 1 : Math.sqrt(d_k));
  return { scores, weights, predicted, ...meansOf(weights, n_keys) };
}

/* Entropy, largest weight and norm of the Jacobian, means over the rows. */
function meansOf(weights, n_keys) {
  let entropy = 0;
  let largest = 0;
  let jacobian = 0;
  for (let start = 0; start < weights.length; start += n_keys) {
    let second = 0;
    let third = 0;
    let peak = 0;
    for (let index = start; index < start + n_keys; index += 1) {
      const p = weights[index];
      second += p * p;
      third += p * p * p;
      if (p !== 0) entropy -= p * Math.log(p);
      peak = Math.max(peak, p);
    }
    largest += peak;
    jacobian += Math.sqrt(Math.max(0, second - 2 * third + second * second));
  }
  return { entropy: entropy / N_QUERIES, largest: largest / N_QUERIES, jacobian: jacobian / N_QUERIES };
}

/* The norm of the Jacobian at all WIDTHS, divided and not, from one pass over the numbers. */
export function curves({ numbers, n_keys, number_format }) {
  const round = rounder(number_format);
  const scores = WIDTHS.map(() => [new Float64Array(N_QUERIES * n_keys), new Float64Array(N_QUERIES * n_keys)]);
  for (let row = 0; row < N_QUERIES; row += 1) {
    for (let column = 0; column < n_keys; column += 1) {
      const start = (N_QUERIES + column) * MAX_WIDTH;
      let sum = 0;
      let entry = 0;
      for (let place = 0; place < WIDTHS.length; place += 1) {
        const d_k = WIDTHS[place];
        for (; entry < d_k; entry += 1) sum += numbers[row * MAX_WIDTH + entry] * numbers[start + entry];
        scores[place][0][row * n_keys + column] = round(sum / Math.sqrt(d_k));
        scores[place][1][row * n_keys + column] = round(sum);
      }
    }
  }
  const [divided, plain] = [0, 1].map((which) =>
    scores.map((pair) => meansOf(softmaxRows(pair[which], n_keys, number_format), n_keys).jacobian),
  );
  return { divided, plain };
}

/* How the scores are spread, what has overflown, and how many different values are left. */
export function spreadOf(scores) {
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  const variance = scores.reduce((sum, score) => sum + (score - mean) ** 2, 0) / scores.length;
  const finite = scores.filter(Number.isFinite);
  return {
    spread: Math.sqrt(variance),
    overflown: scores.filter((score) => Math.abs(score) === Infinity).length,
    distinct: new Set(finite).size,
  };
}

function histogram(scores, reach) {
  const edges = Array.from({ length: BINS + 1 }, (_, index) => reach * ((2 * index) / BINS - 1));
  const heights = new Array(BINS).fill(0);
  for (const score of scores) {
    const bin = Math.floor(((score / reach + 1) / 2) * BINS);
    if (bin >= 0 && bin < BINS) heights[bin] += 1;
  }
  return { edges, heights };
}

/* Bytes arrive as a DataView, from Python and from the page alike. */
function floats(view) {
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Softmax saturation" });
  slider(view, "d_k", { label: "width dₖ", logarithmic: true });
  toggle(view, "scaled", { label: "divide by √dₖ" });
  slider(view, "n_keys", { label: "keys" });
  choice(view, "number_format", {
    label: "number format",
    options: ["fp32", "fp16", "bf16"].map((name) => [name, name]),
  });
  slider(view, "activation", { label: "activation scale", logarithmic: true });
  numberField(view, "seed", { label: "seed" });
  button(view, { label: "resample", pressed: () => view.set("seed", Math.floor(Math.random() * 10000)) });

  const drawScores = linePlot(view, view.panel("Scores q·k"), { label: "Histogram of the scores" });
  const drawWeights = linePlot(view, view.panel("Softmax of the first query"), { label: "Softmax weights" });
  const drawCurve = linePlot(view, view.panel("What a gradient keeps"), { label: "Norm of the softmax Jacobian" });

  // Whoever sets the seed, the numbers follow, and Python gets the same ones.
  const resample = () => {
    const numbers = normals(model.get("seed"), (N_QUERIES + MAX_KEYS) * MAX_WIDTH);
    const known = floats(model.get("samples"));
    if (known.every((number, index) => Math.abs(number - numbers[index]) < 1e-5)) return;
    view.set("samples", new DataView(numbers.buffer));
  };
  view.on(["seed"], resample);

  const latest = memory(); // Only what a setting changes is computed again.
  const draw = () => {
    const settings = Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)]));
    const { samples, d_k, n_keys, scaled, activation, number_format } = settings;
    const numbers = latest("numbers", [samples, activation, number_format], () =>
      inputs({ ...settings, samples: latest("samples", [samples], () => floats(samples)) }),
    );
    const here = saturation({ ...settings, numbers });
    Object.assign(here, spreadOf(here.scores));
    const { divided, plain } = latest("curves", [numbers, n_keys], () => curves({ ...settings, numbers }));

    const spread = Number.isFinite(here.spread) ? here.spread : here.predicted;
    const reach = 4 * Math.max(spread, here.predicted);
    const bars = histogram(here.scores, reach);
    drawScores({
      x: { low: -reach, high: reach, label: "score" },
      y: { low: 0, high: Math.max(...bars.heights, 1), label: "pairs" },
      bars: { ...bars, series: 1 },
      marks: [
        { x: here.spread, name: `σ measured ${format(here.spread)}`, series: 2 },
        { x: here.predicted, name: `σ predicted ${format(here.predicted)}`, series: 3, dash: 1 },
      ].filter(({ x }) => Number.isFinite(x)),
      describe: `standard deviation ${format(here.spread)}, predicted ${format(here.predicted)}`,
    });
    const row = here.weights.subarray(0, n_keys);
    drawWeights({
      x: { low: 0, high: n_keys, label: "key" },
      y: { low: 0, high: 1, label: "weight" },
      bars: { edges: Array.from({ length: n_keys + 1 }, (_, index) => index), heights: row, series: 2 },
      describe: `largest ${format(Math.max(...row))} of ${n_keys}`,
    });
    drawCurve({
      x: { low: 1, high: MAX_WIDTH, label: "width dₖ", logarithmic: 2 },
      y: { low: 0, high: 0.5, label: "norm of the Jacobian" },
      lines: [
        { x: WIDTHS, y: divided, name: "divided by √dₖ", series: 3, dash: 0 },
        { x: WIDTHS, y: plain, name: "not divided", series: 4, dash: 1 },
      ],
      marks: [{ x: d_k, y: here.jacobian }],
      describe: `${format(here.jacobian)} at width ${d_k}`,
    });
    view.say(
      "Standard deviation ", strong(here.spread), ` (predicted ${format(here.predicted)}). `,
      "Largest weight ", strong(here.largest), ", entropy ", strong(here.entropy),
      ` of ${format(Math.log(n_keys))} nats, norm of the Jacobian `, strong(here.jacobian), ". ",
      `${here.distinct} different values among ${here.scores.length} scores`,
      here.overflown ? `; ${here.overflown} overflow, and their rows are NaN.` : ".",
    );
  };
  view.draws(TRAITS, draw);
  return view.end;
}

function strong(value) {
  return element("strong", {}, Number.isNaN(value) ? "–" : format(value));
}

export default { render, compute: { inputs, saturation, curves, spreadOf, normals, roundAll } };
