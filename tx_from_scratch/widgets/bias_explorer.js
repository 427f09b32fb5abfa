/* What a position scheme adds to attention's scores, and what attention would be if nothing else were in them.
 * The same computation in Python: BiasExplorer.measure() in bias_explorer.py.
 *
 * Distances are query − key: positive to earlier keys. All of these schemes depend on the distance alone, so that a
 * head's bias is one number for each distance; all heads together are an array (heads, SPAN) with the distances from
 * −REACH to REACH. */
import { cappedSlider } from "./kit/capped_slider.js";
import { choice, slider, toggle } from "./kit/controls.js";
import { colorScale, hex } from "./kit/colors.js";
import { curveFamily } from "./kit/curve_family.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { heatMap } from "./kit/heat_map.js";
import { legend } from "./kit/legend.js";
import { linePlot } from "./kit/line_plot.js";
import { memory } from "./kit/memory.js";

const REACH = 511; // the largest distance among the 512 positions that can be shown
const SPAN = 2 * REACH + 1;
const HELD = 0.9; // share of the weight that the counted keys hold
const ROUNDING = 1e-9; // so that ten equal weights are held by nine keys, however their sum is rounded
const SHADES = 255; // of the map
const HIDDEN = 255;
const BASE = 10_000; // of Transformer-XL's sinusoids
const NAMES = { alibi: "ALiBi", t5: "T5", transformer_xl: "Transformer-XL", shaw: "Shaw" };
const TRAITS = ["scheme", "n_heads", "head", "length", "causal", "query", "key", "trained_length"];

/* ALiBi's slope of each head: 2^(−8k/n), k = 1 ... n, for a power of two; otherwise those of the power of two below,
 * then every other slope of twice that power. */
export function slopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  return Float64Array.from({ length: heads }, (_, head) =>
    head < power ? 2 ** ((-8 * (head + 1)) / power) : 2 ** ((-4 * (2 * (head - power) + 1)) / power),
  );
}

/* T5's bucket of a distance: exact to half of the buckets, then logarithmic up to the last one, where everything
 * from max_distance on is. A bidirectional table keeps the second half of its buckets for later keys. */
export function bucketOf(distance, { n_buckets, max_distance, bidirectional }) {
  const side = bidirectional ? n_buckets >> 1 : n_buckets;
  const first = bidirectional && distance < 0 ? side : 0;
  const size = bidirectional ? Math.abs(distance) : Math.max(distance, 0);
  const exact = side >> 1;
  if (size < exact) return first + size;
  const step = Math.floor((Math.log(size / exact) / Math.log(max_distance / exact)) * (side - exact) + ROUNDING);
  return first + Math.min(side - 1, exact + step);
}

/* The distances around this one that share its bucket, as [low, high]; no end is an infinity. */
export function bucketRange(distance, rule) {
  const bucket = bucketOf(distance, rule);
  const beyond = Math.max(Math.abs(distance), rule.max_distance);
  const walk = (step) => {
    if (bucketOf(step * beyond, rule) === bucket) return step * Infinity;
    let at = distance;
    while (bucketOf(at + step, rule) === bucket) at += step;
    return at;
  };
  return [walk(-1), walk(1)];
}

/* The bias of every head at every distance. `table`: { heads, columns, values, rule } of a learned scheme, `values`
 * (heads, columns); the number of heads of ALiBi, which has nothing to learn. */
export function biases(scheme, table) {
  if (scheme === "alibi") return slopes(table).reduce(straightLines, new Float64Array(table * SPAN));
  if (scheme === "transformer_xl") return waves(table);
  const { heads, columns, values, rule } = table;
  const clipped = (columns - 1) / 2; // Shaw's k; its rows are key − query from −k to k
  const column = (distance) =>
    scheme === "t5" ? bucketOf(distance, rule) : clipped - Math.max(-clipped, Math.min(clipped, distance));
  const result = new Float64Array(heads * SPAN);
  for (let place = 0; place < SPAN; place += 1) {
    const at = column(place - REACH);
    for (let head = 0; head < heads; head += 1) result[head * SPAN + place] = values[head * columns + at];
  }
  return result;
}

