const CHART = { width: 420, height: 210, left: 52, right: 10, top: 8, bottom: 24 };

// Three to seven round numbers between low and high.
function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 6));
  const step = power * ([1, 2, 5, 10].find((factor) => span / (power * factor) <= 6) ?? 10);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

// Exponential mean without the bias of its start, as reporting/curves.py has it for the plots.
function smooth(values, weight) {
  let total = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null || weight === 0) return value;
    total = weight * total + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return total / share;
  });
}

function extent(arrays) {
  let low = Infinity;
  let high = -Infinity;
  for (const array of arrays) {
    for (const value of array) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low === high) return [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  return [low, high];
}

function scales(series) {
  const [x0, x1] = extent(series.map((one) => one.steps));
  const [y0, y1] = extent(series.flatMap((one) => [one.mean, one.low, one.high]));
  const margin = (y1 - y0) * 0.04;
  const width = CHART.width - CHART.left - CHART.right;
  const height = CHART.height - CHART.top - CHART.bottom;
  return {
    x: (step) => CHART.left + (width * (step - x0)) / (x1 - x0),
    y: (value) => CHART.top + height - (height * (value - y0 + margin)) / (y1 - y0 + 2 * margin),
    step: (x) => x0 + ((x - CHART.left) / width) * (x1 - x0),
    xs: ticks(x0, x1).filter((step) => Number.isInteger(step)),
    ys: ticks(y0 - margin, y1 + margin),
  };
}

function line(steps, values, scale) {
  let path = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${scale.x(steps[i]).toFixed(1)},${scale.y(value).toFixed(1)}`;
    // a point between two gaps is a line to itself, drawn as a dot by its round ends
    if (pen === "M" && (values[i + 1] ?? null) === null) path += "h0";
    pen = "L";
  });
  return path;
}

function band(one, scale) {
  const known = one.steps.map((_, i) => i).filter((i) => one.low.length && one.low[i] !== null);
  if (!known.length) return "";
  const point = (i, values) => `${scale.x(one.steps[i]).toFixed(1)},${scale.y(values[i]).toFixed(1)}`;
  return `M${known.map((i) => point(i, one.low)).join("L")}L${known.reverse().map((i) => point(i, one.high)).join("L")}Z`;
}

function axes(scale) {
  const bottom = CHART.height - CHART.bottom;
  const right = CHART.width - CHART.right;
  const marks = scale.ys.flatMap((value) => [
    svg("line", { class: "grid", x1: CHART.left, x2: right, y1: scale.y(value), y2: scale.y(value) }),
    svg("text", { class: "tick end", x: CHART.left - 5, y: scale.y(value) + 3.5 }, show(value, 4)),
  ]);
  const below = scale.xs.map((step) =>
    svg("text", { class: "tick middle", x: scale.x(step), y: bottom + 15 }, String(step)),
  );
  return [...marks, ...below, svg("line", { class: "axis", x1: CHART.left, x2: right, y1: bottom, y2: bottom })];
}

function nearest(steps, wanted) {
  let best = 0;
  steps.forEach((step, i) => {
    if (Math.abs(step - wanted) < Math.abs(steps[best] - wanted)) best = i;
  });
  return best;
}

function curveCard(chart, colour) {
  const weight = Number(get("smooth", "0"));
  const scale = scales(chart.series);
  const drawn = chart.series.map((one) => ({ ...one, shown: smooth(one.mean, weight) }));
  const values = drawn.map(() => el("b"));
  const legend = drawn.map((one, i) =>
    el("span", { class: `key c${colour(one, i) % 8}` }, el("i"), one.label, " ", values[i]),
  );
  const cursor = svg("line", { class: "cursor", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const at = el("span", { class: "at" });
  const tell = (wanted) => {
    const index = (one) => (wanted === null ? one.steps.length - 1 : nearest(one.steps, wanted));
    drawn.forEach((one, i) => values[i].replaceChildren(show(one.shown[index(one)])));
    at.replaceChildren(wanted === null ? "" : `step ${show(drawn[0].steps[index(drawn[0])], 7)}`);
  };
  const picture = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": chart.title });
  picture.append(...axes(scale), cursor);
  drawn.forEach((one, i) => {
    const mine = `c${colour(one, i) % 8}`;
    picture.append(svg("path", { class: `band ${mine}`, d: band(one, scale) }));
    if (weight) picture.append(svg("path", { class: `curve raw ${mine}`, d: line(one.steps, one.mean, scale) }));
    picture.append(svg("path", { class: `curve ${mine}`, d: line(one.steps, one.shown, scale) }));
  });
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * CHART.width;
    const step = drawn[0].steps[nearest(drawn[0].steps, scale.step(x))];
    filled(cursor, { x1: scale.x(step), x2: scale.x(step), visibility: "visible" }, []);
    tell(step);
  });
  picture.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tell(null);
  });
  tell(null);
  return el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, chart.title, at), ...legend), picture);
}

function drawCurves() {
  const several = DATA.runs.length > 1;
  const colour = (one, i) => (several ? one.run : i);
  const strengths = [["0", "none"], ["0.8", "little"], ["0.95", "much"]];
  const cards = DATA.charts.map((chart) => curveCard(chart, colour));
  document.getElementById("curves").replaceChildren(
    el("div", { class: "bar" }, select("smoothing ", "smooth", strengths, "0", drawCurves)),
    el("div", { class: "charts" }, ...cards),
  );
}
