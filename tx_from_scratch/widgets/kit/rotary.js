/* RoPE in numbers: frequencies and their scaling, the angle of every pair at every position, scores by distance.
 * The same computation in Python: tx_from_scratch/positions/rotary.py and rope_scaling.py. */
import { normals } from "./random.js";

export const FULL_TURN = 2 * Math.PI;
const WIDEST_HEAD = 128;
const [YARN_FAST, YARN_SLOW] = [32, 1]; // YaRN keeps pairs that turned more often, divides those that turned less often

/* θ_i = base^(−2i / d), radians per position. */
export function rotaryFrequencies({ d_head, base }) {
  const theta = new Float64Array(d_head >> 1);
  for (let pair = 0; pair < theta.length; pair += 1) theta[pair] = base ** ((-2 * pair) / d_head);
  return theta;
}

/* s: what a text of `length` positions asks for; only dynamic NTK goes by the text, all others by the target. */
export function scalingFactor({ trained_length, target_length, method }, length) {
  return Math.max(1, (method === "dynamic_ntk" ? length : target_length) / trained_length);
}

/* base · s^(d / (d − 2)), for the methods that change the base. */
export function scaledBase({ d_head, base, method }, factor) {
  return method.endsWith("ntk") ? base * factor ** (d_head / (d_head - 2)) : base;
}

/* What cosines and sines are multiplied by; the score gets its square. */
export function attentionFactor({ method }, factor) {
  return method.startsWith("yarn") ? 0.1 * Math.log(factor) + 1 : 1;
}

/* YaRN: the share of each frequency that stays as it was. */
function keptShares({ d_head, base, trained_length, method }, theta) {
  if (method === "yarn_rotations") {
    return theta.map((turn) => unit(((trained_length * turn) / FULL_TURN - YARN_SLOW) / (YARN_FAST - YARN_SLOW)));
  }
  const pairWith = (turns) => (d_head * Math.log(trained_length / (FULL_TURN * turns))) / (2 * Math.log(base));
  const first = Math.max(Math.floor(pairWith(YARN_FAST)), 0);
  const last = Math.min(Math.ceil(pairWith(YARN_SLOW)), d_head - 1);
  return theta.map((_, pair) => 1 - unit((pair - first) / Math.max(last - first, 0.001)));
}

function unit(value) {
  return Math.min(1, Math.max(0, value));
}

/* The frequencies in use for a text of `length` positions. */
export function scaledFrequencies(settings, length) {
  const theta = rotaryFrequencies(settings);
  const factor = scalingFactor(settings, length);
  if (settings.method === "linear") return theta.map((turn) => turn / factor);
  if (settings.method.startsWith("yarn")) {
    const kept = keptShares(settings, theta);
    return theta.map((turn, pair) => turn * kept[pair] + (turn / factor) * (1 - kept[pair]));
  }
  return rotaryFrequencies({ ...settings, base: scaledBase(settings, factor) });
}

const KNOTS = 1024;
const KNOT_COSINE = new Float64Array(KNOTS + 1).map((_, knot) => Math.cos((FULL_TURN * knot) / KNOTS));
const KNOT_SINE = new Float64Array(KNOTS + 1).map((_, knot) => Math.sin((FULL_TURN * knot) / KNOTS));

/* Cosine and sine of every angle, position after position, and what training has seen of them.
 *
 * Training took pair i from 0 to L θ_i, and if that is less than a turn, an angle beyond it (whole turns taken off) is
 * unseen. A row of dynamic NTK is the last position of a text that ends there: a longer text has other frequencies.
 * For a map, positions share at most `mostRows` rows: a cell is the mean cosine, unseen if most of its angles are.
 *
 * A quarter of a million calls of cos and sin would take too long. Angles are counted in turns, whole ones are taken
 * off, and the hand at the nearest of 1024 knots is turned by the rest x, with x³ left out: off by at most 5e-9.
 * `spare` is a former result, whose arrays are written over if they have the right size. */
export function angleTable(settings, mostRows, spare = null) {
  const { trained_length, target_length: length, method } = settings;
  const theta = rotaryFrequencies(settings);
  const pairs = theta.length;
  const seen = theta.map((turn) => Math.min(1, trained_length * (turn / FULL_TURN)));
  const dynamic = method === "dynamic_ntk";
  const turns = scaledFrequencies(settings, dynamic ? 1 : length).map((turn) => turn / FULL_TURN);
  const unscaled = turns.slice();
  const fits = spare?.cosine.length === length * pairs;
  const cosine = fits ? spare.cosine : new Float32Array(length * pairs);
  const sine = fits ? spare.sine : new Float32Array(length * pairs);
  const rows = Math.min(length, mostRows);
  const means = new Float32Array(rows * pairs);
  const mostlyUnseen = new Uint8Array(rows * pairs);
  const sums = new Float64Array(pairs);
  const counts = new Uint16Array(pairs);
  let unseen = 0;
  for (let row = 0, position = 0; row < rows; row += 1) {
    const end = Math.floor(((row + 1) * length) / rows);
    const shared = end - position;
    sums.fill(0);
    counts.fill(0);
    for (; position < end; position += 1) {
      if (dynamic && position >= trained_length) slowDown(turns, unscaled, (position + 1) / trained_length);
      turnHands(position, turns, seen, cosine, sine, sums, counts);
    }
    for (let pair = 0; pair < pairs; pair += 1) {
      means[row * pairs + pair] = sums[pair] / shared;
      mostlyUnseen[row * pairs + pair] = 2 * counts[pair] > shared ? 1 : 0;
      unseen += counts[pair];
    }
  }
  return { theta, seen, length, pairs, rows, cosine, sine, means, mostlyUnseen, unseen: unseen / (length * pairs) };
}