function straightLines(result, slope, head) {
  for (let place = 0; place < SPAN; place += 1) result[head * SPAN + place] = 0 - slope * Math.abs(place - REACH);
  return result;
}

/* Transformer-XL: sums of sines and cosines. Sines change their sign with the distance, cosines don't, so that one sum
 * of each gives two distances. */
function waves({ heads, columns, values }) {
  const pairs = columns / 2;
  const sine = new Float64Array(pairs);
  const cosine = new Float64Array(pairs);
  const result = new Float64Array(heads * SPAN);
  for (let distance = 0; distance <= REACH; distance += 1) {
    for (let pair = 0; pair < pairs; pair += 1) {
      const angle = distance * BASE ** (-pair / pairs);
      sine[pair] = Math.sin(angle);
      cosine[pair] = Math.cos(angle);
    }
    for (let head = 0; head < heads; head += 1) {
      const start = head * columns;
      let odd = 0;
      let even = 0;
      for (let pair = 0; pair < pairs; pair += 1) {
        odd += values[start + pair] * sine[pair];
        even += values[start + pairs + pair] * cosine[pair];
      }
      result[head * SPAN + REACH + distance] = even + odd;
      result[head * SPAN + REACH - distance] = even - odd;
    }
  }
  return result;
}

/* The settings as they count: no head, query or key beyond the last one. */
export function used(settings, heads) {
  const { length, causal } = settings;
  const query = Math.min(settings.query, length - 1);
  const key = Math.min(settings.key, causal ? query : length - 1);
  return { ...settings, heads, head: Math.min(settings.head, heads - 1), query, key };
}

/* What the query's attention is if its scores are the bias alone: the weights, (heads, keys that it sees), and for
 * every head how many keys, the heaviest first, hold HELD of the weight. */
export function attend(bias, { heads, length, causal, query }) {
  const keys = causal ? query + 1 : length;
  const weights = new Float64Array(heads * keys);
  const holding = new Float64Array(heads);
  for (let head = 0; head < heads; head += 1) {
    const start = head * keys;
    const first = head * SPAN + REACH + query; // key 0 is as far away as the query's position says
    let highest = -Infinity;
    for (let key = 0; key < keys; key += 1) if (bias[first - key] > highest) highest = bias[first - key];
    let sum = 0;
    for (let key = 0; key < keys; key += 1) sum += weights[start + key] = Math.exp(bias[first - key] - highest);
    for (let key = 0; key < keys; key += 1) weights[start + key] /= sum;
    holding[head] = keysHolding(weights.slice(start, start + keys).sort());
  }
  return { weights, holding, keys };
}

function keysHolding(ascending) {
  let held = 0;
  let count = 0;
  while (held < HELD - ROUNDING && count < ascending.length) held += ascending[ascending.length - (count += 1)];
  return count;
}

/* One head's bias for all pairs, (query, key), as shades from 0, its lowest, to SHADES − 1, its highest value, and
 * HIDDEN where a query must not look; and the range of what is shown. */
export function mapOf(bias, { head, length, causal }) {
  const zero = head * SPAN + REACH;
  const { low, high } = extremes([bias.subarray(zero + (causal ? 0 : 1 - length), zero + length)]);
  const diagonals = new Uint8Array(2 * length - 1).fill(HIDDEN); // by key − query
  for (let index = 0; index < (causal ? length : 2 * length - 1); index += 1) {
    const share = high > low ? (bias[zero + length - 1 - index] - low) / (high - low) : 0;
    diagonals[index] = Math.round(share * (SHADES - 1));
  }
  const values = new Uint8Array(length * length);
  for (let query = 0; query < length; query += 1) {
    values.set(diagonals.subarray(length - 1 - query, 2 * length - 1 - query), query * length);
  }
  return { values, low, high };
}

