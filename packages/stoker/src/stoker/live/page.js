"use strict";
// Text of runs is shown by textContent only, so that nothing in a file becomes part of the page.
const WIDTH = 400, HEIGHT = 176, LEFT = 52, BOTTOM = 20, TOP = 6, COLOURS = 8, MOST = 8;
const known = JSON.parse(document.getElementById("data").textContent);
const token = new URLSearchParams(location.search).get("token");
let view = known, selected = known ? known.runs.slice(0, MOST).map(run => run.name) : null, stream = null;

const byId = id => document.getElementById(id);
const element = (name, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const shape = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const short = value => {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
};
const percent = value => value === null ? "" : (100 * value).toLocaleString("en", { maximumFractionDigits: 1 }) + " %";
const bytes = value => value === null ? "" : value >= 2 ** 30 ? (value / 2 ** 30).toFixed(1) + " GiB" : (value / 2 ** 20).toFixed(0) + " MiB";
const age = seconds => seconds < 90 ? Math.max(0, Math.round(seconds)) + " s" : seconds < 5400 ? Math.round(seconds / 60) + " min"
  : seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
const now = () => known ? Date.parse(known.now) / 1000 : Date.now() / 1000;
const colour = name => `var(--c${selected.indexOf(name) % COLOURS})`;

const COLUMNS = [
  ["run", run => run.name], ["state", run => run.state + (run.how && run.how !== "finished" ? ` (${run.how})` : "")],
  ["step", run => short(run.step)], ["loss", run => short(run.loss)],
  ["best", run => run.best === null ? "" : `${short(run.best)} ${run.metric}`], ["it/s", run => short(run.rate)],
  ["ceiling", run => run.ceiling !== null ? short(run.ceiling) : run.data_free === null ? "" : short(run.data_free)],
  ["wait", run => percent(run.wait)], ["memory", run => bytes(run.memory)],
  ["checkpoint", run => run.checkpoint ? `${short(run.checkpoint.step)}, ${age(now() - run.checkpoint.seconds)} ago` : ""],
  ["last line", run => run.last_time ? age(now() - Date.parse(run.last_time) / 1000) + " ago" : ""],
  ["skipped", run => run.skipped ? short(run.skipped) : ""], ["slowdowns", run => run.slowdowns ? short(run.slowdowns) : ""],
];
const EXPLAINED = {
  "ceiling": "it/s if batches came without waiting; from diagnosis.json where the run has one",
  "wait": "share of the time that the loop waited for data", "skipped": "updates that the NaN guard skipped",
};

function choose(name) {
  const is = selected.includes(name);
  selected = is ? selected.filter(one => one !== name) : [...selected, name].slice(-MOST);
  if (known) draw(); else connect();
}

function drawRuns() {
  const [head, body] = [byId("runs").tHead, byId("runs").tBodies[0]];
  head.replaceChildren(element("tr"));
  for (const [title] of COLUMNS) {
    const cell = element("th", title, title === "run" || title === "state" ? "" : "number");
    if (EXPLAINED[title]) cell.title = EXPLAINED[title];
    head.rows[0].append(cell);
  }
  const focused = document.activeElement?.dataset?.name;
  body.replaceChildren();
  for (const run of view.runs) {
    const row = element("tr");
    row.dataset.name = run.name; row.tabIndex = 0; row.setAttribute("aria-selected", selected.includes(run.name));
    row.onclick = () => choose(run.name);
    row.onkeydown = event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(run.name); } };
    for (const [title, text] of COLUMNS) {
      const cell = element("td", text(run), title === "run" ? "name" : title === "state" ? run.state : "number");
      if (title === "run") {
        const dot = element("span", "", "dot");
        if (selected.includes(run.name)) { dot.style.background = colour(run.name); dot.style.borderColor = colour(run.name); }
        cell.prepend(dot);
        if (run.reason) cell.append(element("div", run.reason, "soft bad"));
      }
      if (title === "skipped" && run.skipped) cell.classList.add("bad");
      row.append(cell);
    }
    body.append(row);
    if (focused === run.name) row.focus();
  }
  if (!view.runs.length) byId("hint").textContent = "No runs yet. They appear here as soon as one starts.";
  else byId("hint").textContent = `Click runs to compare them, up to ${MOST}.`;
}

