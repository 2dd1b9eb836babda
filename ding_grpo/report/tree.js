'use strict';
// The tree of a group whose rows share tokens: time to the right, rows below each other, a box for what is shared.
const LINE = 22; // pixels of a row

// The parts of rows that are the same before token ``from``: {rows, from, to, parts}, each up to where it divides or ends.
function branches(rows, from) {
  const byLeader = new Map();
  for (const row of rows) {
    if (row.leader.length <= from) continue;
    const leader = row.leader[from];
    byLeader.set(leader, [...(byLeader.get(leader) || []), row]);
  }
  return [...byLeader.values()].map(members => {
    const shared = t => members.every(row => t < row.leader.length && row.leader[t] === members[0].leader[t]);
    let to = from + 1;
    while (shared(to)) to++;
    return {rows: members, from, to, parts: branches(members, to)};
  });
}

function isTree(group) {
  const known = group.rows.every(row => Array.isArray(row.leader) && Array.isArray(row.text));
  return known && branches(group.rows, 0).some(part => part.rows.length > 1);
}

function leaves(part) {
  return part.parts.length ? part.parts.reduce((n, child) => n + leaves(child), 0) : 1;
}

function treeBox(group, paint) {
  const box = make('div', null, 'tree'), bars = make('div', null, 'bars'), ends = make('div', null, 'ends');
  const longest = Math.max(...group.rows.map(row => row.leader.length));
  const draw = (part, line) => {
    const bar = make('div', textOf(part), 'branch');
    bar.style.cssText = `left:${100 * part.from / longest}%;width:calc(${100 * (part.to - part.from) / longest}% - 2px);` +
      `top:${LINE * line}px;height:${LINE * leaves(part) - 2}px`;
    bar.style.background = paint(part.rows, part.from, part.to);
    bar.title = `${factsOf(part)}\n${textOf(part)}`;
    add(bars, bar);
    if (!part.parts.length) add(ends, endOf(part));
    part.parts.reduce((at, child) => draw(child, at), line);
    return line + leaves(part);
  };
  bars.style.height = `${LINE * branches(group.rows, 0).reduce((at, part) => draw(part, at), 0)}px`;
  return add(box, bars, ends);
}

function textOf(part) {
  return part.rows[0].text.slice(part.from, part.to).join('');
}

function rewardOf(part) {
  return mean(part.rows.filter(row => !row.failed && row.reward !== null).map(row => row.reward));
}

function factsOf(part) {
  const tokens = part.to - part.from === 1 ? `token ${part.from}` : `tokens ${part.from} to ${part.to - 1}`;
  const rows = part.rows.length === 1 ? `row ${part.rows[0].row},` : `${part.rows.length} rows, mean`;
  const advantage = mean(part.rows.flatMap(row => row.advantage.slice(part.from, part.to).filter((_, t) => learned(row, part.from + t))));
  return `${tokens} of ${rows} reward ${short(rewardOf(part))}${advantage === null ? '' : `, advantage ${signed(advantage)}`}`;
}

function endOf(part) {
  const box = make('div'), rows = part.rows.length > 1 ? ` (${part.rows.length} rows)` : '';
  box.style.height = `${LINE}px`;
  return add(box, make('b', short(rewardOf(part))), rows);
}