/* The learned tables by scheme; bytes arrive as a DataView, from Python and from the page alike. */
function learnedTables(model) {
  const rule = model.get("_t5_rule");
  const entries = Object.entries(model.get("_shapes")).map(([scheme, [heads, columns]]) => {
    const { buffer, byteOffset, byteLength } = model.get(`_${scheme}`);
    const values = new Float32Array(buffer.slice(byteOffset, byteOffset + byteLength));
    return [scheme, { heads, columns, values, rule: { ...rule, n_buckets: columns } }];
  });
  return Object.fromEntries(entries);
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Position biases" });
  view.panels.style.setProperty("--txw-panel", "280px");
  const tables = learnedTables(model);
  // Nothing that a reader sets changes them, so they are computed before the first event, Transformer-XL's for 10 ms.
  const learned = Object.fromEntries(Object.entries(tables).map(([scheme, table]) => [scheme, biases(scheme, table)]));
  const schemes = Object.keys(NAMES).filter((scheme) => scheme === "alibi" || tables[scheme]);
  const headsOf = () => tables[model.get("scheme")]?.heads ?? model.get("n_heads");

  if (schemes.length > 1) {
    choice(view, "scheme", { label: "scheme", options: schemes.map((scheme) => [scheme, NAMES[scheme]]) });
  }
  const count = slider(view, "n_heads", { label: "heads of ALiBi" });
  const highest = { head: () => headsOf() - 1, query: () => model.get("length") - 1 };
  highest.key = () => (model.get("causal") ? Math.min(model.get("query"), highest.query()) : highest.query());
  cappedSlider(view, "head", { label: "head", traits: ["scheme", "n_heads"], highest: highest.head });
  slider(view, "length", { label: "positions", logarithmic: true });
  toggle(view, "causal", { label: "causal" });
  cappedSlider(view, "query", { label: "query i", traits: ["length"], highest: highest.query });
  cappedSlider(view, "key", { label: "key j", traits: ["length", "causal", "query"], highest: highest.key });
  slider(view, "trained_length", { label: "trained length", logarithmic: true });

  let here = null; // what is shown, for the text under the map
  const mapPanel = view.panel("Bias of the head");
  const drawMap = heatMap(view, mapPanel, {
    ...{ label: "Bias", hint: "Point at a pair, or go there with the arrow keys; click or press Enter to stay." },
    describe: (query, key) => cellText(here, tables, query, key),
    chosen: (query, key) => {
      view.set("query", query);
      view.set("key", model.get("causal") ? Math.min(query, key) : key);
    },
  });
  mapPanel.querySelector("canvas").style.background = "var(--txw-grid)"; // what is hidden must not look like a value
  const explainMap = legend(mapPanel);
  const panels = {
    curves: view.panel("Bias against distance, all heads"),
    weights: view.panel("Attention from the bias alone"),
    holding: view.panel("Keys that hold 90 % of that attention"),
  };
  const drawCurves = curveFamily(view, panels.curves, { label: "Bias against distance", height: 250 });
  const drawWeights = curveFamily(view, panels.weights, { label: "Attention weights", height: 180 });
  const drawHolding = linePlot(view, panels.holding, { label: "Keys that hold 90 % of the weight", height: 180 });

  const latest = memory(); // Only what a setting changes is computed, and drawn, again.
  const draw = () => {
    const settings = used(Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)])), headsOf());
    const { scheme, heads, head, length, causal, query, key, trained_length } = settings;
    const bias = learned[scheme] ?? latest("alibi", [heads], () => biases("alibi", heads));
    const shown = latest("map", [bias, head, length, causal], () => mapOf(bias, settings));
    const attention = latest("attention", [bias, length, causal, query], () => attend(bias, settings));
    here = { ...settings, bias, attention };
    const look = [view.width, view.dark];
    latest("draw map", [shown, query, ...look], () => {
      const palette = latest("palette", [view.dark], () => shades(view.dark));
      drawMap({
        ...{ values: shown.values, palette, rows: length, columns: length, square: true, height: 280, marked: query },
        ...{ xLabel: "key j", yLabel: "query i" },
      });
      const ends = [[palette[0], format(shown.low)], [palette[SHADES - 1], format(shown.high)]];
      explainMap(causal ? [...ends, [view.colors.grid, "hidden: comes later"]] : ends);
    });
    const chosen = [attention, head, key, trained_length, ...look];
    latest("draw curves", chosen, () => drawCurves(curvesOf(here, latest)));
    latest("draw weights", chosen, () => drawWeights(weightsOf(here, latest)));
    latest("draw holding", [attention, head, ...look], () => drawHolding(holdingOf(here)));
    count.hidden = scheme !== "alibi"; // learned tables have the heads that they have
    view.say(...sentences(here, tables));
  };
  view.draws(TRAITS, draw);
  return view.end;
}