function drawEvents(shown) {
  const lines = [];
  for (const [name, detail] of shown) {
    for (const line of detail.slowdowns) lines.push(`${name}: ${line}`);
    for (const [metric, curve] of Object.entries(detail.curves))
      if (curve.non_finite) lines.push(`${name}: ${metric} was NaN or Inf at step ${curve.non_finite.slice(0, 8).join(", ")}`);
    const run = view.runs.find(one => one.name === name);
    if (run.skipped) lines.push(`${name}: the NaN guard skipped ${short(run.skipped)} updates`);
    if (run.sessions > 1) lines.push(`${name}: resumed ${run.sessions - 1} times`);
  }
  byId("events").hidden = !lines.length;
  byId("events").querySelector("ul").replaceChildren(...lines.map(line => element("li", line)));
}

function drawFacts(shown) {
  const names = [...new Set(shown.flatMap(([, detail]) => Object.keys(detail.facts)))];
  const differ = name => new Set(shown.map(([, detail]) => detail.facts[name] ?? "")).size > 1;
  const rows = shown.length > 1 ? names.filter(differ) : names;
  byId("facts").hidden = !shown.length;
  byId("facts").querySelector("h2").textContent = shown.length > 1 ? "What differs" : "Configuration";
  const [head, body] = [byId("facts").querySelector("thead"), byId("facts").querySelector("tbody")];
  head.replaceChildren(element("tr")); body.replaceChildren();
  head.rows[0].append(element("th", ""), ...shown.map(([name]) => element("th", name)));
  for (const name of rows) {
    const row = element("tr");
    row.append(element("td", name, "soft"), ...shown.map(([, detail]) => element("td", detail.facts[name] ?? "")));
    body.append(row);
  }
  if (!rows.length) body.append(element("tr")), body.rows[0].append(element("td", "nothing", "soft"));
}

function panels(shown) {
  const names = [...new Set(shown.flatMap(([, detail]) => Object.keys(detail.curves)))].filter(name => name !== "epoch" && name !== "skipped");
  const first = ["loss", "val_loss", "epoch_loss"], last = ["rate", "wait", "memory", "lr", "norm"];
  const place = name => first.includes(name) ? first.indexOf(name) : last.includes(name) ? 200 + last.indexOf(name) : 100;
  return names.sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}
const TITLES = { loss: "training loss", rate: "updates per second", wait: "share of time waiting for data", memory: "memory", lr: "learning rate", norm: "gradient norm" };

