// One prompt's rollouts side by side, each claim on its frame.
const TAGS = /(<\/?(?:think|answer|obj|box|t)>)/;

function completionText(text) {
  const parts = text.split(TAGS).map((part) => (TAGS.test(part) ? el("span", { class: "tag" }, part) : part));
  return el("pre", {}, ...parts);
}

const jpeg = (index) => `data:image/jpeg;base64,${DATA.media[index]}`;

function boxLines(x, y, width, height) {
  const shape = { x, y, width, height };
  return [svg("rect", { class: "outer", ...shape }), svg("rect", { class: "inner", ...shape })];
}

// The box on its frame and the crop, as the referee sees them; on an empty field where the report has no frames.
function claimPicture(claim) {
  if (!claim.box) return null;
  const [x1, y1, x2, y2] = claim.box;
  if (claim.frame === undefined) {
    return svg("svg", { class: "frame empty", viewBox: "0 0 100 100", role: "img", "aria-label": claim.object },
      ...boxLines(100 * x1, 100 * y1, 100 * (x2 - x1), 100 * (y2 - y1)));
  }
  const [width, height] = claim.size_px;
  const image = () => svg("image", { href: jpeg(claim.frame), width, height, preserveAspectRatio: "none" });
  const [cx1, cy1, cx2, cy2] = claim.crop_px;
  return el(
    "div",
    { class: "views" },
    svg("svg", { class: "frame", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `frame at ${show(claim.frame_time_s)} s` },
      image(), ...boxLines(width * x1, height * y1, width * (x2 - x1), height * (y2 - y1))),
    svg("svg", { class: "crop", viewBox: `${cx1} ${cy1} ${cx2 - cx1} ${cy2 - cy1}`, role: "img", "aria-label": "crop" }, image()),
  );
}

function grade(name, letter, value) {
  return el("span", { class: `grade g${letter || "none"}` }, `${name} `, el("b", {}, letter || "–"), value === null ? "" : ` ${show(value, 2)}`);
}

function claimFigure(claim) {
  const when = `claimed at ${show(claim.time_s)} s, frame at ${show(claim.frame_time_s)} s`;
  const facts = claim.failure
    ? [el("span", { class: "failed" }, `not graded: ${claim.failure}`)]
    : [
        grade("relevance", claim.letters[0], claim.grades[0]),
        grade("localization", claim.letters[1], claim.grades[1]),
        el("span", {}, `ω ${show(claim.omega, 2)}`),
        claim.pay === null ? null : el("span", { class: "pay" }, "pays ", el("b", {}, signed(claim.pay, 2))),
      ];
  return el("figure", { class: "claim" }, el("figcaption", {}, el("b", {}, claim.object), " ", when), claimPicture(claim), el("div", { class: "facts" }, ...facts));
}

function partsTable(rollout, weights) {
  const rows = Object.entries(rollout.parts).map(([name, value]) => {
    const weight = weights[name] ?? 1;
    return [name, show(value), `× ${show(weight)}`, show(value === null ? null : weight * value)];
  });
  return el("div", { class: "parts" }, table(["part", "value", "weight", "paid"], rows));
}

function advantageBar(value, most) {
  const share = most ? (50 * Math.abs(value ?? 0)) / most : 0;
  const fill = el("i", { class: value < 0 ? "down" : "up" });
  fill.style.width = `${share}%`;
  fill.style.left = value < 0 ? `${50 - share}%` : "50%";
  return el("div", { class: "advantage", title: "advantage within the group" }, fill);
}

function card(rollout, number, chosen, most, weights) {
  const head = rollout.valid
    ? [el("b", {}, show(rollout.reward)), el("span", { class: rollout.advantage < 0 ? "down" : "up" }, `advantage ${signed(rollout.advantage)}`)]
    : [el("b", { class: "failed" }, `invalid: ${rollout.reason}`)];
  const more = Object.entries(rollout.more ?? {}).map(([name, value]) => el("details", {}, el("summary", {}, name), el("pre", {}, value)));
  return el(
    "article",
    { class: chosen ? "card chosen" : "card" },
    el("header", {}, el("span", { class: "number" }, `#${number}`), ...head),
    advantageBar(rollout.advantage, most),
    completionText(rollout.completion),
    rollout.valid ? partsTable(rollout, weights) : null,
    ...rollout.claims.map(claimFigure),
    ...more,
  );
}

function drawGroup(place, { group, number }) {
  const run = DATA.runs[group.run];
  const paid = group.rollouts.filter((rollout) => rollout.valid).map((rollout) => rollout.reward ?? 0);
  const mean = paid.reduce((sum, reward) => sum + reward, 0) / paid.length;
  const most = Math.max(...group.rollouts.map((rollout) => Math.abs(rollout.advantage ?? 0)));
  const about = [`step ${group.step}`, group.task, DATA.runs.length > 1 ? run.name : "", paid.length ? `mean reward ${show(mean)}` : "no valid completion"];
  const cards = group.rollouts.map((rollout, i) => card(rollout, i, i === number, most, run.weights));
  const poster = group.frame === undefined ? null : el("img", { class: "poster", src: jpeg(group.frame), alt: "middle frame" });
  place.replaceChildren(
    el("h2", {}, group.id, el("small", {}, about.filter(Boolean).join(" · "))),
    el("div", { class: "asked" }, poster, el("div", {},
      el("p", {}, el("b", {}, "reference "), group.reference),
      el("details", {}, el("summary", {}, "prompt"), el("pre", {}, group.prompt)))),
    el("div", { class: "cards" }, ...cards),
  );
  const row = place.querySelector(".cards");
  const chosen = row.querySelector(".chosen");
  const beyond = chosen ? chosen.offsetLeft + chosen.offsetWidth - row.clientWidth : 0;
  if (beyond > 0) row.scrollLeft = beyond + 8;
}
