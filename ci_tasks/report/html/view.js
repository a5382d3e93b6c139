"use strict";
// The lines of a log that are in sight: where they are, how they are drawn, and the worker that gives them. What a log says
// is only ever set as text.
const many = (number) => number.toLocaleString("en");

// Characters that would reorder, hide or break what stands beside them.
const safe = (text) => text.replace(
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");

class LogView {
  static TALLEST = 8e6; // pixels; a browser draws no element that is much taller, so a million lines share them
  static AROUND = 60; // lines asked for beyond those in sight
  static MOST = 500; // lines drawn at once, should the page have lost its style
  static PATIENCE = 4000; // ms for lines while a regular expression is marked in them: it may take for ever

  blocks = [];
  total = 0; // lines
  failing = null; // its number in the log; all else counts lines from 0, as they are in the page
  current = -1;
  top = 0;
  query = null; // what is marked
  answers = {}; // kind of message → what the search does with it

  #height = 18;
  #scrolled = 0;
  #cached = { index: 0, rows: [] };
  #asked = null;
  #serial = 0;
  #seen = -1;

  constructor(view, pane, space, say) {
    Object.assign(this, { view, pane, space, say });
    view.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    view.addEventListener("wheel", (event) => this.#onWheel(event), { passive: false });
    // In the next frame: a bar that appears changes the size once more, of which a browser complains.
    new ResizeObserver(() => requestAnimationFrame(() => this.total && this.#measure())).observe(view);
  }

  open(log, failing) {
    Object.assign(this, { blocks: [], total: 0, failing, current: -1, query: null });
    for (const one of document.querySelectorAll(`script[data-log="${log}"]`)) {
      const [first, lines] = [Number(one.dataset.first), Number(one.dataset.lines)];
      this.blocks.push({ first, lines, index: this.total, data: one.textContent });
      this.total += lines;
    }
    this.pane.replaceChildren();
    this.#forget();
    this.start();
    this.top = 0;
    this.#measure();
  }

  // -- the worker ----------------------------------------------------------------------------------------------------

  start() {
    this.worker?.terminate();
    const source = new Blob([document.getElementById("worker").textContent], { type: "text/javascript" });
    this.worker = new Worker(URL.createObjectURL(source));
    this.worker.onerror = () => this.say("The worker that unpacks the log could not run in this browser.");
    this.worker.onmessage = ({ data }) => {
      if (data.kind === "rows") this.#take(data);
      else if (data.kind === "problem") this.say(`The log could not be unpacked: ${data.text}`);
      else this.answers[data.kind](data);
    };
    this.worker.postMessage({ kind: "open", blocks: this.blocks });
    this.#forget();
  }

  mark(query) {
    this.query = query;
    this.#forget();
    this.draw();
  }

  #ask(first, count) {
    this.view.setAttribute("aria-busy", "true");
    if (this.#asked) return; // the answer looks again what is in sight by then
    const from = Math.max(0, first - LogView.AROUND);
    const alarm = this.query?.regex ? setTimeout(() => this.answers.late(), LogView.PATIENCE) : 0;
    this.#asked = { id: ++this.#serial, alarm };
    const wanted = { index: from, count: first + count + LogView.AROUND - from, query: this.query };
    this.worker.postMessage({ kind: "rows", id: this.#asked.id, ...wanted });
  }

  #take({ id, index, rows }) {
    if (id !== this.#asked?.id) return;
    this.#forget();
    this.#cached = { index, rows };
    this.draw();
  }

  #forget() {
    clearTimeout(this.#asked?.alarm);
    this.#asked = null;
    this.#cached = { index: 0, rows: [] };
  }

  // -- where we are --------------------------------------------------------------------------------------------------

  get inSight() {
    return this.view.clientHeight / this.#height;
  }

  get #furthest() {
    return Math.max(0, this.total - this.inSight);
  }

  get #squeezed() {
    return this.total * this.#height > LogView.TALLEST;
  }

  get #range() {
    return Math.max(1, Math.min(this.total * this.#height, LogView.TALLEST) - this.view.clientHeight);
  }

  #measure() {
    const probe = this.pane.appendChild(document.createElement("div"));
    probe.textContent = "0";
    this.#height = probe.getBoundingClientRect().height || 18;
    probe.remove();
    this.pane.style.height = `${this.view.clientHeight}px`;
    this.space.style.height = `${this.#range}px`;
    this.moveTo(this.top);
  }

  moveTo(line) {
    this.top = Math.min(Math.max(0, line), this.#furthest);
    this.view.scrollTop = this.#squeezed ? (this.top / this.#furthest) * this.#range : this.top * this.#height;
    this.#scrolled = this.view.scrollTop;
    this.draw();
  }

  #onScroll() {
    if (Math.abs(this.view.scrollTop - this.#scrolled) < 1) return;
    this.#scrolled = this.view.scrollTop;
    this.top = this.#squeezed ? (this.#scrolled / this.#range) * this.#furthest : this.#scrolled / this.#height;
    this.draw();
  }

  #onWheel(event) {
    if (!this.#squeezed || event.ctrlKey || event.shiftKey || !event.deltaY) return; // a pixel of its bar is many lines
    event.preventDefault();
    this.moveTo(this.top + (event.deltaMode === 1 ? event.deltaY : event.deltaY / this.#height));
  }

  // Make line `index` the current one, and see it.
  arrive(index) {
    this.current = index;
    this.#seen = -1;
    if (index < this.top || index > this.top + this.inSight - 2) this.moveTo(index - this.inSight / 3);
    else this.draw();
  }

  // The line that has a number in the log, or the gap that it is in.
  indexOf(number) {
    const block = this.blocks.findLast((one) => one.first <= number) ?? this.blocks[0];
    return block.index + Math.min(Math.max(0, number - block.first), block.lines - 1);
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  draw() {
    const first = Math.floor(this.top);
    const count = Math.min(Math.ceil(this.inSight) + 1, this.total - first, LogView.MOST);
    if (count < 1) return;
    const at = first - this.#cached.index;
    if (at < 0 || at + count > this.#cached.rows.length) {
      this.#ask(first, count);
      return;
    }
    const rows = this.#cached.rows.slice(at, at + count);
    this.pane.replaceChildren(...rows.map((row, offset) => this.#drawn(row, first + offset)));
    this.pane.firstChild.style.marginTop = this.#squeezed ? "0" : `${(first - this.top) * this.#height}px`;
    this.view.removeAttribute("aria-busy");
    this.#seeHit();
  }

  #drawn(row, index) {
    const line = document.createElement("div");
    const number = element("span", row.number, "no");
    number.dataset.index = index;
    line.append(number, row.start ? "… " : "");
    let at = 0;
    for (const [from, to] of row.marks) {
      line.append(safe(row.text.slice(at, from)), element("mark", safe(row.text.slice(from, to))));
      at = to;
    }
    line.append(safe(row.text.slice(at)));
    if (row.length > row.text.length) {
      const whole = element("button", `… all ${many(row.length)} characters`, "to-whole");
      whole.type = "button";
      whole.dataset.index = index;
      line.append(whole);
    }
    if (row.number === this.failing) line.classList.add("failing");
    if (index === this.current) {
      line.classList.add("current");
      line.setAttribute("aria-current", "true");
    }
    return line;
  }

  // A hit may be far to the right.
  #seeHit() {
    if (this.#seen === this.current) return;
    this.#seen = this.current;
    const left = this.pane.querySelector(".current mark")?.offsetLeft ?? 0;
    const { scrollLeft, clientWidth } = this.view;
    if (left < scrollLeft || left > scrollLeft + clientWidth - 100)
      this.view.scrollLeft = Math.max(0, left - clientWidth / 3);
  }
}

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind ?? "";
  return made;
}
