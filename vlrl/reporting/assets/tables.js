// Before and after, and what the runs were made of.
const interval = (value) =>
  value === null ? "–" : show(value[0]) + (value[1] === null ? "" : ` [${show(value[1])}, ${show(value[2])}]`);

// Differences with their intervals around the line of no change.
function forest(rows) {
  const known = rows.filter((row) => row.value !== null);
  if (!known.length) return null;
  const ends = known.flatMap((row) => [row.value[1] ?? row.value[0], row.value[2] ?? row.value[0], 0]);
  const [low, high] = extent([ends]);
  const x = (value) => 190 + (220 * (value - low)) / (high - low);
  const picture = svg("svg", { class: "forest", viewBox: `0 0 470 ${20 * known.length + 24}`, role: "img", "aria-label": "differences" });
  picture.append(svg("line", { class: "axis", x1: x(0), x2: x(0), y1: 0, y2: 20 * known.length }));
  known.forEach((row, i) => {
    const y = 20 * i + 11;
    const colour = `c${row.run % 8}`;
    picture.append(
      svg("text", { class: "tick end", x: 182, y: y + 4 }, row.label),
      svg("line", { class: `curve ${colour}`, x1: x(row.value[1] ?? row.value[0]), x2: x(row.value[2] ?? row.value[0]), y1: y, y2: y }),
      svg("circle", { class: `dot ${colour}`, cx: x(row.value[0]), cy: y, r: 4 }),
      svg("text", { class: "tick", x: 416, y: y + 4 }, signed(row.value[0])),
    );
  });
  picture.append(svg("text", { class: "tick middle", x: x(0), y: 20 * known.length + 15 }, "no change"));
  return picture;
}

// Equal pairs are one dot whose area tells how many.
function scatter(pairs) {
  const [low, high] = extent([pairs.flatMap(([, before, after]) => [before, after])]);
  const at = (value) => (value - low) / (high - low);
  const counts = new Map();
  for (const [, before, after] of pairs) {
    const key = `${Math.round(at(before) * 100)},${Math.round(at(after) * 100)}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const x = (share) => 44 + 2.4 * share;
  const y = (share) => 254 - 2.4 * share;
  const dots = [...counts].map(([key, count]) => {
    const [before, after] = key.split(",").map(Number);
    const way = after > before ? "up" : after < before ? "down" : "same";
    return svg("circle", { class: `pair ${way}`, cx: x(before), cy: y(after), r: Math.min(2 + Math.sqrt(count), 20) });
  });
  const ends = [[low, 0], [high, 100]];
  return svg(
    "svg",
    { class: "scatter", viewBox: "0 0 300 290", role: "img", "aria-label": "before and after" },
    svg("rect", { class: "field", x: 44, y: 14, width: 240, height: 240 }),
    svg("line", { class: "grid", x1: x(0), y1: y(0), x2: x(100), y2: y(100) }),
    ...dots,
    ...ends.map(([value, share]) => svg("text", { class: "tick middle", x: x(share), y: 268 }, show(value))),
    ...ends.map(([value, share]) => svg("text", { class: "tick end", x: 40, y: y(share) + 4 }, show(value))),
    svg("text", { class: "tick middle", x: 164, y: 284 }, "before"),
    svg("text", { class: "tick", x: 48, y: 10 }, "after"),
  );
}

function pairsOf(mode) {
  const metric = mode.pairs[get("metric", "reward")] ? get("metric", "reward") : Object.keys(mode.pairs)[0];
  const pairs = metric ? mode.pairs[metric] : [];
  if (!pairs.length) return el("p", {}, "No pairs yet: they come with the evaluation after the last step.");
  const changed = pairs.map(([example, before, after]) => [example, before, after, after - before]);
  const count = (test) => changed.filter(([, , , change]) => test(change)).length;
  const rows = (sign) =>
    changed
      .filter(([, , , change]) => sign * change > 0)
      .sort((a, b) => sign * (b[3] - a[3]))
      .slice(0, 10)
      .map(([example, before, after, change]) => [String(example), show(before), show(after), signed(change)]);
  const head = ["line of the file, from 0", "before", "after", "change"];
  return el(
    "div",
    { class: "pairs" },
    el("div", {}, el("h3", {}, metric), el("p", {}, `${count((c) => c > 0)} better, ${count((c) => c < 0)} worse, ${count((c) => c === 0)} equal`), scatter(pairs)),
    el("div", {}, el("h3", {}, "Gained most"), table(head, rows(1))),
    el("div", {}, el("h3", {}, "Lost most"), table(head, rows(-1))),
  );
}

function modeBlock(run, mode) {
  const rows = mode.rows.map((row) => [row.metric, interval(row.before), interval(row.after), interval(row.paired_difference)]);
  const differences = mode.rows.map((row) => ({ label: row.metric, run, value: row.paired_difference }));
  return el(
    "div",
    { class: "mode" },
    el("h3", {}, `${mode.mode}, ${mode.examples} examples`),
    el("div", { class: "beside" }, table(["metric", "before", "after", "difference"], rows), forest(differences)),
    pairsOf(mode),
  );
}

function tasksTable(tasks) {
  if (!tasks.length) return null;
  const names = Object.keys(tasks[0].means);
  const arrow = (pair) => (pair ? `${show(pair[0])} → ${show(pair[1])}` : "–");
  const rows = tasks.map((row) => [row.task, show(row.examples), ...names.map((name) => arrow(row.means[name]))]);
  return el("div", { class: "mode" }, el("h3", {}, "by task, greedy"), table(["task", "examples", ...names], rows));
}

function drawPairs() {
  const modes = DATA.evaluations.map((evaluation) => evaluation.modes);
  const metrics = [...new Set(modes.flat().flatMap((mode) => mode.rows.map((row) => row.metric)))];
  const chosen = get("metric", "reward");
  const compared = modes.flatMap((list, run) =>
    list.slice(0, 1).flatMap((mode) => mode.rows.filter((row) => row.metric === chosen).map((row) => ({ label: DATA.runs[run].name, run, value: row.paired_difference }))),
  );
  const blocks = modes.map((list, run) =>
    el("div", { class: "evaluation" }, el("h2", {}, DATA.runs[run].name), ...(list.length ? list.map((mode) => modeBlock(run, mode)) : [el("p", {}, "No evaluation yet.")]), tasksTable(DATA.evaluations[run].tasks)),
  );
  document.getElementById("pairs").replaceChildren(
    el("div", { class: "bar" }, select("pairs of ", "metric", metrics.map((name) => [name, name]), "reward", drawPairs)),
    DATA.runs.length > 1 ? el("div", { class: "mode" }, el("h3", {}, `change of ${chosen}, run by run`), forest(compared)) : "",
    ...blocks,
  );
}

function drawSettings() {
  const one = DATA.runs.length === 1;
  const rows = DATA.settings.map((row) => [row.name, ...row.values]);
  document.getElementById("settings").replaceChildren(
    el("h2", {}, one ? "Settings" : "Settings that differ"),
    rows.length ? table(["field", ...DATA.runs.map((run) => run.name)], rows) : el("p", {}, "All settings are equal."),
  );
}
