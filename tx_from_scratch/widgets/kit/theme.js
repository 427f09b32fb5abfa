/* Light or dark: what the page around the widget says, and a call when that changes. */

/* The book says it on <html>, JupyterLab on <body>; elsewhere the system decides. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  if (theme === "light" || theme === "dark") return theme === "dark";
  const { jpThemeLight } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/* Calls changed() whenever isDark() may have changed; returns a function that ends this. */
export function watchTheme(changed) {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  observer.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    system.removeEventListener("change", changed);
  };
}