function drawPanel(name, shown) {
  const curves = shown.map(([run, detail]) => [run, detail.curves[name]]).filter(([, curve]) => curve && (curve.steps.length || curve.non_finite));
  const isLog = byId("log").checked && /loss/.test(name) && curves.every(([, curve]) => curve.means.every(value => value > 0));
  const fromZero = ["rate", "wait", "memory"].includes(name);
  const steps = curves.flatMap(([, curve]) => [curve.steps[0], curve.steps.at(-1), ...(curve.non_finite || [])]).filter(step => step !== undefined);
  const ceilings = name !== "rate" ? [] : curves.map(([run]) => [run, view.runs.find(one => one.name === run).ceiling]).filter(([, top]) => top);
  let values = curves.flatMap(([, curve]) => curve.means).concat(ceilings.map(([, top]) => top));
  if (fromZero) values = values.concat(0);
  const scale = isLog ? Math.log10 : value => value;
  let [low, high] = [Math.min(...values.map(scale)), Math.max(...values.map(scale))];
  if (!isFinite(low)) [low, high] = [0, 1];
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) { low -= low === 0 && fromZero ? 0 : .5 * Math.abs(low) || .5; high += .5 * Math.abs(high) || .5; }
  const [from, to] = [Math.min(...steps), Math.max(...steps)];
  const x = step => LEFT + (WIDTH - LEFT - 8) * (to > from ? (step - from) / (to - from) : .5);
  const clamp = value => Math.min(1, Math.max(0, value));
  const y = value => TOP + (HEIGHT - TOP - BOTTOM) * (1 - clamp((scale(value) - low) / (high - low)));
  const form = name === "wait" ? percent : name === "memory" ? bytes : short;
  const back = value => isLog ? 10 ** value : value;

  const figure = element("figure"), caption = element("figcaption", TITLES[name] ?? name), read = element("span", "");
  caption.append(read);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": TITLES[name] ?? name, "data-panel": name });
  svg.append(shape("path", { class: "frame", d: `M${LEFT},${TOP} V${HEIGHT - BOTTOM} H${WIDTH - 8}` }));
  const label = (at, text, anchor, dy) => { const made = shape("text", { x: at[0], y: at[1], "text-anchor": anchor, dy }); made.textContent = text; svg.append(made); };
  for (const part of [0, .5, 1]) label([LEFT - 6, TOP + (HEIGHT - TOP - BOTTOM) * (1 - part)], form(back(low + part * (high - low))), "end", ".35em");
  label([LEFT, HEIGHT - 4], short(from), "start", 0); label([WIDTH - 8, HEIGHT - 4], `step ${short(to)}`, "end", 0);
  for (const [run, curve] of curves) {
    const point = (index, value) => `${x(curve.steps[index]).toFixed(1)},${y(value).toFixed(1)}`;
    if (curve.lows) {
      const upper = curve.highs.map((value, index) => point(index, value)), lower = curve.lows.map((value, index) => point(index, value)).reverse();
      svg.append(shape("path", { class: "band", fill: colour(run), d: `M${upper.join("L")}L${lower.join("L")}Z` }));
    }
    if (curve.means.length) svg.append(shape("path", { class: "curve", stroke: colour(run), "data-run": run, d: "M" + curve.means.map((value, index) => point(index, value)).join("L") }));
    if (curve.means.length === 1) svg.append(shape("circle", { cx: x(curve.steps[0]), cy: y(curve.means[0]), r: 2.5, fill: colour(run) }));
    for (const step of curve.non_finite || []) svg.append(shape("path", { class: "gone", d: `M${x(step)},${HEIGHT - BOTTOM} v-8` }));
  }
  for (const [run, top] of ceilings) svg.append(shape("path", { class: "ceiling", stroke: colour(run), d: `M${LEFT},${y(top)} H${WIDTH - 8}` }));
  const cursor = shape("path", { class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), size = Math.min(box.width / WIDTH, box.height / HEIGHT);
    const at = (event.clientX - box.left - (box.width - WIDTH * size) / 2) / size;
    const step = from + (to - from) * clamp((at - LEFT) / (WIDTH - LEFT - 8));
    const found = curves.filter(([, curve]) => curve.steps.length).map(([run, curve]) => {
      const index = curve.steps.reduce((best, one, index) => Math.abs(one - step) < Math.abs(curve.steps[best] - step) ? index : best, 0);
      return [run, curve.steps[index], curve.means[index]];
    });
    if (!found.length) return;
    cursor.setAttribute("d", `M${x(found[0][1])},${TOP} V${HEIGHT - BOTTOM}`); cursor.setAttribute("visibility", "visible");
    read.textContent = `step ${short(found[0][1])}: ` + found.map(([, , value]) => form(value)).join(" · ");
  };
  svg.onpointerleave = () => { cursor.setAttribute("visibility", "hidden"); read.textContent = ""; };
  figure.append(caption, svg);
  return figure;
}

function draw() {
  if (selected === null) selected = Object.keys(view.details);
  selected = selected.filter(name => view.runs.some(run => run.name === name));
  const shown = selected.filter(name => view.details[name]).map(name => [name, view.details[name]]);
  byId("folder").textContent = view.folder;
  drawRuns(); drawEvents(shown); drawFacts(shown);
  byId("charts").hidden = !shown.length;
  byId("charts").querySelector(".grid").replaceChildren(...panels(shown).map(name => drawPanel(name, shown)));
}

function connect() {
  if (stream) stream.close();
  const query = new URLSearchParams({ token });
  for (const name of selected ?? []) query.append("run", name);
  if (selected && !selected.length) query.append("run", "");
  stream = new EventSource("events?" + query);
  stream.onmessage = event => { view = JSON.parse(event.data); byId("status").textContent = "live"; draw(); };
  stream.addEventListener("end", () => { stream.close(); byId("status").textContent = "stoker live has ended"; });
  stream.onerror = () => { byId("status").textContent = "no connection; trying again"; };
}

byId("log").onchange = draw;
if (known) { byId("status").textContent = `saved ${known.now.slice(0, 19).replace("T", " ")} UTC`; draw(); }
else { connect(); setInterval(() => { if (view) drawRuns(); }, 5000); }