/* The color of every shade; HIDDEN has none. */
function shades(dark) {
  const { colors } = colorScale("sequential", dark);
  return Array.from({ length: SHADES }, (_, shade) => hex(colors[Math.round((255 * shade) / (SHADES - 1))]));
}

function biasAt({ bias, head }, distance) {
  return bias[head * SPAN + REACH + distance];
}

/* The range of the axis: of the chosen head for ALiBi, whose slopes differ too much for one axis, or of all. */
function curvesOf(here, latest) {
  const { bias, scheme, heads, head, length, causal, query, key, trained_length } = here;
  const first = causal ? 0 : 1 - length;
  const curves = latest("curves", [bias, length, causal], () =>
    Array.from({ length: heads }, (_, index) => {
      const zero = index * SPAN + REACH;
      return bias.subarray(zero + first, zero + length);
    }),
  );
  const ranged = scheme === "alibi" ? head : -1;
  const { low, high } = latest("range", [curves, ranged], () => extremes(ranged < 0 ? curves : [curves[ranged]]));
  const distance = query - key;
  return {
    x: { low: first, high: length - 1, label: causal ? "distance i − j" : "distance i − j (negative: later keys)" },
    y: { low, high, label: "bias" },
    ...{ curves, start: first, chosen: head, solid: [1 - trained_length, trained_length - 1] },
    point: [distance, biasAt(here, distance)],
    names: namesOf(heads, trained_length < length),
    describe: `${format(biasAt(here, distance))} at distance ${format(distance)}`,
  };
}

function weightsOf({ attention, heads, head, query, key, trained_length, ...rest }, latest) {
  const { weights, keys } = attention;
  const curves = latest("rows", [attention], () =>
    Array.from({ length: heads }, (_, index) => weights.subarray(index * keys, (index + 1) * keys)),
  );
  const weight = curves[head][key];
  const edges = [query - trained_length + 1, query + trained_length - 1];
  return {
    x: { low: 0, high: rest.length - 1, label: "key j" },
    y: { low: 0, high: extremes([curves[head]]).high, label: `weight of query ${query}` },
    ...{ curves, start: 0, chosen: head, solid: edges, level: 1 / keys, point: [key, weight] },
    names: { ...namesOf(heads, edges[0] > 0 || edges[1] < keys - 1), level: "without a bias" },
    describe: `${format(weight)} for key ${key}`,
  };
}

function holdingOf({ attention, heads, head }) {
  const { holding, keys } = attention;
  const edges = Array.from({ length: heads + 1 }, (_, edge) => edge);
  const every = heads > 8 ? 2 : 1; // beside each other there is no room for the names of all
  const labels = Array.from({ length: Math.ceil(heads / every) }, (_, index) => index * every);
  const ticks = labels.map((label) => [label + 0.5, String(label)]);
  return {
    x: { low: 0, high: heads, label: "head", ticks },
    y: { low: 0, high: keys, label: `of ${counted(keys, "key")}` },
    bars: { edges, heights: holding, name: "every head", series: 3 },
    marks: [{ x: head + 0.5, y: holding[head], name: "this head", series: 1 }],
    describe: `${holding[head]} of ${counted(keys, "key")} for head ${head}`,
  };
}

