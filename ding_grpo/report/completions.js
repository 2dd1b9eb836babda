'use strict';
// Completions of one record, some groups at a time, with coloured tokens.
const GROUPS = 4, ROWS = 8, TOKENS = 1500; // shown at once
const SOURCES = {
  tokens: 'all rows of an update, by token', training: 'best and worst row of each group', evaluation: 'evaluation',
};
// Value of token t of a row, and whether zero is the neutral colour.
const COLOUR_BY = {
  advantage: ['advantage', (row, t) => Array.isArray(row.advantage) ? row.advantage[t] : row.advantage, true],
  change: ['change in the update', (row, t) => row.logp_new[t] - row.logp[t], true],
  logp: ['log-probability', (row, t) => row.logp[t], false],
  ratio: ['log of the ratio, update to sampler', (row, t) => row.logp_new[t] - row.logp_old[t], true],
  entropy: ['entropy', (row, t) => row.entropy[t], false],
  none: ['no colour', () => null, false],
};
const UP = '0, 114, 178', DOWN = '213, 94, 0', PLAIN = '126, 87, 194';
const state = {page: 0, asked: 0};

function sourceNow() {
  const run = RUNS[get('c-run').value];
  return run && run.sources.find(source => source.name === get('c-source').value);
}

function chooseRun() {
  options(get('c-source'), RUNS[get('c-run').value].sources.map(source => [source.name, SOURCES[source.name]]));
  chooseSource();
}

function chooseSource() {
  const source = sourceNow(), range = get('c-update');
  range.max = source.updates.length - 1;
  range.value = range.max;
  const names = source.name === 'tokens' ? Object.keys(COLOUR_BY) : source.name === 'training' ? ['advantage', 'none'] : ['none'];
  options(get('c-colour'), names.map(name => [name, COLOUR_BY[name][0]]));
  chooseUpdate();
}

function chooseUpdate() {
  state.page = 0;
  showGroups();
}

function sorted(places) {
  const key = {spread: p => -p[3], high: p => -p[2], low: p => p[2], number: () => 0}[get('c-sort').value];
  const unscored = place => place[2] === null;
  return [...places].sort((a, b) => unscored(a) - unscored(b) || key(a) - key(b));
}

async function showGroups() {
  const asked = ++state.asked, source = sourceNow(), at = Number(get('c-update').value), run = Number(get('c-run').value);
  const [update, places] = source.updates[at];
  const order = sorted(places), pages = Math.max(1, Math.ceil(order.length / GROUPS));
  get('c-number').textContent = `${update} (record ${at + 1} of ${source.updates.length})`;
  get('c-before').disabled = at === 0;
  get('c-after').disabled = at === source.updates.length - 1;
  get('c-page').textContent = `page ${state.page + 1} of ${pages}, ${order.length} groups`;
  get('c-back').disabled = state.page === 0;
  get('c-next').disabled = state.page === pages - 1;
  const groups = [];
  for (const [number, index] of order.slice(state.page * GROUPS, (state.page + 1) * GROUPS)) {
    groups.push((await chunk(run, source.name, number))[index]);
  }
  if (asked !== state.asked) return; // something else was chosen meanwhile
  const paint = painter(groups);
  get('c-groups').replaceChildren(...groups.map(group => groupBox(group, paint)));
  get('c-groups').dataset.update = update;
}

function tokensOf(row) { // pieces of text; a row without tokens is one piece
  return Array.isArray(row.text) ? row.text : [row.completion];
}

function painter(groups) {
  const name = get('c-colour').value, [title, value, centred] = COLOUR_BY[name];
  const values = groups.flatMap(group => group.rows.flatMap(row => tokensOf(row).map((_, t) => learned(row, t) ? value(row, t) : null)))
    .filter(x => typeof x === 'number' && Number.isFinite(x));
  legend(name, title, centred, values);
  if (!values.length) return () => '';
  const sizes = values.map(Math.abs).sort((a, b) => a - b), most = sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
  return (rows, from, to) => { // the colour of the mean over what is learned
    const found = rows.flatMap(row => range(from, to).filter(t => learned(row, t)).map(t => value(row, t)));
    const x = mean(found.filter(y => typeof y === 'number' && Number.isFinite(y)));
    if (x === null) return '';
    const share = Math.min(1, Math.abs(x) / most);
    return `rgba(${centred ? (x > 0 ? UP : DOWN) : PLAIN}, ${(0.75 * share).toFixed(3)})`;
  };
}

function range(from, to) {
  return Array.from({length: to - from}, (_, i) => from + i);
}

function learned(row, t) {
  return !row.own || row.own[t];
}

function legend(name, title, centred, values) {
  const box = get('c-legend');
  box.replaceChildren();
  if (!values.length) return;
  const sizes = values.map(Math.abs).sort((a, b) => a - b), most = sizes[Math.floor(0.98 * (sizes.length - 1))];
  const ramp = make('span', null, 'ramp');
  ramp.style.background = centred ? `linear-gradient(90deg, rgba(${DOWN}, .75), #fff, rgba(${UP}, .75))` :
    `linear-gradient(90deg, #fff, rgba(${PLAIN}, .75))`;
  const sign = name === 'logp' ? -1 : 1;
  add(box, make('span', title), make('span', centred ? signed(-most) : '0'), ramp, make('span', centred ? signed(most) : short(sign * most)));
}

