/* The frame of a widget: its controls, panels and read-out, its theme, and when it is drawn. */
import { element } from "./elements.js";
import { isDark, watchTheme } from "./theme.js";

const ANNOUNCE_AFTER = 600; // ms without a change; a screen reader should not read every step of a drag

/* Puts an empty frame into `el`. `label` names the widget for screen readers. */
export function frame({ model, el, label }) {
  const controls = element("div", { class: "txw-controls" });
  const panels = element("div", { class: "txw-panels" });
  const readout = element("p", { class: "txw-readout" });
  const announcement = element("p", { class: "txw-hidden", role: "status" });
  // JupyterLab would take the arrow keys for its own commands.
  const root = element(
    "div",
    { class: "txw", role: "group", "aria-label": label, "data-lm-suppress-shortcuts": "true" },
    ...[controls, panels, readout, announcement],
  );
  el.replaceChildren(root);

  const endings = [];
  const view = {
    ...{ model, root, controls, panels, readout },
    dark: false,
    width: 0, // of the panels together; 0 while JupyterLab has not yet attached `el`
    colors: {},
    /* Says what is shown: `parts` are texts and elements; the same text is read out once the reader pauses. */
    say(...parts) {
      readout.replaceChildren(...parts);
      clearTimeout(view.pending);
      view.pending = setTimeout(() => (announcement.textContent = readout.textContent), ANNOUNCE_AFTER);
    },
    /* Calls changed() when one of these traits has a new value, from whatever side. */
    on(traits, changed) {
      for (const trait of traits) model.on(`change:${trait}`, changed);
      endings.push(() => traits.forEach((trait) => model.off(`change:${trait}`, changed)));
    },
    /* Draws now, and again whenever a trait, the theme or the width changes. */
    draws(traits, draw) {
      const adopt = () => {
        view.dark = isDark();
        root.toggleAttribute("data-dark", view.dark);
        const style = getComputedStyle(root);
        const names = ["ground", "raised", "ink", "quiet", "line", "grid", "accent", "alarm"];
        const series = [1, 2, 3, 4].map((number) => `series-${number}`);
        for (const name of [...names, ...series]) view.colors[name] = style.getPropertyValue(`--txw-${name}`).trim();
      };
      const themeChanged = () => {
        if (isDark() === view.dark) return;
        adopt();
        if (view.width) draw();
      };
      adopt();
      view.width = panels.clientWidth;
      if (view.width) draw();
      view.on(traits, () => view.width && draw());
      endings.push(watchTheme(themeChanged));
      const observer = new ResizeObserver(() => {
        if (panels.clientWidth === view.width || !panels.clientWidth) return;
        if (!view.width) adopt();
        view.width = panels.clientWidth;
        draw();
      });
      observer.observe(panels);
      endings.push(() => observer.disconnect());
    },
    /* A panel with a title, for a figure and its caption. */
    panel(title) {
      const heading = element("p", { class: "txw-panel-title" }, title);
      const panel = element("div", { class: "txw-panel" }, heading);
      panels.append(panel);
      return panel;
    },
    /* Sets a trait from a control, and tells Python, if there is one. */
    set(trait, value) {
      model.set(trait, value);
      model.save_changes();
    },
    end() {
      clearTimeout(view.pending);
      for (const end of endings) end();
    },
  };
  return view;
}
