'use strict';
// Tables, and the start of everything.
function row(cells, tag = 'td') {
  return add(make('tr'), ...cells.map(cell => {
    const node = make(tag);
    add(node, cell instanceof Node ? cell : document.createTextNode(cell));
    return node;
  }));
}

function last(values) {
  const known = (values || []).filter(value => value !== null);
  return known.length ? known[known.length - 1] : null;
}

function best(values) {
  return (values || []).reduce((a, b) => b !== null && (a === null || b > a) ? b : a, null);
}

function duration(seconds) {
  if (seconds === null) return '–';
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, '0')} min` :
    `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, '0')} h`;
}

function runTable() {
  const table = get('run-table');
  add(table, row(['run', 'updates', 'environment steps', 'time', 'reward, last', 'evaluation, best', 'evaluation, last', 'findings'], 'th'));
  RUNS.forEach((run, i) => {
    const name = make('span'), dot = make('span', null, 'dot');
    dot.style.background = colour(i);
    const returns = run.evaluations.eval_episode_return;
    add(table, row([
      add(name, dot, run.name), short(run.updates), short(last(run.metrics.envstep)), duration(last(run.metrics.seconds)),
      short(last(run.metrics.reward_mean)), short(best(returns)), short(last(returns)),
      run.findings === null ? 'not looked for' : String(run.findings.length),
    ]));
  });
}

function findings() {
  const parent = get('finding-list'), looked = RUNS.filter(run => run.findings !== null);
  if (!looked.length) {
    get('findings').hidden = true;
    document.querySelector('nav a[href="#findings"]').hidden = true;
  }
  looked.forEach(run => {
    if (RUNS.length > 1) add(parent, make('h3', run.name));
    if (!run.findings.length) add(parent, make('p', 'None of the known causes was seen.', 'note'));
    run.findings.forEach(found => add(parent, add(make('div', null, 'finding'), make('div', found.message),
      make('small', `update ${found.update}, ${found.cause}`))));
  });
}

function times() {
  const parent = get('time-parts');
  RUNS.forEach(run => {
    const total = Object.values(run.seconds).reduce((a, b) => a + b, 0);
    if (RUNS.length > 1) add(parent, make('h3', run.name));
    if (!total) {
      add(parent, make('p', 'No times are recorded.', 'note'));
      return;
    }
    const bar = make('div', null, 'bar'), key = make('div', null, 'key');
    Object.entries(run.seconds).forEach(([part, seconds], i) => {
      const piece = make('span'), dot = make('span', null, 'dot');
      piece.style.cssText = `width:${100 * seconds / total}%;background:${part === 'other' ? '#aab2bd' : COLOURS[i]}`;
      dot.style.background = part === 'other' ? '#aab2bd' : COLOURS[i];
      add(bar, piece);
      const name = part === 'other' ? 'other (evaluation, saving)' : part;
      add(key, add(make('span'), dot, `${name} ${duration(seconds)} (${(100 * seconds / total).toFixed(0)} %)`));
    });
    const table = make('table');
    add(table, row(['part', 'time', 'share', 'memory, largest', 'memory, last update'], 'th'));
    Object.entries(run.seconds).forEach(([part, seconds]) => {
      const mib = value => value === undefined || value === null ? '–' : `${value.toFixed(0)} MiB`;
      add(table, row([part, duration(seconds), `${(100 * seconds / total).toFixed(0)} %`, mib(run.memory[part]),
        mib(last(run.metrics[`memory_mib_${part}`]))]));
    });
    add(parent, bar, key, add(make('div', null, 'scroll'), table));
  });
}

function settings() {
  const known = RUNS.filter(run => run.settings !== null), all = get('s-all').checked;
  const byKey = new Map();
  known.forEach((run, i) => run.settings.forEach(([key, value, normal, differs]) => {
    if (!byKey.has(key)) byKey.set(key, {normal, values: Array(known.length).fill('–'), differs: false});
    byKey.get(key).values[i] = value;
    byKey.get(key).differs ||= differs;
  }));
  const head = row(['key', ...(known.length > 1 ? known.map(run => run.name) : ['value']), 'default'], 'th');
  const rows = [...byKey].filter(([, entry]) => all || entry.differs).map(([key, entry]) => {
    const found = row([key, ...entry.values, entry.normal === null ? '' : entry.normal]);
    found.lastChild.className = 'default';
    if (entry.differs) found.classList.add('changed');
    if (new Set(entry.values).size > 1) found.classList.add('unlike');
    return found;
  });
  get('setting-table').replaceChildren(head, ...rows);
  if (!known.length) get('config').hidden = true;
}

const names = RUNS.map(run => run.name).join(', ');
document.title = `${names} – report`;
get('title').textContent = names;
get('title').title = `written ${DATA.written}`;
runTable();
findings();
rewardCharts();
completions();
metricCharts();
times();
settings();
get('s-all').addEventListener('change', settings);
document.documentElement.dataset.ready = 'yes';
