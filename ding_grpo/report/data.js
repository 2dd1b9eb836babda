'use strict';
// What the page contains, and small helpers. Every text is inserted as text, never as HTML.
const DATA = JSON.parse(document.getElementById('data').textContent);
const RUNS = DATA.runs;
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000'];
const DASHES = ['solid', 'dash', 'dot', 'dashdot'];

function get(id) {
  return document.getElementById(id);
}

function make(tag, text, classes) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (classes) node.className = classes;
  return node;
}

function add(parent, ...children) {
  parent.append(...children);
  return parent;
}

function options(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => {
    const option = make('option', text);
    option.value = value;
    return option;
  }));
}

function colour(run) {
  return COLOURS[run % COLOURS.length];
}

function line(run) {
  return {color: colour(run), dash: DASHES[Math.floor(run / COLOURS.length) % DASHES.length], width: 1.6};
}

function short(x, digits = 3) {
  if (x === null || x === undefined) return '–';
  if (Number.isInteger(x)) return x.toLocaleString('en');
  const size = Math.abs(x);
  return size >= 1e5 || (size < 1e-3 && size > 0) ? x.toExponential(2) : String(Number(x.toPrecision(digits + 1)));
}

function signed(x, digits = 3) {
  return x > 0 ? `+${short(x, digits)}` : short(x, digits);
}

// The last two chunks that were decoded: a page shows groups of few chunks, and a chunk may be large.
const decoded = new Map();

async function chunk(run, source, number) {
  const id = `${run}-${source}-${number}`;
  if (!decoded.has(id)) {
    const bytes = Uint8Array.from(atob(get(id).textContent), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
    decoded.set(id, JSON.parse(await new Response(stream).text()));
    while (decoded.size > 12) decoded.delete(decoded.keys().next().value);
  }
  return decoded.get(id);
}
