/* Controls that are bound to a trait: they show its value, and set it. Their limits come from Python. */
import { element, format, uniqueId } from "./elements.js";

/* A slider with a field for typed values. `logarithmic` gives every doubling the same way to go; 10 does that too,
 * with steps that meet the powers of ten. */
export function slider(view, trait, { label, unit = "", logarithmic = false }) {
  const [low, high, step] = view.model.get("_limits")[trait];
  const scale = logarithmic ? logarithmicScale(low, high, step, logarithmic) : linearScale(low, high, step);
  const range = element("input", { type: "range", min: 0, max: scale.positions, step: 1, "aria-label": label });
  const field = element("input", { type: "number", title: `${low} to ${high}`, min: low, max: high, step: Number.isInteger(step) ? step : "any", id: uniqueId(trait) });
  const show = () => {
    const value = view.model.get(trait);
    range.value = scale.position(value);
    range.setAttribute("aria-valuetext", `${format(value)}${unit && ` ${unit}`}`);
  };
  range.addEventListener("input", () => view.set(trait, scale.value(Number(range.value))));
  bindField(view, trait, field);
  view.on([trait], show);
  show();
  const title = element("label", { for: field.id }, `${label}${unit && ` (${unit})`}`);
  const pair = element("div", { class: "txw-pair" }, range, field);
  const control = element("div", { class: "txw-control txw-slider" }, title, pair);
  view.controls.append(control);
  return control;
}

/* A field for a typed number, where no order among the values would make a slider of use. */
export function numberField(view, trait, { label }) {
  const [low, high] = view.model.get("_limits")[trait];
  const field = element("input", { type: "number", title: `${low} to ${high}`, min: low, max: high, step: 1, id: uniqueId(trait) });
  bindField(view, trait, field);
  const control = element("div", { class: "txw-control" }, element("label", { for: field.id }, label), field);
  view.controls.append(control);
  return control;
}

/* The field shows the trait and sets it to what is typed, as far as that is a value it can have. */
function bindField(view, trait, field) {
  const show = () => {
    const value = view.model.get(trait);
    const typing = document.activeElement === field && field.value !== "";
    if (!typing || Number(field.value) !== value) field.value = value;
  };
  field.addEventListener("input", () => {
    const fits = field.value !== "" && field.checkValidity();
    if (fits && Number(field.value) !== view.model.get(trait)) view.set(trait, Number(field.value));
  });
  // What can't be a value gives way to the nearest one that can, and what is no number to the one in use.
  field.addEventListener("change", () => {
    const typed = Number(field.value);
    const [low, high, step] = view.model.get("_limits")[trait];
    const nearest = Math.min(high, Math.max(low, toStep(typed, low, step)));
    if (field.value !== "" && Number.isFinite(typed) && nearest !== view.model.get(trait)) view.set(trait, nearest);
    field.value = view.model.get(trait);
  });
  view.on([trait], show);
  show();
}

/* The nearest value that whole steps from `low` reach; with any other step every value is one. */
function toStep(value, low, step) {
  return Number.isInteger(step) ? low + step * Math.round((value - low) / step) : value;
}

function linearScale(low, high, step) {
  const positions = Math.round((high - low) / step);
  return {
    positions,
    position: (value) => Math.round((value - low) / step),
    value: (position) => Number((low + position * step).toPrecision(12)),
  };
}

/* 16 positions to an octave, or 50 to a decade; with a whole step the values in between are whole, and none is met
 * twice. */
function logarithmicScale(low, high, step, base) {
  const factor = base === 10 ? 10 ** (1 / 50) : 2 ** (1 / 16);
  const values = [];
  for (let position = 0; position <= Math.log(high / low) / Math.log(factor) + 1e-9; position += 1) {
    const exact = low * factor ** position;
    const value = Number.isInteger(step) ? toStep(exact, low, step) : Number(exact.toPrecision(3));
    if (value !== values.at(-1)) values.push(value);
  }
  if (values.at(-1) !== high) values.push(high);
  return {
    positions: values.length - 1,
    position: (value) => {
      const above = values.findIndex((candidate) => candidate >= value);
      return above > 0 && value - values[above - 1] < values[above] - value ? above - 1 : above;
    },
    value: (position) => values[position],
  };
}

/* One of a few values, side by side. `options` are [value, text]. */
export function choice(view, trait, { label, options }) {
  const name = uniqueId(trait);
  const inputs = options.map(([value]) =>
    element("input", { type: "radio", name, value, onchange: () => view.set(trait, value) }),
  );
  const labels = options.map(([, text], index) => element("label", {}, inputs[index], text));
  const show = () => inputs.forEach((input, index) => (input.checked = options[index][0] === view.model.get(trait)));
  view.on([trait], show);
  show();
  const group = element("div", { class: "txw-options" }, ...labels);
  const control = element("fieldset", { class: "txw-control" }, element("legend", {}, label), group);
  view.controls.append(control);
  return control;
}

/* One of many values, in a list that opens. `options` are [value, text]; values may be numbers. */
export function selection(view, trait, { label, options }) {
  const id = uniqueId(trait);
  const entries = options.map(([, text], index) => element("option", { value: index }, text));
  const list = element("select", { id, onchange: () => view.set(trait, options[list.selectedIndex][0]) }, ...entries);
  const show = () => (list.selectedIndex = options.findIndex(([value]) => value === view.model.get(trait)));
  view.on([trait], show);
  show();
  const control = element("div", { class: "txw-control" }, element("label", { for: id }, label), list);
  view.controls.append(control);
  return control;
}

/* On or off. */
export function toggle(view, trait, { label }) {
  const id = uniqueId(trait);
  const box = element("input", { type: "checkbox", id, onchange: () => view.set(trait, box.checked) });
  const show = () => (box.checked = view.model.get(trait));
  view.on([trait], show);
  show();
  const control = element("div", { class: "txw-control txw-toggle" }, box, element("label", { for: id }, label));
  view.controls.append(control);
  return control;
}

export function button(view, { label, pressed }) {
  const control = element("button", { type: "button", onclick: pressed }, label);
  view.controls.append(control);
  return control;
}
