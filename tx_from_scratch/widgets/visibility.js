/* Who may attend to whom, what that costs, and how far information travels over the layers.
 * The same computation in Python: visibility() in visibility.py. */
import { button, numberField, slider, toggle } from "./kit/controls.js";
import { colorScale, hex } from "./kit/colors.js";
import { element, format } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { heatMap } from "./kit/heat_map.js";
import { legend } from "./kit/legend.js";
import { linePlot } from "./kit/line_plot.js";
import { memory } from "./kit/memory.js";
import { uniforms } from "./kit/random.js";

const MAX_LAYERS = 12;
const NEVER = 255; // layers until a pair is reached; 127 is the most that any takes
const [HIDDEN, WINDOW, GLOBAL, RANDOM, EVERYTHING, PADDING] = [0, 1, 2, 3, 4, 5];
const PART_NAMES = ["hidden", "window", "global token", "random", "everything", "padding"];
const SERIES = ["series-1", "series-2", "series-3", "series-4"]; // the colors of the parts that open a pair
const MASK_TRAITS = ["length", "causal", "padding", "windowed", "window", "n_global", "n_random", "seed"];
const TRAITS = [...MASK_TRAITS, "n_layers", "query"];

/* The settings as they count: none beyond the number of tokens. */
export function used(settings) {
  const { length, padding, query, n_global, n_random } = settings;
  return {
    ...settings,
    padding: Math.min(padding, length - 1),
    query: Math.min(query, length - 1),
    n_global: Math.min(n_global, length),
    n_random: Math.min(n_random, length),
  };
}

/* For every query the keys that drew its smallest numbers: (query, key), 1 = drawn. */
function randomPairs({ length, n_random, seed }) {
  const drawn = new Uint8Array(length * length);
  if (!n_random) return drawn;
  const numbers = uniforms(seed, length * length);
  for (let start = 0; start < drawn.length; start += length) {
    const last = numbers.slice(start, start + length).sort()[n_random - 1]; // no two numbers are alike
    for (let index = start; index < start + length; index += 1) drawn[index] = numbers[index] <= last ? 1 : 0;
  }
  return drawn;
}

/* By which part each pair is visible (the first of several), (query, key); which are visible, as a set of bits for
 * each query; how many; how many full attention sees; how many queries see nothing. */
export function compose(settings, random = randomPairs(settings)) {
  const { length, causal, padding, windowed, window, n_global, n_random } = settings;
  const everything = !windowed && !n_global && !n_random;
  const real = length - padding;
  const words = wordsFor(length);
  const parts = new Uint8Array(length * length);
  const bits = new Int32Array(length * words);
  let visible = 0;
  let full = 0;
  let empty = 0;
  for (let query = 0; query < length; query += 1) {
    const before = visible;
    const end = causal ? Math.min(query + 1, real) : real;
    full += end;
    for (let key = 0; key < end; key += 1) {
      const index = query * length + key;
      let part = HIDDEN;
      if (windowed && Math.abs(query - key) <= window) part = WINDOW;
      else if (query < n_global || key < n_global) part = GLOBAL;
      else if (random[index]) part = RANDOM;
      else if (everything) part = EVERYTHING;
      if (part === HIDDEN) continue;
      parts[index] = part;
      bits[query * words + (key >>> 5)] |= 1 << (key & 31);
      visible += 1;
    }
    if (visible === before) empty += 1;
    parts.fill(PADDING, query * length + real, (query + 1) * length);
  }
  return { parts, bits, visible, full, empty };
}

function wordsFor(length) {
  return (length + 31) >>> 5;
}

/* After how many layers each key can influence each query, (query, key): 0 on the diagonal, NEVER where it can't.
 *
 * A layer takes to a query all that its keys knew, and the residual connection keeps what it knew itself. What a
 * query knows is a set of bits, so that 32 keys go in one step. */
