/* The sinusoidal table, the products of its rows, and the rotation from p to p + k.
 * The same computation in Python: table_facts() in sinusoidal_table.py. */
import { MARGIN } from "./kit/axes.js";
import { cappedSlider } from "./kit/capped_slider.js";
import { clockFace } from "./kit/clock_face.js";
import { choice, slider } from "./kit/controls.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { heatMap } from "./kit/heat_map.js";
import { linePlot } from "./kit/line_plot.js";
import { memory } from "./kit/memory.js";

const MAX_OFFSET = 64;
const NEARLY_CONSTANT = 0.01; // standard deviation over the positions
const TRAITS = ["d_model", "length", "base", "exponent", "position", "offset", "pair"];

/* How far each column's hand turns from one position to the next, in radians. */
export function frequencies({ d_model, base, exponent }) {
  const turns = new Float64Array(d_model);
  for (let column = 0; column < d_model; column += 1) {
    const doubled = exponent === "paper" ? 2 * (column >> 1) : 2 * column;
    turns[column] = base ** (-doubled / d_model);
  }
  return turns;
}

/* The table, row after row, with MAX_OFFSET rows behind the last position, and what else the hands tell.
 *
 * Every hand is turned by its step from row to row, so that only the steps need sin and cos. `evenSums` and `oddSums`
 * are the sums of cos pw over the even and the odd columns, for p as far as two positions together: similarities()
 * is made of them. `spare` is an array that may be written over, if it has the right size: a new one takes time. */
export function sinusoids(settings, spare = null) {
  const { d_model, length, exponent } = settings;
  const turns = frequencies(settings);
  // Where both columns of every pair have one speed, one hand is enough for both.
  const paired = exponent === "paper" && d_model % 2 === 0;
  const speeds = paired ? turns.filter((_, column) => column % 2 === 0) : turns;
  const hands = {
    ...{ stepSine: speeds.map(Math.sin), stepCosine: speeds.map(Math.cos) },
    ...{ sine: new Float64Array(speeds.length), cosine: new Float64Array(speeds.length).fill(1) },
  };
  const size = (length + MAX_OFFSET) * d_model;
  const values = spare?.length === size ? spare : new Float64Array(size);
  const sums = [new Float64Array(2 * length), new Float64Array(2 * length)];
  for (let row = 0; row < length + MAX_OFFSET; row += 1) {
    if (paired) {
      writePairs(values, row, hands, sums);
    } else {
      writeColumns(values, row, hands, sums[0], 0);
      writeColumns(values, row, hands, sums[1], 1);
    }
  }
  const wavelengths = turns.map((turn) => (2 * Math.PI) / turn);
  return { values, wavelengths, nearlyConstant: countConstant(turns, length), evenSums: sums[0], oddSums: sums[1] };
}

/* Writes one row, a hand giving two columns, and turns the hands. Only the sums up to the table's length are needed. */
function writePairs(values, row, { sine, cosine, stepSine, stepCosine }, sums) {
  const pairs = sine.length;
  let at = 2 * row * pairs;
  let sum = 0;
  for (let pair = 0; pair < pairs; pair += 1, at += 2) {
    const s = sine[pair];
    const c = cosine[pair];
    values[at] = s;
    values[at + 1] = c;
    sum += c;
    sine[pair] = s * stepCosine[pair] + c * stepSine[pair];
    cosine[pair] = c * stepCosine[pair] - s * stepSine[pair];
  }
  if (row < sums[0].length) sums[0][row] = sums[1][row] = sum;
}

/* Writes a row's even columns (parity 0) or odd ones (1), and turns their hands. Row p tells the sums at 2p and
 * 2p + 1 as well, by cos 2x = 2 cos² x − 1 and cos (x + y) = cos x cos y − sin x sin y. */