/* One position's cosines and sines; adds the cosines to `sums` and what is unseen to `counts`. */
function turnHands(position, turns, seen, cosine, sine, sums, counts) {
  const pairs = turns.length;
  for (let pair = 0, at = position * pairs; pair < pairs; pair += 1, at += 1) {
    const whole = position * turns[pair];
    const share = whole - Math.floor(whole);
    const knot = (share * KNOTS + 0.5) | 0;
    const rest = (share * KNOTS - knot) * (FULL_TURN / KNOTS);
    const c = KNOT_COSINE[knot];
    const s = KNOT_SINE[knot];
    const value = c - rest * (s + 0.5 * rest * c);
    cosine[at] = value;
    sine[at] = s + rest * (c - 0.5 * rest * s);
    sums[pair] += value;
    if (share >= seen[pair]) counts[pair] += 1;
  }
}

/* Dynamic NTK: base · s^(d / (d − 2)) slows pair i down by s^(−2i / (d − 2)), each by the same factor more. */
function slowDown(turns, unscaled, factor) {
  const ratio = factor ** (-1 / (turns.length - 1));
  let slowed = 1;
  for (let pair = 0; pair < turns.length; pair += 1, slowed *= ratio) turns[pair] = unscaled[pair] * slowed;
}

/* A query n positions behind a key has the score Σ_i along_i cos nθ_i + across_i sin nθ_i, times `scale`. The parts
 * are products inside each pair: dimensions i and i + d/2, as most models have them. */
export function pairProducts(settings) {
  const { d_head, vectors, seed, peak } = settings;
  const pairs = d_head >> 1;
  if (vectors === "constant") {
    // All entries are 1, so every pair's product is 2, and q·k is d.
    return { along: new Float64Array(pairs).fill(2), across: new Float64Array(pairs), scale: 1 / d_head };
  }
  const scale = 1 / Math.sqrt(d_head);
  if (vectors === "chosen") {
    const angles = scaledFrequencies(settings, peak + 1).map((turn) => peak * turn);
    return { along: angles.map(Math.cos), across: angles.map(Math.sin), scale };
  }
  const samples = normals(seed, 2 * WIDEST_HEAD);
  const q = samples.subarray(0, d_head);
  const k = samples.subarray(WIDEST_HEAD, WIDEST_HEAD + d_head);
  const along = new Float64Array(pairs).map((_, pair) => q[pair] * k[pair] + q[pair + pairs] * k[pair + pairs]);
  const across = new Float64Array(pairs).map((_, pair) => q[pair] * k[pair + pairs] - q[pair + pairs] * k[pair]);
  return { along, across, scale };
}

/* The score at every distance, where it is largest, and in which share of the steps it rises. */
export function rotaryScores({ cosine, sine, length, pairs }, settings) {
  const { along, across, scale } = pairProducts(settings);
  const weight = scale * attentionFactor(settings, scalingFactor(settings, length)) ** 2;
  const scores = new Float64Array(length);
  let largest = 0;
  let rises = 0;
  let at = 0;
  for (let distance = 0; distance < length; distance += 1) {
    let sum = 0;
    for (let pair = 0; pair < pairs; pair += 1, at += 1) sum += along[pair] * cosine[at] + across[pair] * sine[at];
    scores[distance] = weight * sum;
    if (scores[distance] > scores[largest]) largest = distance;
    if (distance && scores[distance] > scores[distance - 1]) rises += 1;
  }
  return { scores, largest, rising: rises / (length - 1) };
}

/* RoFormer's bound by Abel summation, 2/d Σ_j |S_j|, where S_j is the sum of the unit vectors at the first j angles,
 * times the attention factor's square: for vectors of equal entries no score at that distance exceeds it times q·k. */
export function abelBound({ cosine, sine, length, pairs }, settings) {
  const weight = attentionFactor(settings, scalingFactor(settings, length)) ** 2 / pairs;
  const bound = new Float64Array(length);
  let at = 0;
  for (let distance = 0; distance < length; distance += 1) {
    let real = 0;
    let imaginary = 0;
    let sum = 0;
    for (let pair = 0; pair < pairs; pair += 1, at += 1) {
      real += cosine[at];
      imaginary += sine[at];
      sum += Math.sqrt(real * real + imaginary * imaginary);
    }
    bound[distance] = weight * sum;
  }
  return bound;
}

/* Where every pair's hand points at a position, in turns, and whether that is an angle training has not shown. */
export function handsAt({ seen }, inUse, position) {
  const turns = inUse.map((turn) => {
    const whole = position * (turn / FULL_TURN);
    return whole - Math.floor(whole);
  });
  return { turns, outside: Array.from(turns, (turn, pair) => turn >= seen[pair]) };
}