export function layersToReach(bits, length) {
  const words = wordsFor(length);
  const layers = new Uint8Array(length * length).fill(NEVER);
  let reached = new Int32Array(length * words);
  for (let query = 0; query < length; query += 1) {
    layers[query * length + query] = 0;
    reached[query * words + (query >>> 5)] |= 1 << (query & 31);
  }
  for (let layer = 1; ; layer += 1) {
    const further = reached.slice();
    let changed = false;
    for (let query = 0; query < length; query += 1) {
      const own = query * words;
      for (let word = 0; word < words; word += 1) {
        for (let left = bits[own + word]; left !== 0; left &= left - 1) {
          const key = 32 * word + lowest(left);
          for (let part = 0; part < words; part += 1) further[own + part] |= reached[key * words + part];
        }
      }
      for (let word = 0; word < words; word += 1) {
        for (let fresh = further[own + word] & ~reached[own + word]; fresh !== 0; fresh &= fresh - 1) {
          layers[query * length + 32 * word + lowest(fresh)] = layer;
          changed = true;
        }
      }
    }
    if (!changed) return layers;
    reached = further;
  }
}

/* The place of the lowest bit that is set. */
function lowest(bits) {
  return 31 - Math.clz32(bits & -bits);
}

/* Of the pairs of real tokens that causality permits: the share reached after 1 ... 12 layers, and the number of
 * layers until all are, null if some never are. */
export function reach(layers, { length, causal, padding }) {
  const real = length - padding;
  const counts = new Uint32Array(NEVER + 1);
  for (let query = 0; query < real; query += 1) {
    const end = query * length + (causal ? query + 1 : real);
    for (let index = query * length; index < end; index += 1) counts[layers[index]] += 1;
  }
  const permitted = causal ? (real * (real + 1)) / 2 : real * real;
  const share = new Float64Array(MAX_LAYERS);
  let sum = counts[0];
  for (let layer = 1; layer <= MAX_LAYERS; layer += 1) share[layer - 1] = (sum += counts[layer]) / permitted;
  let last = NEVER;
  while (!counts[last]) last -= 1;
  return { share, all_after: last === NEVER ? null : last };
}

/* How many tokens a query is influenced by after these many layers. */
export function known(layers, { length, query, n_layers }) {
  let count = 0;
  for (let index = query * length; index < (query + 1) * length; index += 1) count += layers[index] <= n_layers ? 1 : 0;
  return count;
}

