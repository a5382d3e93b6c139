"use strict";
// What a person does with the logs: choose one, search it, go from hit to hit, read a long line whole.
(() => {
  const byId = (id) => document.getElementById(id);
  if (!byId("view")) return;
  const [which, query, found, progress] = ["which", "query", "found", "progress"].map(byId);
  const MOST_HITS = 1e6;
  const PART = 100_000; // characters of a long line at once
  const DEAF = 500; // ms after which a worker that was told to stop is taken for busy with a regular expression

  const say = (text) => {
    found.textContent = safe(text);
  };
  const view = new LogView(byId("view"), byId("pane"), byId("space"), say);
  let opened = -1;
  let search = null; // { id, query, hits, count, share, began, took, from, arrived, done, stopped }
  let serial = 0, typing = 0, stopping = 0;

  // -- choosing --------------------------------------------------------------------------------------------------------

  const open = (log, number) => {
    if (log !== opened) {
      opened = log;
      which.value = String(log);
      const option = which.selectedOptions[0];
      search = null;
      progress.hidden = byId("stop").hidden = byId("whole").hidden = true;
      view.open(log, Number(option.dataset.failing) || null);
      byId("failing").disabled = !view.failing;
      view.view.setAttribute("aria-label", `${option.textContent}, ${many(view.total)} lines`);
      say(view.total ? `${many(view.total)} lines` : "The log is empty.");
    }
    goTo(number ?? view.failing);
  };

  const goTo = (number) => {
    if (!number || !view.total) return;
    view.arrive(view.indexOf(number));
    const why = number === view.failing ? " explains the failure" : "";
    say(`line ${many(number)}${why}; ${many(view.total)} lines`);
  };

  // -- searching -------------------------------------------------------------------------------------------------------

  const asTyped = () => ({ text: query.value, regex: byId("regex").checked, exact: byId("exact").checked });
  const same = (one, other) => one.text === other.text && one.regex === other.regex && one.exact === other.exact;

  const begin = () => {
    clearTimeout(typing);
    if (stopping || (search && !search.done && search.query.regex)) renew(); // it may be deaf
    const wanted = asTyped();
    search = null;
    if (wanted.text) {
      const from = view.current >= 0 ? view.current : Math.floor(view.top);
      search = { id: ++serial, query: wanted, hits: [], count: 0, share: 0, began: performance.now(), from };
      view.worker.postMessage({ kind: "search", id: search.id, query: wanted });
    } else {
      view.worker.postMessage({ kind: "stop" });
      view.mark(null);
    }
    showSearch();
  };

  view.answers.hits = ({ id, hits, share, done, problem }) => {
    if (id !== search?.id || search.done) return;
    if (problem) {
      search.done = true;
      view.mark(null);
      showSearch(`no regular expression: ${problem}`);
      return;
    }
    if (!view.query || !same(view.query, search.query)) view.mark(search.query);
    search.count += hits.length;
    for (const hit of hits) if (search.hits.length < MOST_HITS) search.hits.push(hit);
    Object.assign(search, { share, done, took: performance.now() - search.began });
    if (!search.arrived && search.hits.length && (done || search.hits.at(-1) >= search.from)) {
      search.arrived = true;
      view.arrive(search.hits[beyond(search.from - 1)] ?? search.hits[0]);
    }
    showSearch();
  };

  const stop = () => {
    if (!search || search.done) return;
    Object.assign(search, { done: true, stopped: true });
    stopping = setTimeout(view.answers.late, DEAF);
    view.worker.postMessage({ kind: "stop", id: search.id });
    showSearch();
  };
  view.answers.stopped = () => {
    clearTimeout(stopping);
    stopping = 0;
  };

  // A new worker for one that does not answer, without what holds it up.
  const renew = () => {
    view.answers.stopped();
    view.start();
    view.mark(null);
  };
  view.answers.late = () => {
    renew();
    if (search) Object.assign(search, { done: true, stopped: true });
    showSearch("stopped: it took too long");
  };

  // How many hits stand up to line `index`: the next one's place among them.
  const beyond = (index) => {
    let low = 0, high = search.hits.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (search.hits[middle] > index) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  const step = (by) => {
    if (!search || !same(search.query, asTyped())) {
      begin();
      return;
    }
    const { hits } = search;
    if (!hits.length) return;
    const next = beyond(view.current);
    const at = by > 0 ? next : next - (hits[next - 1] === view.current ? 2 : 1);
    view.arrive(hits[(at + hits.length) % hits.length]);
    showSearch();
  };

  const showSearch = (note) => {
    const going = search !== null && !search.done;
    byId("stop").hidden = progress.hidden = !going;
    if (!search) {
      say("");
      return;
    }
    progress.value = search.share;
    const at = search.hits.length ? beyond(view.current) : 0;
    const here = at && search.hits[at - 1] === view.current ? `hit ${many(at)} of ` : "";
    const lines = `${here}${many(search.count)} matching line${search.count === 1 ? "" : "s"}`;
    const share = `${Math.round(search.share * 100)} % searched`;
    const ended = search.stopped ? `stopped, ${share}` : `searched in ${((search.took ?? 0) / 1000).toFixed(1)} s`;
    say(`${lines}; ${note ?? (going ? share : ended)}`);
  };

  // -- a whole line ----------------------------------------------------------------------------------------------------

  let whole = { index: 0, from: 0 };
  const askPart = (index, from) => view.worker.postMessage({ kind: "part", index, from, count: PART });
  view.answers.part = ({ index, number, from, length, text }) => {
    whole = { index, from };
    const last = Math.min(from + PART, length);
    byId("whole").hidden = false;
    byId("whole-text").textContent = safe(text);
    byId("whole-says").textContent =
      `Line ${many(number)}, characters ${many(Math.min(from + 1, length))} to ${many(last)} of ${many(length)}`;
    byId("whole-back").disabled = from === 0;
    byId("whole-on").disabled = last === length;
    byId("whole-text").focus();
  };

  // -- keys and buttons ------------------------------------------------------------------------------------------------

  const page = () => Math.max(1, Math.floor(view.inSight) - 1);
  const KEYS = {
    ArrowDown: () => view.moveTo(view.top + 1),
    ArrowUp: () => view.moveTo(view.top - 1),
    PageDown: () => view.moveTo(view.top + page()),
    PageUp: () => view.moveTo(view.top - page()),
    " ": () => view.moveTo(view.top + page()),
    Home: () => view.moveTo(0),
    End: () => view.moveTo(view.total),
    n: () => step(1),
    p: () => step(-1),
    N: () => step(-1),
    b: () => goTo(view.failing),
    Enter: () => view.current >= 0 && askPart(view.current, 0),
  };
  const plain = (event) => !event.ctrlKey && !event.altKey && !event.metaKey;
  const on = (id, event, act) => byId(id).addEventListener(event, act);

  on("view", "keydown", (event) => {
    if (!plain(event) || event.target !== view.view || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  on("pane", "click", ({ target }) => {
    if (target.classList.contains("to-whole")) askPart(Number(target.dataset.index), 0);
    if (!target.classList.contains("no")) return;
    history.replaceState(null, "", `#log-${opened}:${target.textContent}`);
    view.arrive(Number(target.dataset.index));
  });
  on("search", "submit", (event) => {
    event.preventDefault();
    step(1);
  });
  on("previous", "click", () => step(-1));
  on("stop", "click", stop);
  on("failing", "click", () => goTo(view.failing));
  on("line", "keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    goTo(Number(event.target.value.replace(/\D/g, "")) || 1);
  });
  on("query", "keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) step(-1);
    else if (event.key === "Escape" && search && !search.done) stop();
    else if (event.key === "Escape") view.view.focus();
    else return;
    event.preventDefault();
  });
  on("query", "input", () => {
    clearTimeout(typing);
    typing = setTimeout(begin, 400);
  });
  for (const box of ["regex", "exact"]) on(box, "change", begin);
  on("which", "change", () => open(Number(which.value)));
  on("whole-close", "click", () => {
    byId("whole").hidden = true;
    view.view.focus();
  });
  on("whole-back", "click", () => askPart(whole.index, Math.max(0, whole.from - PART)));
  on("whole-on", "click", () => askPart(whole.index, whole.from + PART));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || !plain(event) || event.target.matches("input, select")) return;
    event.preventDefault();
    query.focus();
    query.select();
  });

  // -- links: #log-0:63 ------------------------------------------------------------------------------------------------

  const follow = () => {
    const wanted = /^#log-(\d+)(?::(\d+))?$/.exec(location.hash);
    if (!wanted || Number(wanted[1]) >= which.options.length) return false;
    open(Number(wanted[1]), wanted[2] ? Number(wanted[2]) : undefined);
    byId("logs").scrollIntoView();
    view.view.focus({ preventScroll: true });
    return true;
  };
  addEventListener("popstate", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.to-log");
    if (!link || !plain(event) || event.shiftKey) return;
    event.preventDefault(); // a second click on one link changes no address, and has to work
    if (location.hash !== link.hash) history.pushState(null, "", link.hash);
    follow();
  });

  byId("viewer").hidden = false;
  if (typeof DecompressionStream === "undefined" || typeof Worker === "undefined") {
    say("This browser cannot unpack the log: it needs Chrome 80, Firefox 113, Safari 16.4, or one that is newer.");
  } else if (!follow()) {
    open(Math.max(0, [...which.options].findIndex((one) => one.dataset.failing)));
  }
})();