function writeColumns(values, row, { sine, cosine, stepSine, stepCosine }, sums, parity) {
  const width = sine.length;
  const start = row * width;
  let doubled = 0;
  let between = 0;
  for (let column = parity; column < width; column += 2) {
    const s = sine[column];
    const c = cosine[column];
    const nextS = s * stepCosine[column] + c * stepSine[column];
    const nextC = c * stepCosine[column] - s * stepSine[column];
    values[start + column] = parity ? c : s;
    doubled += 2 * c * c - 1;
    between += c * nextC - s * nextS;
    sine[column] = nextS;
    cosine[column] = nextC;
  }
  if (2 * row < sums.length) {
    sums[2 * row] = doubled;
    sums[2 * row + 1] = between;
  }
}

/* How many columns hardly vary. The mean of cos pw over p = 0 ... n − 1 is cos((n − 1)w/2) sin(nw/2) / (n sin(w/2)),
 * that of sin pw the same with sin in front, and squares are cosines of twice the angle. */
function countConstant(turns, length) {
  const share = (turn) => Math.sin((length * turn) / 2) / (length * Math.sin(turn / 2));
  const middle = (length - 1) / 2;
  return turns.filter((turn, column) => {
    const mean = (column % 2 ? Math.cos : Math.sin)(middle * turn) * share(turn);
    const doubled = Math.cos(2 * middle * turn) * share(2 * turn);
    const square = (1 + (column % 2 ? doubled : -doubled)) / 2;
    return Math.sqrt(Math.max(0, square - mean * mean)) < NEARLY_CONSTANT;
  }).length;
}

/* PE(p)·PE(q) = difference[|p − q|] + sum[p + q], so n² products of width d cost n·d.
 *
 * An even column gives sin pw sin qw = ½ cos (p − q)w − ½ cos (p + q)w, an odd one cos pw cos qw, the same with plus.
 * With the paper's exponent a pair's two columns share w, and all that depends on p + q cancels. */
export function similarities({ evenSums, oddSums }, length) {
  const difference = new Float64Array(2 * length);
  const sum = new Float64Array(2 * length);
  for (let index = 0; index < 2 * length; index += 1) {
    difference[index] = (oddSums[index] + evenSums[index]) / 2;
    sum[index] = (oddSums[index] - evenSums[index]) / 2;
  }
  const matrix = new Float32Array(length * length);
  let lowest = Infinity;
  for (let p = 0; p < length; p += 1) {
    for (let q = 0; q < length; q += 1) {
      const product = difference[Math.abs(p - q)] + sum[p + q];
      matrix[p * length + q] = product;
      if (product < lowest) lowest = product;
    }
  }
  // Positions at distance 0 or 1 have the widest range of sums; all others lie inside it.
  const extremes = [0, 1].map((parity) => {
    let low = Infinity;
    let high = -Infinity;
    for (let index = parity; index <= 2 * (length - 1) - parity; index += 2) {
      low = Math.min(low, sum[index]);
      high = Math.max(high, sum[index]);
    }
    return { low, high };
  });
  return {
    ...{ difference, sum, matrix, lowest },
    squaredNorm: [difference[0] + extremes[0].low, difference[0] + extremes[0].high],
    spread: Math.max(...extremes.map(({ low, high }) => high - low)),
  };
}

/* For every pair the rotation that takes its hand from p to p + k with the least squared error over all positions
 * (orthogonal Procrustes, in the plane), and how far it misses at worst. */