/* The head's number stands in the control and in the read-out: a legend that changes with it would take longer. */
function namesOf(heads, dashed) {
  return {
    chosen: "this head",
    others: heads > 1 ? "other heads" : "",
    outside: dashed ? "farther than in training" : "",
  };
}

function extremes(curves) {
  let low = Infinity;
  let high = -Infinity;
  for (const curve of curves) {
    for (let index = 0; index < curve.length; index += 1) {
      if (curve[index] < low) low = curve[index];
      if (curve[index] > high) high = curve[index];
    }
  }
  return { low, high };
}

function sentences(here, tables) {
  const { query, key, head, attention, trained_length, causal } = here;
  const { weights, holding, keys } = attention;
  const strong = (value) => element("strong", {}, format(value));
  const distance = query - key;
  const weightAt = (at) => weights[head * keys + at];
  const trained = `, farther than any pair of ${trained_length} training positions`;
  const far = Math.abs(distance) >= trained_length ? trained : "";
  return [
    ...[`${about(here, tables, distance)} Query ${query} and key ${key}, distance ${format(distance)}: bias `],
    ...[strong(biasAt(here, distance)), `${far}. `],
    ...["If the scores were the bias alone, that key would get weight ", strong(weightAt(key)), ", the last one "],
    ...[`(key ${keys - 1}) `, strong(weightAt(keys - 1)), `; without a bias each of ${counted(keys, "key")} `],
    ...["gets ", strong(1 / keys), ". ", strong(holding[head]), ` ${holding[head] === 1 ? "key holds" : "keys hold"} `],
    `90 % of the weight${causal ? "" : ", to both sides"}.`,
  ];
}

/* What the scheme says about the head and the distance. */
function about({ scheme, head, heads }, tables, distance) {
  if (scheme === "alibi") return `ALiBi, head ${head}: slope ${format(slopes(heads)[head])}.`;
  const { columns, rule } = tables[scheme];
  const start = `${NAMES[scheme]}, head ${head}`;
  if (scheme === "transformer_xl") return `${start}: a sum of ${columns / 2} sines and as many cosines.`;
  if (scheme === "t5") {
    const at = `bucket ${bucketOf(distance, rule)} of ${columns}`;
    return `${start}: ${at}, shared by ${spanText(bucketRange(distance, rule))}.`;
  }
  const clipped = (columns - 1) / 2;
  const entry = Math.max(-clipped, Math.min(clipped, -distance));
  const beyond = Math.abs(distance) > clipped ? `, the entry of all beyond ${clipped}` : "";
  return `${start}: entry ${format(entry)} of ${format(-clipped)} to ${clipped}${beyond}.`;
}

function spanText([low, high]) {
  if (low === high) return `distance ${format(low)} alone`;
  if (high === Infinity) return `distances ${format(low)} and more`;
  if (low === -Infinity) return `distances ${format(high)} and less`;
  return `distances ${format(low)} to ${format(high)}`;
}

function cellText({ bias, head, causal, scheme }, tables, query, key) {
  const place = `query ${query}, key ${key}: `;
  if (causal && key > query) return `${place}hidden, it comes later`;
  const bucket = scheme === "t5" ? `, bucket ${bucketOf(query - key, tables.t5.rule)}` : "";
  return `${place}distance ${format(query - key)}${bucket}, bias ${format(biasAt({ bias, head }, query - key))}`;
}

function counted(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

export default { render, compute: { slopes, bucketOf, bucketRange, biases, used, attend, mapOf } };
