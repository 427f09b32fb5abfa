/* Mounts anywidget models from a page's saved widget state: no kernel, no server, nothing loaded from elsewhere.
 *
 * It implements what the anywidget front-end contract (AFM) promises a widget: get, set, on, off, save_changes, send,
 * and widget_manager.get_model for models that refer to others. jslink and jsdlink are honored. A widget that fails
 * keeps its picture and says why in one line; the others are mounted all the same. */
(() => {
  "use strict";
  const REFERENCE = "IPY_MODEL_";
  const SELECT = (kind) => `script[type="application/vnd.jupyter.widget-${kind}+json"]`;

  const decode = (base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return new DataView(bytes.buffer);
  };

  class Model {
    #state;
    #listeners = new Map();

    constructor(id, record, manager) {
      this.id = id;
      this.name = record.model_name;
      this.widget_manager = manager;
      this.#state = structuredClone(record.state);
      for (const { path, data } of record.buffers ?? []) {
        const last = path.length - 1;
        const holder = path.slice(0, last).reduce((value, key) => value[key], this.#state);
        holder[path[last]] = decode(data);
      }
    }

    get(key) {
      return this.#state[key];
    }

    set(key, value) {
      const changes = typeof key === "object" ? key : { [key]: value };
      const changed = Object.entries(changes).filter(([name, next]) => !Object.is(this.#state[name], next));
      for (const [name, next] of changed) this.#state[name] = next;
      for (const [name, next] of changed) this.#emit(`change:${name}`, this, next);
      if (changed.length) this.#emit("change", this);
    }

    on(events, listener) {
      for (const name of events.split(/\s+/)) {
        if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
        this.#listeners.get(name).add(listener);
      }
    }

    once(events, listener) {
      const wrapped = (...values) => {
        this.off(events, wrapped);
        listener(...values);
      };
      this.on(events, wrapped);
    }

    off(events, listener) {
      const names = events ? events.split(/\s+/) : [...this.#listeners.keys()];
      for (const name of names) {
        if (listener) this.#listeners.get(name)?.delete(listener);
        else this.#listeners.delete(name);
      }
    }

    save_changes() {} // There is no kernel to save to; the state on the page is all there is.
    send() {}

    #emit(name, ...values) {
      for (const listener of [...(this.#listeners.get(name) ?? [])]) {
        try {
          listener(...values);
        } catch (error) {
          reportError(error);
        }
      }
    }
  }

  const definitions = new Map(); // A module is loaded once, however many widgets use it.
  const define = (source) => {
    if (!definitions.has(source)) {
      const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const loading = import(address).then(async (loaded) => {
        const definition = loaded.default ?? loaded;
        return typeof definition === "function" ? definition() : definition;
      });
      definitions.set(source, loading);
    }
    return definitions.get(source);
  };

  const styled = new Set();
  const style = (css) => {
    if (!css || styled.has(css)) return;
    styled.add(css);
    document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
  };

  const link = (models, { source, target }, both) => {
    const [from, property] = [models.get(source[0].replace(REFERENCE, "")), source[1]];
    const [to, other] = [models.get(target[0].replace(REFERENCE, "")), target[1]];
    if (!from || !to) return;
    from.on(`change:${property}`, () => to.set(other, from.get(property)));
    if (both) to.on(`change:${other}`, () => from.set(property, to.get(other)));
    to.set(other, from.get(property));
  };

  const initialized = new Map(); // A model is initialized once, before its first view.
  const initialize = (definition, model) => {
    if (!initialized.has(model)) {
      initialized.set(model, Promise.resolve().then(() => definition.initialize?.({ model, signal, experimental })));
    }
    return initialized.get(model);
  };
  const signal = new AbortController().signal; // A page's widgets live as long as the page.
  const experimental = { invoke: () => Promise.reject(new Error("this page has no kernel to ask")) };

  const mount = async (models, view) => {
    const element = Object.assign(document.createElement("div"), { className: "tx-widget-live" });
    try {
      const model = models.get(JSON.parse(view.textContent).model_id);
      if (!model) throw new Error("its state is not stored on this page");
      const source = model.get("_esm");
      if (!source) throw new Error(`a ${model.name} needs a running kernel`);
      style(model.get("_css"));
      view.before(element);
      const definition = await define(source);
      await initialize(definition, model);
      await definition.render?.({ model, el: element, signal, experimental });
      view.parentElement.classList.add("tx-widget-mounted");
    } catch (error) {
      element.remove();
      const reason = document.createElement("p");
      reason.className = "tx-widget-failed";
      reason.textContent = `This widget could not start: ${error?.message ?? error}.`;
      view.before(reason);
      console.warn("widget", error);
    }
  };

  const start = async () => {
    const stored = document.querySelector(SELECT("state"));
    const views = [...document.querySelectorAll(SELECT("view"))];
    if (!stored || !views.length) return;
    const models = new Map();
    const manager = {
      get_model: async (id) => {
        const model = models.get(id.replace(REFERENCE, ""));
        if (!model) throw new Error(`no model ${id} on this page`);
        return model;
      },
    };
    const records = Object.entries(JSON.parse(stored.textContent).state);
    for (const [id, record] of records) models.set(id, new Model(id, record, manager));
    for (const [, { model_name: name, state }] of records) {
      if (name === "LinkModel" || name === "DirectionalLinkModel") link(models, state, name === "LinkModel");
    }
    await Promise.all(views.map((view) => mount(models, view)));
    document.documentElement.dataset.txWidgets = "ready";
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
