// Elements are made here. Text is set as text and never read as HTML: whatever a model wrote stays text.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("seed").namespaceURI;

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function show(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  return String(Number(number.toPrecision(digits))).replace("-", "−");
}

function signed(number, digits = 3) {
  return (number > 0 ? "+" : "") + show(number, digits);
}

// What is looked at is kept behind the # of the address: it outlives a reload and can be passed on.
let state = new URLSearchParams(location.hash.slice(1));

function get(name, otherwise = "") {
  return state.get(name) ?? otherwise;
}

function put(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null) state.delete(name);
    else state.set(name, value);
  }
  history.replaceState(null, "", "#" + state.toString());
}

function select(label, name, options, otherwise, changed) {
  const current = get(name, otherwise);
  const choices = options.map(([value, text]) => el("option", { value, selected: value === current }, text));
  const change = (event) => {
    put({ [name]: event.target.value });
    changed();
  };
  return el("label", {}, label, el("select", { name, change }, ...choices));
}

function input(label, name, attributes, changed) {
  const entered = (event) => {
    put({ [name]: event.target.value });
    changed();
  };
  return el("label", {}, label, el("input", { name, value: get(name), input: entered, ...attributes }));
}

function table(head, rows) {
  const cells = (row, tag) => el("tr", {}, ...row.map((cell) => el(tag, {}, cell)));
  return el("table", {}, el("thead", {}, cells(head, "th")), el("tbody", {}, ...rows.map((row) => cells(row, "td"))));
}
