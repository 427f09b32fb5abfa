/* Color scales whose steps look equally large, to color-blind readers too.
 *
 * A scale is a path through OKLab (Björn Ottosson 2020), a space in which equal distances look about equally
 * different; it is walked at constant speed. Lightness alone tells the order on the sequential scales; the
 * diverging ones go to blue and to orange, which no common kind of color blindness confuses. */

const STEPS = 256;

/* Points on the way, as [lightness, chroma, hue in degrees]. Each begins at the color of the ground behind it. */
const PATHS = {
  light: {
    sequential: [[0.985, 0.006, 210], [0.82, 0.085, 205], [0.6, 0.115, 240], [0.4, 0.13, 270], [0.26, 0.09, 285]],
    below: [[0.97, 0.003, 250], [0.7, 0.11, 245], [0.4, 0.13, 260]],
    above: [[0.97, 0.003, 60], [0.76, 0.13, 62], [0.415, 0.105, 46]],
  },
  dark: {
    sequential: [[0.24, 0.012, 270], [0.4, 0.1, 270], [0.6, 0.115, 240], [0.8, 0.1, 200], [0.96, 0.03, 190]],
    below: [[0.27, 0.008, 250], [0.55, 0.13, 255], [0.85, 0.08, 235]],
    above: [[0.27, 0.008, 60], [0.56, 0.12, 50], [0.86, 0.09, 75]],
  },
};

function oklab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

function srgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((light) => {
    const value = light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, value)));
  });
}

/* Colors at equal distances along the path through the points, as [red, green, blue] from 0 to 255. */
function walk(points, steps) {
  const path = points.map(oklab);
  const lengths = path.slice(1).map((point, index) => Math.hypot(...point.map((value, axis) => value - path[index][axis])));
  const total = lengths.reduce((sum, length) => sum + length, 0);
  return Array.from({ length: steps }, (_, step) => {
    let rest = (total * step) / (steps - 1);
    let leg = 0;
    while (leg < lengths.length - 1 && rest > lengths[leg]) rest -= lengths[leg++];
    const share = Math.min(1, rest / lengths[leg]);
    return srgb(path[leg].map((value, axis) => value + share * (path[leg + 1][axis] - value)));
  });
}

/* A triple as CSS writes it. */
export function hex(color) {
  return `#${color.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

/* A color between two that CSS writes as "#rrggbb", the given share of the way from the first to the second. */
export function mixed(first, second, share) {
  const [from, to] = [first, second].map((color) => parseInt(color.slice(1), 16));
  const part = (bits) => ((from >> bits) & 255) + share * (((to >> bits) & 255) - ((from >> bits) & 255));
  return hex([16, 8, 0].map((bits) => Math.round(part(bits))));
}

/* A color as CSS writes it, "#rrggbb", as a packed pixel; none (null) is transparent. */
export function packedColor(color) {
  if (!color) return 0;
  const value = parseInt(color.slice(1), 16);
  return new Uint32Array(new Uint8ClampedArray([value >> 16, (value >> 8) & 255, value & 255, 255]).buffer)[0];
}

const scales = new Map(); // Made once for each theme.

/* The 256 colors of "sequential" or "diverging", as packed pixels for a canvas and as a list of triples. */
export function colorScale(name, dark) {
  const theme = dark ? "dark" : "light";
  const key = `${name} ${theme}`;
  if (!scales.has(key)) {
    const { sequential, below, above } = PATHS[theme];
    const colors =
      name === "sequential"
        ? walk(sequential, STEPS)
        : [...walk(below, STEPS / 2).reverse(), ...walk(above, STEPS / 2)];
    const bytes = new Uint8ClampedArray(colors.flatMap(([red, green, blue]) => [red, green, blue, 255]));
    scales.set(key, { colors, pixels: new Uint32Array(bytes.buffer) });
  }
  return scales.get(key);
}

/* Which of the 256 colors belongs to a value; what is no number has none (-1). */
export function colorIndex(value, low, high) {
  if (!(value === value)) return -1;
  const share = high > low ? (value - low) / (high - low) : 0;
  return Math.min(STEPS - 1, Math.max(0, Math.floor(share * STEPS)));
}
