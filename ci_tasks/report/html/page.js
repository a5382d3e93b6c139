"use strict";
// The theme's switch, and tables in print.
(() => {
  const THEMES = ["automatic", "light", "dark"];
  const root = document.documentElement;
  const button = document.getElementById("theme");

  // A file has no storage in some browsers, and asking for it may throw.
  const kept = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("ci-tasks-theme", value);
      return localStorage.getItem("ci-tasks-theme");
    } catch {
      return value ?? null;
    }
  };

  const show = (theme) => {
    if (theme === "automatic") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };

  let theme = THEMES.includes(kept()) ? kept() : "automatic";
  show(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    kept(theme);
    show(theme);
  });

  const closed = [];
  addEventListener("beforeprint", () => {
    closed.push(...document.querySelectorAll(".chart details:not([open]), .timeline details:not([open])"));
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed.splice(0)) one.open = false;
  });
})();