/* The line of Python that builds this mask from the library's parts. */
export function code({ length, causal, padding, windowed, window, n_global, n_random, seed }) {
  const parts = [
    windowed && `window_mask(${length}, ${length}, ${window})`,
    n_global && `global_mask(${length}, ${n_global})`,
    n_random && `random_mask(${length}, ${n_random}, seed=${seed})`,
  ];
  const masks = [
    parts.filter(Boolean).join(" | "),
    causal && `causal_mask(${length})`,
    padding && `torch.arange(${length}) < ${length - padding}`,
  ];
  return `mask = combine_masks(${masks.filter(Boolean).join(", ") || "None"})`;
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Masks and visibility" });
  view.panels.style.setProperty("--txw-panel", "280px");
  slider(view, "length", { label: "tokens" });
  toggle(view, "causal", { label: "causal" });
  slider(view, "padding", { label: "padding at the end" });
  toggle(view, "windowed", { label: "window" });
  slider(view, "window", { label: "window to either side" });
  slider(view, "n_global", { label: "global tokens" });
  slider(view, "n_random", { label: "random keys" });
  numberField(view, "seed", { label: "seed" });
  button(view, { label: "draw again", pressed: () => view.set("seed", Math.floor(Math.random() * 10000)) });
  slider(view, "n_layers", { label: "layers" });
  slider(view, "query", { label: "token to follow" });

  let here = null; // what is shown; the texts under the maps are made from it
  const maskPanel = view.panel("Who may attend to whom");
  const reachPanel = view.panel("Layers until a key reaches a query");
  const map = (panel, label, describe) => {
    const hint = "Click a row to follow its token.";
    const chosen = (row) => view.set("query", row);
    return heatMap(view, panel, { label, describe: (row, column) => describe(here, row, column), hint, chosen });
  };
  const drawMask = map(maskPanel, "Mask", visibleBy);
  const drawLayers = map(reachPanel, "Reach", after);
  const explainMask = legend(maskPanel);
  const explainLayers = legend(reachPanel);
  const drawCurve = linePlot(view, view.panel("Share of pairs reached"), { label: "Share of pairs reached" });
  const line = element("code", {});
  view.readout.after(element("p", { class: "txw-code" }, "The same mask in Python: ", line));

  const latest = memory(); // Following another token, or adding layers, changes no mask.
  const draw = () => {
    const settings = used(Object.fromEntries(TRAITS.map((trait) => [trait, model.get(trait)])));
    const { length, n_layers, query } = settings;
    const keys = MASK_TRAITS.map((trait) => settings[trait]);
    const { n_random, seed } = settings;
    const random = latest("random", [length, n_random, seed], () => randomPairs(settings));
    const mask = latest("mask", keys, () => compose(settings, random));
    const layers = latest("layers", [mask], () => layersToReach(mask.bits, length));
    const { share, all_after } = latest("share", [layers], () => reach(layers, settings));
    here = { ...settings, parts: mask.parts, layers };

    const labels = { xLabel: "key", yLabel: "query" };
    const square = { rows: length, columns: length, height: 280, square: true, marked: query, ...labels };
    const { colors } = view;
    const partColors = latest("part colors", [view.dark], () => {
      return [null, ...SERIES.map((name) => colors[name]), colors.line];
    });
    drawMask({ values: mask.parts, palette: partColors, ...square });
    explainMask(partsOn(settings).map((part) => [partColors[part], PART_NAMES[part]]));
    const layerColors = latest("layer colors", [n_layers, view.dark], () => layerPalette(n_layers, view.dark));
    drawLayers({ values: layers, palette: layerColors, ...square });
    explainLayers([...layerColors.map((color, layer) => [color, String(layer)]), [null, "not reached"]]);
    drawCurve({
      x: { low: 1, high: MAX_LAYERS, label: "layers" },
      y: { low: 0, high: 1, label: "share" },
      lines: [{ x: Array.from(share, (_, index) => index + 1), y: share, series: 1 }],
      marks: [{ x: n_layers, y: share[n_layers - 1] }],
      describe: `${format(100 * share[n_layers - 1])} % after ${counted(n_layers, "layer")}`,
    });

    const pairs = length * length;
    const { visible, full, empty } = mask;
    const influences = known(layers, settings);
    view.say(
      "Visible: ", strong(visible), ` of ${format(pairs)} pairs (`, strong((100 * visible) / pairs), " %). ",
      `Full attention computes ${format(full)} scores, so this costs `, strong(visible / full), " of it. ",
      `After ${counted(n_layers, "layer")} `, strong(100 * share[n_layers - 1]),
      ` % of the pairs${settings.padding ? " of real tokens" : ""} are reached, `,
      all_after === null ? "and some never are; " : `all after ${all_after}; `,
      `token ${query} is influenced by `, strong(influences), influences === 1 ? " token. " : " tokens. ",
      empty ? `${counted(empty, "query", "queries")} may attend to nothing.` : "Every query may attend to something.",
    );
    line.textContent = code(settings);
  };
  view.draws(TRAITS, draw);
  return view.end;
}

/* Which parts the settings turn on, for the legend. */
function partsOn({ windowed, n_global, n_random, padding }) {
  const on = [true, windowed, n_global, n_random, !windowed && !n_global && !n_random, padding];
  return [HIDDEN, WINDOW, GLOBAL, RANDOM, EVERYTHING, PADDING].filter((part) => on[part]);
}

/* One color for each number of layers; the first is far enough from the ground to be seen. */
function layerPalette(n_layers, dark) {
  const { colors } = colorScale("sequential", dark);
  return Array.from({ length: n_layers + 1 }, (_, layer) => hex(colors[Math.round(60 + (195 * layer) / n_layers)]));
}

function visibleBy({ parts, length, causal }, query, key) {
  const part = parts[query * length + key];
  const later = part === HIDDEN && causal && key > query ? ", it comes later" : "";
  return `query ${query}, key ${key}: ${PART_NAMES[part]}${later}`;
}

function after({ layers, length, n_layers }, query, key) {
  const needed = layers[query * length + key];
  const text = needed === NEVER ? "never reached" : `reached after ${counted(needed, "layer")}`;
  return `query ${query}, key ${key}: ${text}${needed > n_layers && needed !== NEVER ? ", more than there are" : ""}`;
}

function counted(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

function strong(value) {
  return element("strong", {}, format(value));
}

export default { render, compute: { used, compose, layersToReach, reach, known, code } };