export function rotations(values, { d_model, length, offset }) {
  const pairs = d_model >> 1;
  const along = new Float64Array(pairs);
  const across = new Float64Array(pairs);
  const ahead = offset * d_model;
  for (let row = 0; row < length; row += 1) {
    let at = row * d_model;
    for (let pair = 0; pair < pairs; pair += 1, at += 2) {
      const s = values[at];
      const c = values[at + 1];
      const nextS = values[at + ahead];
      const nextC = values[at + ahead + 1];
      across[pair] += nextS * c - nextC * s;
      along[pair] += nextS * s + nextC * c;
    }
  }
  const angles = across.map((value, pair) => Math.atan2(value, along[pair]));
  const turnSine = angles.map(Math.sin);
  const turnCosine = angles.map(Math.cos);
  const squared = new Float64Array(pairs);
  for (let row = 0; row < length; row += 1) {
    let at = row * d_model;
    for (let pair = 0; pair < pairs; pair += 1, at += 2) {
      const s = values[at];
      const c = values[at + 1];
      const missedS = s * turnCosine[pair] + c * turnSine[pair] - values[at + ahead];
      const missedC = c * turnCosine[pair] - s * turnSine[pair] - values[at + ahead + 1];
      const distance = missedS * missedS + missedC * missedC;
      if (distance > squared[pair]) squared[pair] = distance;
    }
  }
  return { angles, errors: squared.map(Math.sqrt) };
}

/* A hand turned clockwise; a hand is [sine, cosine], so that it points up at angle 0. */
function turned([sine, cosine], angle) {
  return [
    sine * Math.cos(angle) + cosine * Math.sin(angle),
    cosine * Math.cos(angle) - sine * Math.sin(angle),
  ];
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Sinusoidal table" });
  choice(view, "exponent", {
    label: "exponent of column c",
    options: [["paper", "paper: 2⌊c/2⌋/d"], ["much-copied", "much copied: 2c/d"]],
  });
  slider(view, "d_model", { label: "width d", logarithmic: true });
  slider(view, "length", { label: "positions", logarithmic: true });
  slider(view, "base", { label: "base", logarithmic: 10 });
  const lastPair = () => (model.get("d_model") >> 1) - 1;
  cappedSlider(view, "pair", { label: "pair of columns i", traits: ["d_model"], highest: lastPair });
  const lastPosition = () => model.get("length") - 1;
  cappedSlider(view, "position", { label: "position p", traits: ["length"], highest: lastPosition });
  slider(view, "offset", { label: "offset k" });

  let shown = null; // what the maps show, for the text under the cursor
  let hovered = null; // the cell of the table under the cursor
  const hint = "Point at a cell, or go there with the arrow keys";
  const drawTable = heatMap(view, view.panel("Table PE"), {
    ...{ label: "Table", hint: `${hint}; click or press Enter to stay.` },
    describe: (row, column) => {
      const value = format(shown.table.values[row * shown.settings.d_model + column]);
      const wavelength = format(shown.table.wavelengths[column]);
      return `p = ${row}, c = ${column}: ${value}; wavelength ${wavelength} positions`;
    },
    pointed: (row, column) => {
      const next = row < 0 ? null : { position: row, column };
      if (next?.position === hovered?.position && next?.column === hovered?.column) return;
      hovered = next;
      if (shown) draw();
    },
    chosen: (row, column) => {
      view.set("position", row);
      view.set("pair", Math.min(column >> 1, lastPair()));
    },
  });
  const drawSimilarity = heatMap(view, view.panel("Similarity PE(p)·PE(q)"), {
    ...{ label: "Similarity matrix", hint: `${hint}.` },
    describe: (row, column) => {
      const value = format(shown.similar.matrix[row * shown.settings.length + column], 4);
      return `p = ${row}, q = ${column}, p − q = ${format(row - column)}: ${value}`;
    },
  });
  const drawClock = clockFace(view, view.panel("One pair is a clock hand"), { label: "Rotation" });
  const drawCurves = linePlot(view, view.panel("Columns over positions"), { label: "Columns over positions" });
  const drawDistances = linePlot(view, view.panel("Similarity against distance"), { label: "Similarity by distance" });
  const drawWavelengths = linePlot(view, view.panel("Wavelength of each column"), { label: "Wavelengths" });

  const latest = memory(); // Only what a setting changes is computed, and drawn, again.
  function draw() {
    const settings = Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)]));
    const { d_model, length, base, exponent, offset } = settings;
    const pairs = d_model >> 1;
    const table = latest("table", [d_model, length, base, exponent], () => sinusoids(settings, shown?.table.values));
    const similar = latest("similar", [table], () => similarities(table, length));
    const turns = latest("turns", [table, offset], () => rotations(table.values, settings));
    shown = { settings, table, similar };
    const look = [view.width, view.dark];
    latest("draw table", [table, ...look], () =>
      drawTable({
        ...{ values: table.values, rows: length, columns: d_model, low: -1, high: 1, scale: "diverging" },
        ...{ xLabel: "column c", yLabel: "position p", height: 190, margin: { ...MARGIN, right: 2 } },
      }),
    );
    latest("draw similar", [similar, ...look], () =>
      drawSimilarity({
        ...{ values: similar.matrix, rows: length, columns: length, low: similar.lowest, high: similar.squaredNorm[1] },
        ...{ square: true, xLabel: "position q", yLabel: "position p", height: 190 },
      }),
    );
    // Where the maps shrank under the cursor, the cell it was on may be gone.
    const pointed = hovered && hovered.position < length && hovered.column < d_model ? hovered : null;
    const position = pointed?.position ?? Math.min(settings.position, length - 1);
    const pair = Math.min(pointed ? pointed.column >> 1 : settings.pair, pairs - 1);
    const focus = { ...settings, position, pair };
    latest("clock", [turns, position, pair, ...look], () => drawClock(clockOf(table, turns, focus, latest)));
    latest("curves", [table, position, pair, ...look], () => drawCurves(curvesOf(table, focus)));
    latest("distances", [similar, position, ...look], () => drawDistances(distancesOf(similar, focus)));
    latest("wavelengths", [table, pair, ...look], () => drawWavelengths(wavelengthsOf(table, focus)));
    view.say(...sentences(table, similar, turns, focus));
  }
  view.draws(TRAITS, draw);
  return view.end;
}

