"use strict";
(() => {
  // -- the filter ------------------------------------------------------------------------------------------------------

  const filter = document.getElementById("filter");
  if (!filter) return;
  const tests = [...document.querySelectorAll("tr.test")];
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const test of tests) test.hidden = !words.every((word) => test.textContent.toLowerCase().includes(word));
    for (const label of document.querySelectorAll("div.label"))
      label.hidden = words.length > 0 && !label.querySelector("tr.test:not([hidden])");
  });

  // -- arrow keys in the matrix: to the next link in that direction ----------------------------------------------------

  const matrix = document.querySelector(".matrix");
  const rows = [...matrix.rows].map((row) => [...row.cells].map((cell) => cell.querySelector("a")));
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  matrix.addEventListener("keydown", (event) => {
    const [down, right] = STEPS[event.key] ?? [0, 0];
    if (!(down || right) || event.ctrlKey || event.altKey || event.metaKey) return;
    let y = rows.findIndex((row) => row.includes(event.target));
    let x = rows[y]?.indexOf(event.target);
    do [y, x] = [y + down, x + right]; while (rows[y] && x >= 0 && x < rows[0].length && !rows[y][x]);
    if (!rows[y]?.[x]) return;
    event.preventDefault();
    rows[y][x].focus();
  });
})();
