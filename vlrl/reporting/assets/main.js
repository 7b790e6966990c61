const TABS = {
  overview: ["Curves", drawCurves],
  rollouts: ["Rollouts", drawRollouts],
  pairs: ["Before and after", drawPairs],
  settings: ["Settings", drawSettings],
};

let timer = 0;

function reloading() {
  const ticked = get("live") === "1";
  clearTimeout(timer);
  if (ticked) timer = setTimeout(() => location.reload(), 1000 * DATA.reload_s);
  const change = (event) => {
    put({ live: event.target.checked ? "1" : "" });
    reloading();
  };
  const box = el("input", { type: "checkbox", name: "live", change });
  box.checked = ticked;
  return el("label", { class: "live" }, box, ` reload every ${show(DATA.reload_s)} s`);
}

function drawTab() {
  const current = TABS[get("tab")] ? get("tab") : "overview";
  const buttons = Object.entries(TABS).map(([name, [label]]) => {
    const click = () => {
      put({ tab: name });
      drawTab();
    };
    return el("button", { role: "tab", "aria-selected": String(name === current), "data-tab": name, click }, label);
  });
  document.getElementById("tabs").replaceChildren(...buttons, DATA.reload_s ? reloading() : "");
  for (const name of Object.keys(TABS)) document.getElementById(name).hidden = name !== current;
  TABS[current][1]();
}

addEventListener("hashchange", () => {
  state = new URLSearchParams(location.hash.slice(1));
  drawTab();
});
drawTab();
