/* Attention weights of all layers and heads: one of them large, as a map or as lines between its tokens.
 * The same figures in Python: AttentionMap.statistics() in attention_map.py. */
import { figure } from "./kit/axes.js";
import { colorScale } from "./kit/colors.js";
import { choice, selection } from "./kit/controls.js";
import { element, format, svgElement } from "./kit/elements.js";
import { frame } from "./kit/frame.js";
import { memory } from "./kit/memory.js";
import { strongest, tokenLines } from "./kit/token_lines.js";
import { pooled, tokenMap } from "./kit/token_map.js";
import { copiesTokens, tokenElement, visible } from "./kit/tokens.js";

const FULL = 65535; // the integer that stands for a weight of 1
const THUMBNAIL_LIMIT = 84; // px
const GRID_HEIGHT = 460;
const GRID_MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const TRAITS = ["layer", "head", "view", "normalize", "query", "key"];

/* Where the diagonal of the whole map runs through the window shown: for each query a key, or -1 where that is cut
 * off. Query i of T is paired with key floor((i + 1/2) · S / T) of S, as in the library's diagonal_share. */
export function diagonalKeys({ queries, keys }, rows, columns) {
  const [first, step, nQueries] = queries;
  const [firstKey, keyStep, nKeys] = keys;
  const result = new Int32Array(rows);
  for (let row = 0; row < rows; row += 1) {
    const key = Math.floor(((2 * (first + step * row) + 1) * nKeys) / (2 * nQueries)) - firstKey;
    result[row] = key >= 0 && key % keyStep === 0 && key < keyStep * columns ? key / keyStep : -1;
  }
  return result;
}

/* Of each of `count` maps in a row: entropy in nats, what a query's weights sum to (both as means over the queries),
 * the mean weight on the diagonal (NaN where there is none), the largest weight and where it is. */
export function statistics(weights, { count, rows, columns, diagonal }) {
  const entr = new Float64Array(FULL + 1); // −p ln p of every integer
  for (let integer = 1; integer < FULL; integer += 1) entr[integer] = -(integer / FULL) * Math.log(integer / FULL);
  const result = [];
  for (let map = 0, start = 0; map < count; map += 1, start += rows * columns) {
    let entropy = 0;
    let sum = 0;
    let largest = 0;
    let brightest = 0;
    for (let index = 0; index < rows * columns; index += 1) {
      const weight = weights[start + index];
      if (weight === 0) continue;
      entropy += entr[weight];
      sum += weight;
      if (weight > largest) {
        largest = weight;
        brightest = index;
      }
    }
    let onDiagonal = 0;
    let paired = 0;
    for (let row = 0; row < rows; row += 1) {
      if (diagonal[row] < 0) continue;
      onDiagonal += weights[start + row * columns + diagonal[row]];
      paired += 1;
    }
    result.push({
      entropy: entropy / rows,
      held: sum / FULL / rows,
      diagonalShare: onDiagonal / FULL / paired,
      largest: largest / FULL,
      brightest: [Math.floor(brightest / columns), brightest % columns],
    });
  }
  return result;
}

/* The places of the `most` largest weights in a row or column, largest first; zeros are left out. */
export function ranking(weights, start, step, count, most) {
  const best = [];
  for (let index = 0; index < count; index += 1) {
    const weight = weights[start + index * step];
    if (weight === 0 || (best.length === most && weight <= best[most - 1].weight)) continue;
    const place = best.findIndex((other) => other.weight < weight);
    best.splice(place < 0 ? best.length : place, 0, { index, weight });
    if (best.length > most) best.pop();
  }
  return best.map(({ index, weight }) => ({ index, weight: weight / FULL }));
}

