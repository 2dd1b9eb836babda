'use strict';
// Curves: each metric in a chart of its own, with all runs. A chart is drawn when it comes into view.
const AXES = {train_iter: 'update', envstep: 'environment steps', seconds: 'seconds'};
const SECTIONS = [
  ['Evaluation', name => name.startsWith('eval:')],
  ['Reward', name => /^reward|^equal_groups|^failed/.test(name)],
  ['Completions and episodes', name => /length|truncated|repetition|turn/.test(name)],
  ['Time and memory', name => /second|memory/.test(name)],
  ['Loss and policy', () => true],
];
const charts = new Map(); // by element: function that draws
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    charts.get(entry.target)();
  }
}, {rootMargin: '300px'});

function chart(parent, title, traces, axis, range) {
  const box = add(make('div', null, 'chart'), make('b', title)), plot = make('div', null, 'plot');
  add(parent, add(box, plot));
  charts.set(plot, () => {
    const found = traces().map(t => ({...t, name: t.name === undefined ? t.name : escaped(t.name)}));
    const layout = {
      margin: {l: 48, r: 8, t: 6, b: 34}, font: {size: 11, family: 'inherit', color: '#5b6675'}, hovermode: 'x unified',
      xaxis: {title: {text: axis(), standoff: 4}, gridcolor: '#eef0f3', zeroline: false},
      yaxis: {gridcolor: '#eef0f3', zeroline: false, range, exponentformat: 'e', automargin: true},
      showlegend: found.filter(t => t.showlegend !== false).length > 1 && found.some(t => t.showlegend),
      legend: {orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0, font: {size: 10}}, paper_bgcolor: '#fff', plot_bgcolor: '#fff',
    };
    Plotly.react(plot, found, layout, {displayModeBar: false, responsive: true});
    plot.dataset.drawn = found.length;
  });
  seen.observe(plot);
  return plot;
}

// A name as text: plotly makes links and styles of tags in it.
function escaped(name) {
  return name.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

function redraw(selector) {
  for (const plot of document.querySelectorAll(selector)) seen.observe(plot);
}

function trace(curves, name, axis, style) {
  const x = [], y = [];
  (curves[name] || []).forEach((value, i) => {
    if (value === null || !curves[axis]) return;
    x.push(curves[axis][i]);
    y.push(value);
  });
  return {x, y, mode: x.length > 1 && x.length < 200 ? 'lines+markers' : x.length > 1 ? 'lines' : 'markers',
          marker: {size: 4}, hovertemplate: '%{y:.5~g}', ...style};
}

function smoothed(y, share) { // exponential mean, corrected for its start
  let sum = 0, weight = 0;
  return y.map(value => {
    sum = share * sum + (1 - share) * value;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
}

function rewardCharts() {
  const parent = get('reward-charts'), choice = get('r-axis'), axis = () => AXES[choice.value];
  // Other policies count mini-batches, and do not record rewards. Their updates are not those of grpo.
  choice.value = RUNS.every(run => run.metrics.reward_mean) ? 'train_iter' : 'envstep';
  const ofRuns = (title, curves, name) => {
    if (!RUNS.some(run => run[curves][name])) return;
    chart(parent, title, () => RUNS.map((run, i) => trace(run[curves], name, choice.value,
      {name: run.name, line: line(i), showlegend: false})), axis);
  };
  const ofNames = (title, curves, names, label) => {
    if (!names.length) return;
    chart(parent, title, () => names.map((name, i) => trace(curves, name, choice.value,
      {name: label(name), line: line(i), showlegend: true})), axis);
  };
  ofRuns('mean reward', 'metrics', 'reward_mean');
  ofRuns('return of evaluations', 'evaluations', 'eval_episode_return');
  RUNS.forEach(run => {
    const of = RUNS.length > 1 ? ` – ${run.name}` : '';
    const parts = Object.keys(run.metrics).filter(name => /^reward_.+_mean$/.test(name));
    const kinds = Object.keys(run.evaluations).filter(name => name.startsWith('kind/'));
    ofNames(`reward by part${of}`, run.metrics, parts, name => name.slice('reward_'.length, -'_mean'.length));
    ofNames(`return by kind${of}`, run.evaluations, kinds, name => name.slice('kind/'.length));
  });
  choice.addEventListener('change', () => redraw('#reward-charts .plot'));
}

function metricCharts() {
  const shown = new Set(RUNS.keys());
  const names = new Set();
  RUNS.forEach(run => {
    Object.keys(run.evaluations).forEach(name => name in AXES || names.add(`eval:${name}`));
    Object.keys(run.metrics).forEach(name => name in AXES || names.add(name));
  });
  const curvesOf = (run, name) => name.startsWith('eval:') ? [run.evaluations, name.slice(5)] : [run.metrics, name];
  const constant = name => {
    const values = new Set(RUNS.flatMap(run => {
      const [curves, key] = curvesOf(run, name);
      return (curves[key] || []).filter(value => value !== null);
    }));
    return values.size < 2 ? values : null;
  };
  const still = [], parent = get('m-sections'), places = new Map();
  for (const [title] of SECTIONS) {
    const box = make('div'), grid = make('div', null, 'charts');
    add(parent, add(box, make('h3', title), grid));
    places.set(title, grid);
  }
  for (const name of names) {
    const values = constant(name);
    if (values) {
      still.push([name, [...values][0]]);
      continue;
    }
    const [title] = SECTIONS.find(([, test]) => test(name));
    const plot = chart(places.get(title), name.replace(/^eval:/, ''), () => [...shown].sort((a, b) => a - b).map(i => {
      const [curves, key] = curvesOf(RUNS[i], name), share = Number(get('m-smooth').value);
      const found = trace(curves, key, get('m-axis').value, {name: RUNS[i].name, line: line(i), showlegend: false});
      return share > 0 ? {...found, y: smoothed(found.y, share)} : found;
    }), () => AXES[get('m-axis').value]);
    plot.parentNode.dataset.name = name;
  }
  for (const grid of places.values()) grid.parentNode.hidden = !grid.children.length;
  if (still.length) {
    add(parent, make('h3', 'Constant'), make('p', still.map(([name, x]) => `${name.replace('eval:', 'evaluation: ')} ${short(x)}`)
      .join(', '), 'note'));
  }
  RUNS.forEach((run, i) => {
    const box = make('input');
    box.type = 'checkbox';
    box.checked = true;
    box.addEventListener('change', () => {
      shown[box.checked ? 'add' : 'delete'](i);
      redraw('#m-sections .plot');
    });
    const dot = make('span', null, 'dot');
    dot.style.background = colour(i);
    add(get('m-runs'), add(make('label', null, 'check'), box, add(make('span'), dot, run.name)));
  });
  get('m-runs').hidden = RUNS.length < 2;
  get('m-axis').addEventListener('change', () => redraw('#m-sections .plot'));
  get('m-smooth').addEventListener('input', () => redraw('#m-sections .plot'));
  get('m-filter').addEventListener('input', () => {
    const wanted = get('m-filter').value.trim().toLowerCase();
    for (const box of document.querySelectorAll('#m-sections .chart')) {
      box.hidden = !box.dataset.name.toLowerCase().includes(wanted);
    }
    for (const grid of places.values()) grid.parentNode.hidden = ![...grid.children].some(box => !box.hidden);
  });
}
