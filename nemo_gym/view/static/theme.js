/* Runs before the first paint: applies the reader's choice of light or dark, if there is one. */
(() => {
  try {
    const theme = localStorage.getItem("rollout-gym-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be off for pages opened from disk; the system's choice holds then.
  }
})();
