/* A slider whose highest value depends on other traits. */
import { slider } from "./controls.js";
import { format } from "./elements.js";

/* It ends at highest(), which is asked again when one of `traits` changes, and shows no more than that; the trait keeps
 * its value, which comes back when there is room for it again. */
export function cappedSlider(view, trait, { label, traits, highest }) {
  const control = slider(view, trait, { label });
  const [range, field] = control.querySelectorAll("input");
  const [low] = view.model.get("_limits")[trait];
  const cap = () => {
    const high = highest();
    const value = Math.min(high, view.model.get(trait));
    range.max = high - low;
    range.value = value - low;
    range.setAttribute("aria-valuetext", format(value));
    field.max = high;
    if (document.activeElement !== field) field.value = value;
  };
  view.on([trait, ...traits], cap);
  cap();
  return control;
}
