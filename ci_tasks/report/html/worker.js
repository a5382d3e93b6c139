"use strict";
// Unpacks a log's blocks when they are needed, gives lines of them, and searches them one by one. It never sees the page,
// and the page never runs a search: whatever a regular expression costs, scrolling goes on.
const CACHED = 8; // blocks unpacked at once, some 256 KiB each
const SHOWN = 2000; // characters of a line that the list shows
const BEFORE = 200; // of them before the first hit, where that is further in
const MARKS = 200; // hits marked in one line

let blocks = [];
let cache = new Map();
let searching = 0;

function unpacked(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function textOf(at) {
  return new TextDecoder().decode(await unpacked(blocks[at].data));
}

// Lines of block `at`; the blocks looked at last stay unpacked.
async function linesOf(at) {
  const known = cache.get(at);
  if (known) {
    cache.delete(at);
    cache.set(at, known);
    return known;
  }
  const lines = (await textOf(at)).split("\n");
  cache.set(at, lines);
  if (cache.size > CACHED) cache.delete(cache.keys().next().value);
  return lines;
}

function pattern(query) {
  const source = query.regex ? query.text : query.text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  return new RegExp(source, query.exact ? "gm" : "gim");
}

function marks(text, expression) {
  const found = [];
  expression.lastIndex = 0;
  for (let hit; found.length < MARKS && (hit = expression.exec(text)); ) {
    if (hit[0].length) found.push([hit.index, hit.index + hit[0].length]);
    else expression.lastIndex++;
  }
  return found;
}

function excerpt(text, expression) {
  const every = expression && text.length <= 4_000_000 ? marks(text, expression) : [];
  const start = every.length && every[0][1] > SHOWN ? Math.max(0, every[0][0] - BEFORE) : 0;
  const shown = text.slice(start, start + SHOWN);
  const inside = every
    .map(([from, to]) => [from - start, Math.min(to - start, shown.length)])
    .filter(([from, to]) => from >= 0 && from < to);
  return { text: shown, start, length: text.length, marks: inside };
}

// `index` counts lines that are there: a gap is one.
async function rows({ index, count, query }) {
  const expression = query ? pattern(query) : null;
  const found = [];
  for (let at = blockAt(index); at < blocks.length && found.length < count; at++) {
    const lines = await linesOf(at);
    for (let line = Math.max(0, index - blocks[at].index); line < lines.length && found.length < count; line++)
      found.push({ number: blocks[at].first + line, ...excerpt(lines[line], expression) });
  }
  return found;
}

function blockAt(index) {
  let low = 0, high = blocks.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (blocks[middle].index <= index) low = middle;
    else high = middle - 1;
  }
  return low;
}

const breath = () => new Promise((resume) => setTimeout(resume));

async function search({ id, query }) {
  searching = id;
  let expression;
  try {
    expression = pattern(query);
  } catch (error) {
    postMessage({ kind: "hits", id, problem: String(error.message), hits: [], done: true, share: 1 });
    return;
  }
  let next = textOf(0);
  for (let at = 0; at < blocks.length; at++) {
    const text = await next;
    if (at + 1 < blocks.length) next = textOf(at + 1); // unpacked beside this one's search
    if (at % 4 === 3) await breath(); // what the page asks meanwhile comes first
    if (searching !== id) return;
    const [hits, done] = [hitsIn(text, expression, blocks[at].index), at + 1 === blocks.length];
    postMessage({ kind: "hits", id, hits, done, share: (at + 1) / blocks.length });
  }
}

function hitsIn(text, expression, index) {
  const found = [];
  expression.lastIndex = 0;
  let begin = 0;
  for (let hit; (hit = expression.exec(text)); ) {
    for (let end; (end = text.indexOf("\n", begin)) >= 0 && end < hit.index; begin = end + 1) index++;
    found.push(index);
    const end = text.indexOf("\n", Math.max(begin, hit.index)); // a line counts once
    if (end < 0) break;
    begin = end + 1;
    index++;
    expression.lastIndex = begin;
  }
  return new Uint32Array(found);
}

async function part({ index, from, count }) {
  const at = blockAt(index);
  const text = (await linesOf(at))[index - blocks[at].index] ?? "";
  const number = blocks[at].first + index - blocks[at].index;
  return { number, from, length: text.length, text: text.slice(from, from + count) };
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "open") {
      [blocks, cache, searching] = [data.blocks, new Map(), 0];
    } else if (data.kind === "search") {
      await search(data);
    } else if (data.kind === "stop") {
      searching = 0;
      postMessage({ kind: "stopped" });
    } else if (data.kind === "rows") {
      postMessage({ kind: "rows", id: data.id, index: data.index, rows: await rows(data) });
    } else if (data.kind === "part") {
      postMessage({ kind: "part", index: data.index, ...(await part(data)) });
    }
  } catch (error) {
    postMessage({ kind: "problem", text: String(error && error.message) });
  }
};
