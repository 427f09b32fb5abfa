/* Building blocks of a page: elements in a line of code, and the ids that labels need. */

const SVG = "http://www.w3.org/2000/svg";

/* element("button", { type: "button", onclick }, "text", child): attributes by name, listeners as on<event>. */
export function element(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

function build(node, attributes, children) {
  setAttributes(node, attributes);
  node.append(...children); // Strings become text nodes, so nothing in them is ever read as HTML.
  return node;
}

export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

/* Unique on the page, on which every widget is a module of its own: the count is the page's. */
export function uniqueId(name) {
  globalThis.txwCount = (globalThis.txwCount ?? 0) + 1;
  return `txw-${name}-${globalThis.txwCount}`;
}

/* Made once: toLocaleString() would make a new one for every number, which takes longer than all the rest. */
const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 });

/* A number for people: three digits, an exponent only where it helps, and a real minus sign. */
export function format(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e6) text = GROUPED.format(value);
  else if (size < 1e-3 || size >= 1e6) text = powerOfTen(value, digits);
  else text = GROUPED.format(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

function powerOfTen(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const raised = String(Number(exponent)).replace(/./g, (character) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[character] ?? "⁻");
  return `${Number(mantissa)}·10${raised}`;
}