/* Bytes arrive as a DataView, from Python and from the page alike. */
function integers(view) {
  return new Uint16Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/* All heads as small maps: layers go down, heads across. pointed(map): pointer or focus is on it, -1 for none. */
function headGrid(view, panel, { data, pointed, chosen }) {
  const { weights, layers, heads, rows, columns } = data;
  const across = heads.length;
  const label = "Heads; arrow keys choose one";
  const canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": label });
  const { svg, size, boxWidth } = figure(view, panel, { label, canvas });
  const names = svgElement("g");
  const frames = svgElement("g");
  svg.append(names, frames);
  const latest = memory();
  let shown = null;
  let current = -1;

  const mapAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / shown.across);
    const row = Math.floor((event.clientY - box.top) / shown.down);
    const inside = row >= 0 && row < layers.length && column >= 0 && column < across;
    return inside ? row * across + column : -1;
  };
  let under = -1;
  let focused = false;
  const follow = (map) => {
    under = map;
    pointed(map < 0 && focused ? current : map);
  };
  const focus = (has) => {
    focused = has;
    follow(under);
  };
  canvas.addEventListener("focus", () => focus(true));
  canvas.addEventListener("blur", () => focus(false));
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && shown && mapAt(event) !== under) follow(mapAt(event));
  });
  canvas.addEventListener("pointerleave", () => follow(-1));
  canvas.addEventListener("click", (event) => shown && mapAt(event) >= 0 && chosen(mapAt(event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    let layer = Math.floor(current / across);
    let head = current % across;
    if (GRID_MOVES[event.key]) {
      layer = Math.min(layers.length - 1, Math.max(0, layer + GRID_MOVES[event.key][0]));
      head = Math.min(across - 1, Math.max(0, head + GRID_MOVES[event.key][1]));
    } else if (event.key === "Home") head = 0;
    else if (event.key === "End") head = across - 1;
    else return;
    event.preventDefault();
    chosen(layer * across + head);
  });

  return {
    /* `highs`: for each map the integer that takes the brightest color. */
    draw(highs) {
      const shape = Math.min(1.5, Math.max(0.5, rows / columns)); // of a map that is long or wide, at most
      const left = 18 + 7 * String(Math.max(...layers)).length;
      const room = Math.max(1, boxWidth() - left - 3);
      const side = Math.min(THUMBNAIL_LIMIT, room / across, Math.max(9, GRID_HEIGHT / layers.length / shape));
      shown = { across: side, down: side * shape };
      const margin = { left, right: 3, top: 32, bottom: 4 };
      const area = size(shown.down * layers.length, { margin, innerWidth: side * across });
      const places = latest("places", [canvas.width, canvas.height], () => thumbnailPlaces(canvas, data));
      paintThumbnails(canvas, places, highs, colorScale("sequential", view.dark).pixels);
      const every = Math.ceil(18 / side);
      const middle = `translate(9 ${area.top + area.height / 2}) rotate(-90)`;
      const above = (index) => ({ x: area.left + (index + 0.5) * side, y: area.top - 4, "text-anchor": "middle" });
      const beside = (index) => ({ x: left - 4, y: area.top + (index + 0.5) * shown.down + 4, "text-anchor": "end" });
      names.replaceChildren(
        svgElement("text", { x: area.left + area.width / 2, y: 12, "text-anchor": "middle" }, "head"),
        svgElement("text", { transform: middle, "text-anchor": "middle" }, "layer"),
        ...heads.flatMap((number, index) => (index % every ? [] : [svgElement("text", above(index), number)])),
        ...layers.flatMap((number, index) =>
          index % Math.ceil(12 / shown.down) ? [] : [svgElement("text", beside(index), number)],
        ),
      );
      shown.area = area;
      current = -1;
    },
    mark(map) {
      if (map === current) return;
      current = map;
      if (focused && under < 0) pointed(current);
      const { area, across: wide, down: tall } = shown;
      const place = { x: area.left + (map % across) * wide - 1, y: area.top + Math.floor(map / across) * tall - 1 };
      const size = { width: wide + 1, height: tall + 1, fill: "none", "stroke-width": 2.5 };
      frames.replaceChildren(svgElement("rect", { ...place, ...size, stroke: view.colors.alarm }));
    },
  };
}

