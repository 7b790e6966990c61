const ROW_PX = 30;

const ROLLOUTS = DATA.groups.flatMap((group, g) =>
  group.rollouts.map((rollout, number) => ({ group, g, rollout, number })),
);

const spread = (group) => {
  const paid = group.rollouts.filter((rollout) => rollout.valid).map((rollout) => rollout.reward ?? 0);
  return paid.length > 1 ? Math.max(...paid) - Math.min(...paid) : null;
};

const byReward = (sign) => (a, b) => sign * ((b.rollout.reward ?? 0) - (a.rollout.reward ?? 0));

// name: [what the button says, which rollouts, in which order]; the order of DATA is newest first
const FILTERS = {
  all: ["All", () => true, null],
  best: ["Best", (one) => one.rollout.valid, byReward(1)],
  worst: ["Worst", (one) => one.rollout.valid, byReward(-1)],
  invalid: ["Invalid", (one) => !one.rollout.valid, null],
  equal: ["Equal groups", (one) => (spread(one.group) ?? 1) < 1e-6, null],
  unclaimed: ["No graded claim", (one) => one.rollout.valid && !one.rollout.claims.some((claim) => !claim.failure), null],
};

function chosenRollouts() {
  const [, wanted, order] = FILTERS[get("filter", "all")] ?? FILTERS.all;
  const words = get("find").toLowerCase();
  const [first, last] = [Number(get("from", "0")), Number(get("to") || Infinity)];
  const fits = (one) =>
    wanted(one) &&
    (!get("task") || one.group.task === get("task")) &&
    (!get("run") || String(one.group.run) === get("run")) &&
    one.group.step >= first &&
    one.group.step <= last &&
    (!words || [one.rollout.completion, one.group.id, one.group.prompt, one.rollout.reason].some((text) => text.toLowerCase().includes(words)));
  const found = ROLLOUTS.filter(fits);
  return order ? found.sort(order) : found;
}

// The list holds only the rows that are seen: ten thousand rows of table would take seconds to lay out.
function virtualList(rows, drawRow) {
  const sheet = el("div", { class: "sheet" });
  const list = el("div", { class: "list", tabindex: "0" }, sheet);
  sheet.style.height = `${rows.length * ROW_PX}px`;
  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - 8);
    const last = Math.min(rows.length, first + Math.ceil((list.clientHeight || 600) / ROW_PX) + 16);
    const drawn = [];
    for (let i = first; i < last; i++) {
      const row = drawRow(rows[i], i);
      row.style.top = `${i * ROW_PX}px`;
      drawn.push(row);
    }
    sheet.replaceChildren(...drawn);
  };
  list.addEventListener("scroll", draw);
  return { list, draw };
}

const answerOf = (completion) => {
  const start = completion.lastIndexOf("<answer>");
  return (start < 0 ? completion : completion.slice(start + 8).replace("</answer>", "")).slice(0, 160);
};

function listRow(one, chosen, pick) {
  const { group, rollout, number } = one;
  const parts = [
    el("span", { class: "n" }, String(group.step)),
    el("span", { class: "id", title: group.id }, `${group.id} #${number}`),
    el("span", { class: "n" }, rollout.valid ? show(rollout.reward) : "invalid"),
    el("span", { class: `n ${rollout.advantage < 0 ? "down" : "up"}` }, rollout.valid ? signed(rollout.advantage) : ""),
    el("span", { class: "n" }, String(rollout.claims.length)),
    el("span", { class: "text" }, rollout.valid ? answerOf(rollout.completion) : rollout.reason),
  ];
  return el("div", { class: chosen ? "row chosen" : "row", click: () => pick(one) }, ...parts);
}

function filterBar(changed) {
  const tasks = [...new Set(DATA.groups.map((group) => group.task))].sort();
  const buttons = Object.entries(FILTERS).map(([name, [label]]) =>
    el("button", {
      "aria-pressed": String(get("filter", "all") === name),
      "data-filter": name,
      click: (event) => {
        put({ filter: name });
        for (const button of event.target.parentElement.children) {
          button.setAttribute("aria-pressed", String(button === event.target));
        }
        changed();
      },
    }, label),
  );
  const runs = DATA.runs.map((run, i) => [String(i), run.name]);
  return el(
    "div",
    { class: "bar" },
    el("div", { class: "buttons" }, ...buttons),
    tasks.length > 1 ? select("task ", "task", [["", "all"], ...tasks.map((task) => [task, task])], "", changed) : null,
    runs.length > 1 ? select("run ", "run", [["", "all"], ...runs], "", changed) : null,
    input("steps ", "from", { type: "number", min: 0, placeholder: "first" }, changed),
    input("to ", "to", { type: "number", min: 0, placeholder: "last" }, changed),
    input("find ", "find", { type: "search", placeholder: "in completion, question, id" }, changed),
  );
}

function drawRollouts() {
  const section = document.getElementById("rollouts");
  const left = el("div", { class: "left" });
  const detail = el("div", { class: "detail" });
  const refill = () => {
    const rows = chosenRollouts();
    const at = (one) => `${one.g}.${one.number}`;
    const pick = (one) => {
      put({ rollout: at(one) });
      shown.draw();
      drawGroup(detail, one);
    };
    const shown = virtualList(rows, (one) => listRow(one, at(one) === get("rollout"), pick));
    const move = (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !rows.length) return;
      event.preventDefault();
      const next = rows.findIndex((one) => at(one) === get("rollout")) + by;
      pick(rows[Math.min(Math.max(next, 0), rows.length - 1)]);
      shown.list.scrollTop = Math.max(0, next * ROW_PX - shown.list.clientHeight / 2);
    };
    shown.list.addEventListener("keydown", move);
    const head = ["step", "example", "reward", "adv.", "cl.", "answer"];
    left.replaceChildren(
      el("p", { class: "count" }, `${rows.length} of ${ROLLOUTS.length} rollouts`),
      el("div", { class: "row head" }, ...head.map((word) => el("span", {}, word))),
      shown.list,
    );
    shown.draw();
    const current = rows.find((one) => at(one) === get("rollout")) ?? rows[0];
    if (current) drawGroup(detail, current);
    else detail.replaceChildren(el("p", { class: "empty" }, "No rollout fits this filter."));
  };
  section.replaceChildren(filterBar(refill), el("div", { class: "split" }, left, detail));
  refill();
}