function handAt({ values }, { d_model, pair }, position) {
  const at = position * d_model + 2 * pair;
  return [values[at], values[at + 1]];
}

function clockOf(table, { angles, errors }, { position, offset, ...settings }, latest) {
  const { d_model, length, pair } = settings;
  const hand = handAt(table, settings, position);
  const trail = latest("trail", [table, pair], () =>
    new Float64Array(2 * length).map((_, at) => table.values[(at >> 1) * d_model + 2 * pair + (at % 2)]),
  );
  return {
    ...{ trail, angle: angles[pair] },
    hands: [
      { hand, name: `p = ${position}`, series: 1, dash: "" },
      { hand: handAt(table, settings, position + offset), name: `p + k = ${position + offset}`, series: 2, dash: "" },
      { hand: turned(hand, angles[pair]), name: `p, turned by ${degrees(angles[pair])}`, series: 0, dash: "3 6" },
    ],
    describe: `pair ${pair} turned by ${degrees(angles[pair])} misses by at most ${format(errors[pair], 2)}`,
  };
}

function curvesOf({ values, wavelengths }, { d_model, length, position, pair }) {
  const across = Array.from({ length }, (_, row) => row);
  const line = (column, series, dash) => ({
    ...{ x: across, y: across.map((row) => values[row * d_model + column]), series, dash },
    name: `c = ${column}, λ ${format(wavelengths[column])}`,
  });
  // Two more for comparison, a quarter and half of the way to the slowest.
  const others = [...new Set([d_model >> 3, d_model >> 2])].filter((other) => other !== pair && other < d_model >> 1);
  const lines = others.map((other, index) => line(2 * other, 3 + index, 2 + index));
  lines.push(line(2 * pair + 1, 2, 1), line(2 * pair, 1, 0));
  return {
    x: { low: 0, high: length - 1, label: "position" },
    y: { low: -1, high: 1, label: "value" },
    lines,
    marks: [0, 1].map((odd) => ({ x: position, y: values[position * d_model + 2 * pair + odd], series: 1 + odd })),
    describe: lines.map(({ name }) => name).join("; "),
  };
}