/* Where each small map stands on the canvas, a pixel or two apart, and its weights, pooled to what it has room for. */
function thumbnailPlaces({ width, height }, { weights, layers, heads, rows, columns }) {
  const gap = Math.max(1, Math.round(Math.min(width / heads.length, height / layers.length) / 24));
  const edges = (count, length) => Array.from({ length: count + 1 }, (_, at) => Math.round((at * length) / count));
  const [lefts, tops] = [edges(heads.length, width), edges(layers.length, height)];
  return Array.from({ length: layers.length * heads.length }, (_, map) => {
    const [layer, head] = [Math.floor(map / heads.length), map % heads.length];
    const wide = Math.max(1, lefts[head + 1] - lefts[head] - gap);
    const tall = Math.max(1, tops[layer + 1] - tops[layer] - gap);
    const [across, down] = [Math.min(columns, wide), Math.min(rows, tall)];
    const small = pooled(weights, map * rows * columns, rows, columns, down, across);
    return { x: lefts[head], y: tops[layer], wide, tall, across, down, small };
  });
}

function paintThumbnails(canvas, places, highs, pixels) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const target = new Uint32Array(image.data.buffer);
  for (const [map, { x, y, wide, tall, across, down, small }] of places.entries()) {
    const factor = highs[map] ? 256 / highs[map] : 0;
    for (let row = 0; row < tall; row += 1) {
      const from = Math.floor((row * down) / tall) * across;
      const to = (y + row) * canvas.width + x;
      for (let column = 0; column < wide; column += 1) {
        const integer = small[from + Math.floor((column * across) / wide)];
        target[to + column] = pixels[Math.min(255, (integer * factor) | 0)];
      }
    }
  }
  context.putImageData(image, 0, 0);
}