function groupBox(group, paint) {
  const box = make('div', null, 'group'), head = make('header');
  const rewards = group.rows.filter(row => !row.failed && row.reward !== null).map(row => row.reward);
  if (group.group !== null) add(head, add(make('span', 'group '), make('b', group.group)));
  if (group.index !== undefined && group.index !== null) add(head, add(make('span', 'problem '), make('b', group.index)));
  if (group.kind) add(head, add(make('span', 'kind '), make('b', group.kind)));
  if (rewards.length > 1) {
    add(head, add(make('span', 'rewards '), make('b', `${short(Math.min(...rewards))} to ${short(Math.max(...rewards))}`)));
    const equal = Math.min(...rewards) === Math.max(...rewards);
    add(head, make('span', equal ? 'equal: nothing is learned from it' : `${rewards.length} rows`));
  }
  add(box, head);
  if (group.prompt !== null) add(box, make('div', group.prompt, 'text prompt'));
  if (isTree(group)) add(box, treeBox(group, paint));
  const rows = [...group.rows].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  const place = make('div');
  add(box, place);
  const show = most => {
    place.replaceChildren(...rows.slice(0, most).map(row => rowBox(row, paint)));
    if (most < rows.length) add(place, moreButton(`Show all ${rows.length} rows`, () => show(rows.length)));
  };
  show(ROWS);
  return box;
}

function moreButton(text, action) {
  const button = make('button', text, 'more');
  button.type = 'button';
  button.addEventListener('click', action);
  return button;
}

function rowBox(row, paint) {
  const facts = make('div', null, 'facts'), text = make('div', null, 'text');
  const first = add(make('div'), 'reward ', make('b', short(row.reward)));
  const advantage = Array.isArray(row.advantage) ? mean(row.advantage.filter((_, t) => learned(row, t))) : row.advantage;
  if (typeof advantage === 'number') add(first, `, advantage ${signed(advantage)}`);
  if (row.truncated) add(first, ', ', make('span', 'cut', 'cut'));
  add(facts, first);
  const parts = Object.entries(row.reward_parts || {});
  if (parts.length > 1) add(facts, make('div', parts
    .map(([name, x]) => `${name}\u00a0${short(x)}`).join(', ')));
  if (row.failed) add(facts, make('div', `not scored${typeof row.failed === 'string' ? `: ${row.failed}` : ''}`, 'failed'));
  const pieces = tokensOf(row);
  const show = most => {
    text.replaceChildren(...pieces.slice(0, most).map((piece, t) => tokenSpan(row, piece, t, paint)));
    if (most < pieces.length) add(text, moreButton(`Show all ${pieces.length} tokens`, () => show(pieces.length)));
  };
  show(TOKENS);
  return add(make('div', null, 'row'), facts, text);
}

function tokenSpan(row, piece, t, paint) {
  const span = make('span', piece === '' ? '·' : piece, learned(row, t) ? '' : 'reply');
  const background = paint([row], t, t + 1);
  if (background) span.style.background = background;
  if (Array.isArray(row.text)) {
    span.dataset.t = t;
    span.facts = row;
  }
  return span;
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function tip(event) {
  const box = get('tip'), span = event.target.closest ? event.target.closest('span[data-t]') : null;
  if (!span) {
    box.hidden = true;
    return;
  }
  const row = span.facts, t = Number(span.dataset.t);
  const lines = [`token ${t}: ${JSON.stringify(row.text[t])}`];
  if (!learned(row, t)) {
    lines.push('from the environment, not learned');
  } else {
    lines.push(`advantage ${signed(row.advantage[t])}`,
      `probability ${short(Math.exp(row.logp[t]))} → ${short(Math.exp(row.logp_new[t]))}`,
      `log-probability ${short(row.logp[t])}, change ${signed(row.logp_new[t] - row.logp[t])}`,
      `ratio to the sampler ${short(Math.exp(row.logp_new[t] - row.logp_old[t]))}`, `entropy ${short(row.entropy[t])}`);
  }
  box.textContent = lines.join('\n');
  box.hidden = false;
  const place = span.getBoundingClientRect(), x = Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8);
  const below = Math.max(place.bottom, event.clientY) + 10;
  box.style.left = `${Math.max(4, x)}px`;
  box.style.top = `${below + box.offsetHeight > innerHeight ? Math.max(4, place.top - box.offsetHeight - 6) : below}px`;
}

function completions() {
  const having = RUNS.map((run, i) => [i, run]).filter(([, run]) => run.sources.length);
  if (!having.length) {
    get('completions').replaceChildren(make('h2', 'Completions'), make('p', 'No completions are recorded. For the tokens of any ' +
      'policy, set policy.learn.tokens_freq.', 'note'));
    return;
  }
  options(get('c-run'), having.map(([i, run]) => [i, run.name]));
  get('c-note').textContent = having.every(([, run]) => run.sources.some(source => source.name === 'tokens')) ? '' :
    'Only whole completions are recorded. For log-probabilities, entropies and changes of single tokens, set ' +
    'policy.learn.tokens_freq.';
  get('c-run').addEventListener('change', chooseRun);
  get('c-source').addEventListener('change', chooseSource);
  get('c-update').addEventListener('input', chooseUpdate);
  get('c-sort').addEventListener('change', chooseUpdate);
  get('c-colour').addEventListener('change', showGroups);
  const move = (id, change) => get(id).addEventListener('click', change);
  move('c-before', () => { get('c-update').stepDown(); chooseUpdate(); });
  move('c-after', () => { get('c-update').stepUp(); chooseUpdate(); });
  move('c-back', () => { state.page--; showGroups(); });
  move('c-next', () => { state.page++; showGroups(); });
  for (const kind of ['mousemove', 'click']) get('c-groups').addEventListener(kind, tip);
  get('c-groups').addEventListener('mouseleave', () => { get('tip').hidden = true; });
  chooseRun();
}