function distancesOf({ difference, sum, squaredNorm, spread }, { length, position }) {
  const places = [[length - 1, 3, 2], [0, 2, 1], [position, 1, 0]];
  const lines = places.map(([from, series, dash]) => {
    const x = Array.from({ length }, (_, q) => q - from);
    const y = x.map((distance) => difference[Math.abs(distance)] + sum[2 * from + distance]);
    return { x, y, series, dash, name: `p = ${from}` };
  });
  const low = Math.min(0, ...lines.flatMap(({ y }) => y));
  return {
    x: { low: 1 - length, high: length - 1, label: "q − p" },
    y: { low, high: squaredNorm[1], label: "PE(p)·PE(q)" },
    lines,
    describe: `positions at the same distance differ by at most ${format(spread, 2)}`,
  };
}

function wavelengthsOf({ wavelengths }, { d_model, length, base, exponent, pair }) {
  const lineFor = (which, series) => {
    const turns = frequencies({ d_model, base, exponent: which });
    const x = [0, d_model - 1];
    const y = x.map((column) => (2 * Math.PI) / turns[column]);
    return { x, y, series, dash: which === exponent ? 0 : 1, name: which === "paper" ? "paper" : "much copied" };
  };
  const decades = Math.ceil(Math.log10(2 * Math.PI * base ** 2));
  const powers = ["1", "10³", "10⁶", "10⁹", "10¹²"].map((text, index) => [1000 ** index, text]);
  const ticks = powers.filter(([value]) => value <= 10 ** decades);
  return {
    x: { low: 0, high: d_model - 1, label: "column c" },
    y: { low: 1, high: 10 ** decades, label: "positions", logarithmic: 10, ticks },
    lines: [
      { x: [0, d_model - 1], y: [length, length], series: 3, dash: 2, name: "length of the table" },
      ...[lineFor("much-copied", 4), lineFor("paper", 1)],
    ],
    marks: [0, 1].map((odd) => ({ x: 2 * pair + odd, y: wavelengths[2 * pair + odd] })),
    describe: `from ${format(wavelengths[0])} to ${format(wavelengths[d_model - 1])}`,
  };
}

function sentences({ wavelengths, nearlyConstant }, similar, { angles, errors }, { d_model, exponent, pair, offset }) {
  const strong = (text) => element("strong", {}, text);
  const [low, high] = similar.squaredNorm.map((value) => strong(format(value, 4)));
  const worst = errors.reduce((most, error) => Math.max(most, error), 0);
  const turn = `k = ${offset} turns pair ${pair} by ${degrees(angles[pair])}`;
  const misses = [strong(format(errors[pair], 2)), "; the worst pair is off by ", strong(format(worst, 2)), "."];
  const start = [
    "Wavelengths from ", strong(format(wavelengths[0])), " to ", strong(format(wavelengths[d_model - 1])),
    " positions; ", strong(`${nearlyConstant} of ${d_model}`), " columns are nearly constant. ",
  ];
  const varies = [
    ...["‖PE(p)‖² runs from ", low, " to ", high, ", and PE(p)·PE(q) differs by up to "],
    ...[strong(format(similar.spread, 2)), " at the same p − q. "],
  ];
  const fits = [`Going on by ${turn}, whatever p is: off by at most `, ...misses];
  if (exponent !== "paper") {
    const reason = "Sine and cosine of a pair turn at different speeds, so no rotation fits: the best one for ";
    return [...start, ...varies, `${reason}${turn} and is off by up to `, ...misses];
  }
  if (d_model % 2) return [...start, ...varies, "The last sine has no cosine beside it. ", ...fits];
  return [...start, "‖PE(p)‖² is ", low, " everywhere, and PE(p)·PE(q) depends on p − q alone. ", ...fits];
}

function degrees(angle) {
  return `${format((((angle * 180) / Math.PI) % 360 + 360) % 360)}°`;
}

export default { render, compute: { frequencies, sinusoids, similarities, rotations } };