function render({ model, el }) {
  const view = frame({ model, el, label: "Attention map" });
  const get = (trait) => model.get(`_${trait}`);
  const [layers, heads] = [get("layers"), get("heads")];
  const [rowTokens, columnTokens] = JSON.parse(new TextDecoder().decode(get("tokens")));
  const cut = get("window");
  const [rows, columns] = [rowTokens.length, columnTokens.length];
  const data = { weights: integers(get("weights")), layers, heads, rows, columns };
  const { weights } = data;
  const count = layers.length * heads.length;
  const figures = statistics(weights, { count, rows, columns, diagonal: diagonalKeys(cut, rows, columns) });

  const numbered = (numbers, name) => numbers.map((number, index) => [index, `${name} ${number}`]);
  if (layers.length > 1) selection(view, "layer", { label: "layer", options: numbered(layers, "layer") });
  if (heads.length > 1) selection(view, "head", { label: "head", options: numbered(heads, "head") });
  choice(view, "view", { label: "view", options: [["map", "map"], ["lines", "lines"]] });
  choice(view, "normalize", { label: "color range", options: [["each map", "each map"], ["0 to 1", "0 to 1"]] });

  view.panels.classList.add("txw-attention");
  view.readout.classList.add("txw-attention-readout");
  copiesTokens(view.root);
  const choose = (map) => setAll({ layer: Math.floor(map / heads.length), head: map % heads.length });
  let grid = null;
  const gridText = element("p", { class: "txw-cursor" });
  if (count > 1) {
    const panel = view.panel("All heads");
    const pointedMap = (map) => gridText.replaceChildren(...(map < 0 ? gridHint() : headParts(map)));
    grid = headGrid(view, panel, { data, pointed: pointedMap, chosen: choose });
    panel.append(gridText);
  }
  const large = view.panel("");
  const title = large.firstChild;
  const mapBox = element("div", {});
  const linesBox = element("div", {});
  const cursorText = element("p", { class: "txw-cursor txw-attention-cursor" });
  const gradient = element("span", { class: "txw-gradient" });
  const brightestColor = element("span", {});
  const legend = element("p", { class: "txw-legend" }, element("span", {}, "weight 0", gradient, brightestColor));
  large.append(legend, mapBox, linesBox, cursorText);

  let hover = null; // where the pointer is, before anything chosen
  const pointed = (query, key) => {
    const next = query < 0 && key < 0 ? null : [query, key];
    if (String(next) === String(hover)) return;
    hover = next;
    draw();
  };
  const chosen = (query, key) => setAll({ query, key });
  const map = tokenMap(view, mapBox, { label: "Attention weights", pointed, chosen });
  // In a window into self-attention, a token stands at the same height on both sides.
  const [[firstQuery, queryStep, nQueries], [firstKey, keyStep, nKeys]] = [cut.queries, cut.keys];
  const inside = firstQuery >= firstKey && firstQuery < firstKey + columns;
  const shift = nQueries === nKeys && queryStep === 1 && keyStep === 1 && inside ? firstQuery - firstKey : 0;
  const lines = () =>
    latest("lines", [], () => tokenLines(view, linesBox, { rowTokens, columnTokens, shift, pointed, chosen }));

  /* Several traits at once, which Python hears of in one message. */
  const setAll = (traits) => {
    model.set(traits);
    model.save_changes();
  };
  /* A trait that is linked to another widget may be set to what this one doesn't have. */
  const within = (trait, length, low) => Math.min(length - 1, Math.max(low, model.get(trait)));

  const strong = (value) => element("strong", {}, format(value));
  const position = ([first, step], index) => first + step * index;
  // A token may occur more than once, so its place is named too.
  const queryName = (index) => [tokenElement(rowTokens[index]), ` (${position(cut.queries, index)})`];
  const keyName = (index) => [tokenElement(columnTokens[index]), ` (${position(cut.keys, index)})`];
  const pairName = ([query, key]) => [...queryName(query), " → ", ...keyName(key)];
  const headName = (map) => `Layer ${layers[Math.floor(map / heads.length)]}, head ${heads[map % heads.length]}`;
  const shareText = (value) => (Number.isNaN(value) ? "not in this window" : format(value));
  const headParts = (map) => {
    const { entropy, diagonalShare, largest, brightest } = figures[map];
    const text = `${headName(map)}: entropy ${format(entropy)}, diagonal ${shareText(diagonalShare)}, brightest `;
    return [text, ...pairName(brightest), ` ${format(largest)}`];
  };
  const gridHint = () => ["Click a head, or move with the arrow keys."];

  /* What is looked at: the weight of the pair, and where most of the row and of the column goes. */
  const cursorParts = (start, [query, key]) => {
    const list = (best, name) => {
      const entries = best.flatMap(({ index, weight }, place) => {
        return [place ? ", " : "", ...name(index), ` ${format(weight)}`];
      });
      return entries.length ? entries : ["nothing"];
    };
    const parts = [];
    if (query >= 0 && key >= 0) {
      parts.push(...pairName([query, key]), ": ", strong(weights[start + query * columns + key] / FULL), ". ");
    }
    if (query >= 0) {
      const best = ranking(weights, start + query * columns, 1, columns, 3);
      parts.push("Query ", ...queryName(query), " looks most at ", ...list(best, keyName), ". ");
    }
    if (key >= 0) {
      const best = ranking(weights, start + key, columns, rows, 3);
      parts.push("Key ", ...keyName(key), " is looked at most by ", ...list(best, queryName), ". ");
    }
    return parts;
  };
  const hint = {
    map: "Point at a cell or a token, or move with the arrow keys; click to keep it, Escape to let go.",
    lines: "Point at a token, or move with the arrow keys, to see its lines; click to keep it, Escape to let go.",
  };

  const latest = memory(); // Only what a setting changes is drawn again.
  const draw = () => {
    const layer = within("layer", layers.length, 0);
    const head = within("head", heads.length, 0);
    const chosenMap = layer * heads.length + head;
    const start = chosenMap * rows * columns;
    const fixed = [within("query", rows, -1), within("key", columns, -1)];
    const [query, key] = hover ?? fixed;
    const normalize = model.get("normalize");
    const asMap = model.get("view") !== "lines";
    const highOf = (map) => (normalize === "each map" ? Math.round(figures[map].largest * FULL) : FULL);
    const high = highOf(chosenMap);
    const place = [view.width, view.dark, window.devicePixelRatio];

    if (grid) {
      latest("grid", [...place, normalize], () => grid.draw(figures.map((_, map) => highOf(map))));
      grid.mark(chosenMap);
      latest("grid text", [], () => gridText.replaceChildren(...gridHint()));
    }
    latest("title", [chosenMap], () => (title.textContent = headName(chosenMap)));
    latest("boxes", [asMap], () => {
      mapBox.hidden = !asMap;
      legend.hidden = !asMap;
      linesBox.hidden = asMap;
    });
    const note = [];
    if (asMap) {
      latest("map", [...place, chosenMap, high], () =>
        map.draw({ weights, start, rows, columns, high, rowTokens, columnTokens }),
      );
      map.mark(query, key, fixed);
      latest("gradient", [view.dark], () => {
        const { colors } = colorScale("sequential", view.dark);
        const stops = [0, 51, 102, 153, 204, 255].map((index) => `rgb(${colors[index].join(" ")})`);
        gradient.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
      });
      latest("high", [high], () => (brightestColor.textContent = format(high / FULL)));
      if (map.crowding() > 1.01) note.push("More cells than pixels: a pixel shows the largest weight of its cells. ");
    } else {
      const drawn = latest("drawn", [...place, chosenMap, high, query, key, ...fixed], () =>
        lines().draw({ weights, start, high, query, key, fixed }),
      );
      if (drawn.hidden) {
        const [lines, hidden] = [format(drawn.indices.length), format(drawn.hidden)];
        const [largest, share] = [format(drawn.largest / FULL), format(100 * drawn.share, 2)];
        note.push(`The ${lines} strongest lines; ${hidden} hidden, of at most ${largest} each, `);
        note.push(`${share} % of the weight together. `);
      }
    }
    latest("cursor", [chosenMap, query, key, asMap, ...note], () => {
      const parts = cursorParts(start, [query, key]);
      cursorText.replaceChildren(...note, ...(parts.length ? parts : [asMap ? hint.map : hint.lines]));
    });
    latest("said", [chosenMap, ...fixed], () => {
      const looking = fixed[0] >= 0 || fixed[1] >= 0;
      say(chosenMap, looking ? cursorText.textContent : "");
    });
  };

  /* `aside` stands below the map; whoever can't see it hears it. */
  const say = (chosenMap, aside) => {
    const { entropy, held, diagonalShare, largest, brightest } = figures[chosenMap];
    const parts = [`${headName(chosenMap)}, ${format(rows)} × ${format(columns)}: entropy `, strong(entropy)];
    parts.push(` of ${format(Math.log(columns))} nats, diagonal share `);
    parts.push(element("strong", {}, shareText(diagonalShare)));
    parts.push(", brightest pair ", ...pairName(brightest), ": ", strong(largest), ". ");
    const [row, batch] = cut.batch;
    if (batch > 1) parts.push(`Sequence ${row} of a batch of ${batch}. `);
    if (rows < nQueries || columns < nKeys) {
      parts.push(`A window into ${format(nQueries)} queries and ${format(nKeys)} keys. `);
    }
    if (columns < nKeys) parts.push("Its keys hold ", strong(100 * held), " % of the weight. ");
    view.say(...parts, element("span", { class: "txw-hidden" }, aside));
  };
  view.draws(TRAITS, draw);
  return view.end;
}

export default { render, compute: { statistics, diagonalKeys, ranking, pooled, strongest, visible } };
