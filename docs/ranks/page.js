"use strict";
// Draws the state, and lets the reader change it.
let timer = null;
// On a phone, and where there are many, the ranks are rows and not columns.
const narrow = matchMedia("(max-width: 40rem)");
const MODES = ["predict", "look", "break"];

function element(name, parent, properties = {}) {
  return parent.appendChild(Object.assign(document.createElement(name), properties));
}

// What a rank holds is null, a list of numbers, or a list of pieces.
const pieces = held => held === null ? null : held.length && Array.isArray(held[0]) ? held : [held];
const flat = held => (pieces(held) || []).flat();
const isEmpty = value => value === -1;

const ranksOf = origin => range(0, 7).filter(rank => origin >> rank & 1);

// One rank's number has its colour; a number of several has a stripe of each.
function paint(box, origin) {
  const ranks = ranksOf(origin), colour = ranks.map(rank => RANKS.colours[rank]);
  const cell = box.closest(".cell");
  cell.dataset.ranks = ranks.join(" ");
  if (box.dataset) box.dataset.origin = origin;
  const parts = colour.map((one, i) => `${one} ${100 * i / ranks.length}% ${100 * (i + 1) / ranks.length}%`);
  const stripes = `linear-gradient(to right, ${parts.join(", ")}) bottom / 100% 7px no-repeat, var(--empty)`;
  cell.style.background = ranks.length > 1 ? stripes : colour[0] || "";
  cell.style.color = ranks.length === 1 ? RANKS.inks[ranks[0]] : "";
  cell.classList.toggle("several", ranks.length > 1);
}

function drawCell(parent, value, origin) {
  const cell = element("span", parent, {className: "cell"}), text = element("span", cell, {textContent: value === null || isEmpty(value) ? "" : value});
  if (value !== null && !isEmpty(value)) paint(text, origin); else cell.classList.add("blank");
  return cell;
}

// The ranks side by side: a column each, or a row each on a phone. `draw(piece, rank)` fills it.
function drawRanks(box, count, draw) {
  box.replaceChildren();
  box.style.setProperty("--n", count);
  box.classList.toggle("many", count > 4 || narrow.matches);
  for (let rank = 0; rank < count; rank++) {
    const column = element("div", box, {className: "rank"});
    const name = element("div", column, {className: "name", textContent: fill(TEXT.rank, {rank})});
    name.style.borderColor = RANKS.colours[rank];
    if (has("root") && rank === state.root) element("small", name, {textContent: TEXT.root});
    draw(element("div", column, {className: "pieces"}), rank, column);
  }
}

function drawHeld(box, all, origins, none) {
  drawRanks(box, all.length, (parent, rank) => {
    const found = pieces(all[rank]);
    if (found === null) { element("span", parent, {className: "none", textContent: none}); return; }
    let place = 0;
    for (const numbers of found) {
      const piece = element("div", parent, {className: "piece"});
      if (!numbers.length) element("span", piece, {className: "none", textContent: TEXT.empty});
      for (const value of numbers) {
        const cell = drawCell(piece, value, origins(rank, place++));
        Object.assign(cell.dataset, {value, rank});
      }
    }
  });
}

// Cells to write into, of the same shape as what was recorded.
function drawInputs(all) {
  drawRanks($("after"), all.length, (parent, rank) => {
    const found = pieces(all[rank]);
    if (found === null) { element("span", parent, {className: "none", textContent: TEXT.none}); return; }
    let place = 0;
    for (const numbers of found) {
      const piece = element("div", parent, {className: "piece"});
      if (!numbers.length) element("span", piece, {className: "none", textContent: TEXT.empty});
      for (const _ of numbers) {
        const cell = element("span", piece, {className: "cell"});
        const input = element("input", cell, {inputMode: "numeric", autocomplete: "off", size: 1, ariaLabel: fill(TEXT.cell, {rank, place: place + 1})});
        Object.assign(input.dataset, {rank, place: place++});
        input.addEventListener("input", () => paint(input, 0));
      }
    }
  });
}

function say(texts, kind = "") {
  $("said").className = kind;
  $("said").replaceChildren();
  for (const text of texts) element("p", $("said"), {textContent: text});
}

function options(hole) {
  $(hole).replaceChildren(...CHOICES[hole]().map(value => {
    const name = {splits: TEXT.splitNames[value], length: number(value)}[hole] || value;
    return new Option(name, value, false, value === state[hole]);
  }));
}

function show() {
  play(false);
  for (const hole of Object.keys(CHOICES)) {
    options(hole);
    const label = $(`${hole}-hole`);
    if (label) label.hidden = !has(hole);
  }
  $("arguments").textContent = argumentsOf(state.call);
  $("root-name").textContent = TEXT.rootName[state.call] || "";
  $("length-name").textContent = hasPieces() ? TEXT.lengthOfPiece : TEXT.length;
  for (const mode of MODES) $(`mode-${mode}`).setAttribute("aria-pressed", state.mode === mode);
  showBreaking(); showHeld(); showWay(); showProgram(); showTable(); showScore(); showActions();
  note();
}

// The address, for who copies it; a page that has this one in a frame is told.
function note() {
  history.replaceState(null, "", address());
  if (parent !== self) parent.postMessage({height: document.documentElement.offsetHeight, hash: location.hash}, "*");
}

const number = count => count === 1 ? TEXT.numbers.one : fill(TEXT.numbers.more, {count});

// What the chosen rank may do otherwise.
function showBreaking() {
  $("breaking").hidden = state.mode !== "break";
  $("bad-rank").replaceChildren(...range(0, state.n - 1).map(rank => new Option(fill(TEXT.rank, {rank}), rank, false, rank === state.rank)));
  $("bad").replaceChildren(...changes().map(bad => {
    const [what, value] = bad.split("/"), text = TEXT.broken[what === "root" && state.call === "send" ? "from" : what];
    const name = fill(what === "length" && hasPieces() ? TEXT.broken.lengthOfPiece : text, {value: what === "length" ? number(Number(value)) : value});
    return new Option(name, bad, false, bad === state.bad);
  }));
}

// How a rank ended that has no result, and what it was told.
function drawEnd(box, end, text) {
  box.replaceChildren();
  const told = element("p", box, {className: `end ${end}`, textContent: TEXT.ends[end]});
  if (text !== true) element("code", told, {textContent: " " + text});
}

// A broken run: every rank ended with numbers, an error, its process, or not at all.
function showBroken(found) {
  const right = outcome();
  $("task").textContent = fill(TEXT.task.broken, {torch: RANKS.torch});
  drawHeld($("before"), found.ranks.map(one => one.before), rank => 1 << rank, TEXT.nonePassed);
  drawHeld($("after"), found.ranks.map(one => "after" in one ? one.after : []), (rank, place) => flat(found.ranks[rank].from)[place], TEXT.none);
  let wrong = 0;
  found.ranks.forEach((one, rank) => {
    const box = $("after").children[rank].querySelector(".pieces");
    const end = ["raised", "died", "waits"].find(name => name in one);
    if (end) { drawEnd(box, end, one[end]); return; }
    const should = flat(right.after[rank]);
    if (isUndefined(rank)) return;
    [...box.querySelectorAll(".cell")].forEach((cell, place) => {
      const isWrong = flat(one.after)[place] !== should[place] && place < should.length;
      cell.classList.toggle("wrong", isWrong);
      wrong += isWrong;
    });
  });
  const returned = found.ranks.every(one => "after" in one);
  say([...returned && found.says ? [fill(TEXT.silent, {count: wrong})] : [], found.says ? TEXT.failed : TEXT.harmless], found.says ? "wrong" : "right");
  if (found.says) element("pre", $("said"), {textContent: found.says});
}

function showHeld() {
  const held = state.mode === "break" ? broken(state.bad) : outcome(), guesses = state.mode === "predict" && !held.error;
  judged = false; pick(null);
  say([]);
  document.body.classList.toggle("predicting", Boolean(guesses));
  $("hint").hidden = !guesses;
  $("hint").open = false;
  $("hint-name").textContent = fill(TEXT.hint, {call: state.call});
  $("hint-text").textContent = TEXT.about_call[state.call];
  $("legend").textContent = TEXT.legend;
  if (state.mode === "break") { showBroken(held); return; }
  const adding = has("op") ? TEXT.task.adding[state.op] : "";
  $("task").textContent = guesses ? fill(TEXT.task.predict, {op: adding, together: state.length > 1 ? TEXT.task.together : ""}) : `${TEXT.about_call[state.call]} ${fill(isRecorded() ? TEXT.task.look : TEXT.task.computed, {torch: RANKS.torch})}`;
  const most = Math.max(...[...held.before, ...held.after || []].map(one => flat(one).length));
  document.querySelector(".panels").classList.toggle("wide", state.n > 4 && most > 8);
  drawHeld($("before"), held.before, rank => 1 << rank, TEXT.nonePassed);
  if (held.error) {
    drawHeld($("after"), held.before.map(() => []), () => 0, "");
    for (const box of $("after").querySelectorAll(".pieces")) drawEnd(box, "raised", held.error);
    say([TEXT.raisedAbout[state.op]], "wrong");
  } else if (guesses) drawInputs(held.after);
  else {
    drawHeld($("after"), held.after, (rank, place) => flat(held.from[rank])[place], TEXT.none);
    if (state.call === "reduce") say([TEXT.mistakes.reduce.undefined]);
  }
}

// What stands before the reduction and the root, as in "parts, x".
const argumentsOf = call => /\|\s*dist\.\w+\((.*?)(?:,? (?:op|dst|src)=|\))/.exec(RANKS.calls[call].program)[1] + (has("op") || has("root") && call !== "send" ? "," : "");

const command = () => `${state.mode === "break" ? "collectives diagnose -- " : ""}torchrun --nproc-per-node ${state.n} try_it.py`;

function showProgram() {
  const lesson = RANKS.calls[state.call].lesson, where = document.querySelector("meta[name=lessons]").content;
  $("text").textContent = program();
  $("command").textContent = command();
  Object.assign($("lesson"), {textContent: fill(TEXT.lesson, {lesson}), href: where.replace("{}", lesson)});
}

// Whether the length is that of a piece for each rank.
const hasPieces = () => state.call.includes("scatter") || isAllToAll();

// How a rank of a broken run ended: its numbers, or words.
function endOf(one) {
  const end = ["raised", "died", "waits"].find(name => name in one);
  return end ? [TEXT.ends[end], one[end] === true ? "" : one[end]].join(" ").trim() : one.after;
}

// The same for screen readers: a row for each rank.
function showTable() {
  const found = state.mode === "break" && broken(state.bad), held = found ? {before: found.ranks.map(one => one.before), after: found.ranks.map(endOf)} : outcome();
  const table = $("table"), text = one => one === null ? TEXT.none : (pieces(one) || []).map(piece => piece.join(", ")).join("; ");
  table.replaceChildren();
  table.hidden = !held || state.mode === "break" && !found || state.mode === "predict" || Boolean(held.error);
  if (table.hidden) return;
  element("caption", table, {textContent: TEXT.table});
  const head = element("tr", element("thead", table));
  element("td", head);
  for (const name of [TEXT.before, TEXT.after]) element("th", head, {textContent: name, scope: "col"});
  const body = element("tbody", table);
  held.before.forEach((one, rank) => {
    const line = element("tr", body);
    element("th", line, {textContent: fill(TEXT.rank, {rank}), scope: "row"});
    for (const what of [one, held.after[rank]]) element("td", line, {textContent: typeof what === "string" ? what : text(what)});
  });
}

// What every rank's memory holds after so many steps: the recorded numbers of each message.
function memoryAfter(way, steps) {
  const memory = way.start.map(row => [...row]);
  for (const step of way.steps.slice(0, steps)) for (const [, to, , places, numbers] of step) places.forEach((place, i) => { memory[to][place] = numbers[i]; });
  return memory;
}

const isAllToAll = () => state.call.startsWith("all_to_all");

// The lengths of the pieces in a rank's memory.
function cuts(rank, size) {
  const held = outcome();
  return isAllToAll()
    ? [...held.before[rank], ...pieces(held.after[rank])].map(piece => piece.length)
    : Array(size / state.length).fill(state.length);
}

function showWay() {
  const way = waysHere()[state.way], names = Object.keys(waysHere());
  $("way").hidden = !way || !(state.mode === "look" || state.mode === "predict" && judged);
  if ($("way").hidden) return;
  const last = way.steps.length, step = state.at ? way.steps[state.at - 1] : [];
  $("algorithm").replaceChildren(...names.map(name => new Option(TEXT.algorithmNames[name] || name, name, false, name === state.way)));
  Object.assign($("at"), {max: last, value: state.at});
  $("first").disabled = $("back").disabled = state.at === 0;
  $("last").disabled = $("on").disabled = state.at === last;
  $("play").textContent = timer ? TEXT.pause : TEXT.play;
  $("count").textContent = fill(state.at ? TEXT.count.step : TEXT.count.before, {at: state.at, steps: last});
  const memory = memoryAfter(way, state.at), sent = Array(state.n).fill(0);
  for (const one of way.steps.slice(0, state.at)) for (const [source, to, , places] of one) if (source !== to) sent[source] += 8 * places.length;
  const most = Math.max(...way.steps.flat().reduce((all, [source, to, , places]) => { if (source !== to) all[source] += 8 * places.length; return all; }, Array(state.n).fill(0)), 1);
  drawRanks($("memory"), state.n, (parent, rank, column) => {
    let place = 0;
    cuts(rank, memory[rank].length).forEach((length, i) => {
      if (isAllToAll() && i % state.n === 0) element("small", parent, {className: "soft", textContent: i ? TEXT.received : TEXT.given});
      const piece = element("div", parent, {className: "piece"});
      for (let number = 0; number < length; number++) {
        const [value, origin] = memory[rank][place] || [null, 0];
        drawCell(piece, value, origin).dataset.place = place++;
      }
    });
    const meter = element("div", column, {className: "meter"});
    element("i", meter).style.width = `${100 * sent[rank] / most}%`;
    element("small", meter, {textContent: fill(TEXT.sent, {bytes: sent[rank]})});
  });
  markArrived(step);
  $("messages").replaceChildren();
  for (const [source, to, adds, , numbers] of step) {
    const kind = source === to ? "own" : adds ? "adds" : "copies";
    element("li", $("messages"), {textContent: fill(TEXT.message[kind], {source, to, numbers: numbers.map(one => one[0]).join(", ")})});
  }
}

// A frame around what has arrived, which slides in from its sender.
function markArrived(step) {
  const columns = [...$("memory").children], calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const [source, to, , places] of step) for (const place of places) {
    const cell = columns[to].querySelector(`[data-place="${place}"]`);
    const a = columns[source].getBoundingClientRect(), b = columns[to].getBoundingClientRect();
    cell.classList.add("new");
    if (!calm) cell.animate([{transform: `translate(${a.x - b.x}px, ${a.y - b.y}px)`, opacity: .4}, {transform: "none", opacity: 1}], 350);
  }
}

function go(wishes) { choose({at: 0, ...wishes}); show(); }
function walk(at) { choose({at}); showWay(); note(); }

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => state.at < waysHere()[state.way].steps.length ? walk(state.at + 1) : play(false), 900) : null;
  $("play").textContent = on ? TEXT.pause : TEXT.play;
  $("play").setAttribute("aria-pressed", Boolean(on));
}

function pressedPlay() {
  if (!timer && state.at === waysHere()[state.way].steps.length) walk(0);
  play(!timer);
}

function turnCall(by) {
  const names = CHOICES.call();
  go({call: names[(names.indexOf(state.call) + by + names.length) % names.length]});
}

const steps = () => waysHere()[state.way].steps.length;
const WALKS = {ArrowLeft: () => walk(state.at - 1), ArrowRight: () => walk(state.at + 1), Home: () => walk(0), End: () => walk(steps()), " ": pressedPlay};
const KEYS = {b: () => go({...BREAKABLE, mode: "break"}), c: () => turnCall(1), C: () => turnCall(-1), p: () => go({mode: state.mode === "predict" ? "look" : "predict"})};

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" && event.target.closest("#after input") && !judged) { judge(); return; }
  // Lists, cells, buttons and the program have uses of their own for these keys.
  if (event.target.closest("select, input, button, a, pre")) return;
  const act = KEYS[event.key] || (!$("way").hidden && WALKS[event.key]);
  if (act) { event.preventDefault(); act(); }
});

function start() {
  for (const one of document.querySelectorAll("[data-text]")) one.textContent = TEXT[one.dataset.text];
  for (const one of document.querySelectorAll("[data-label]")) one.ariaLabel = TEXT[one.dataset.label];
  for (const [id, name] of Object.entries(TEXT.stepNames)) $(id).ariaLabel = $(id).title = name;
  document.title = TEXT.title;
  for (const hole of Object.keys(CHOICES)) $(hole).addEventListener("change", () => go({[hole]: $(hole).value}));
  for (const mode of MODES) $(`mode-${mode}`).addEventListener("click", () => go(mode === "break" ? {...BREAKABLE, mode} : {mode}));
  $("bad-rank").addEventListener("change", () => go({rank: $("bad-rank").value}));
  $("bad").addEventListener("change", () => go({bad: $("bad").value}));
  $("algorithm").addEventListener("change", () => { play(false); choose({way: $("algorithm").value, at: 0}); showWay(); note(); });
  $("at").addEventListener("input", () => { play(false); walk($("at").value); });
  for (const [id, key] of [["first", "Home"], ["back", "ArrowLeft"], ["on", "ArrowRight"], ["last", "End"], ["play", " "]]) $(id).addEventListener("click", () => { if (id !== "play") play(false); WALKS[key](); });
  $("judge").addEventListener("click", () => judged ? show() : judge());
  $("same").addEventListener("click", sameEverywhere);
  $("clear").addEventListener("click", clearCells);
  $("next").addEventListener("click", nextCall);
  $("copy").addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents($("text"));
    getSelection().removeAllRanges(); getSelection().addRange(range);
    if (document.execCommand("copy")) { $("copy").textContent = TEXT.copied; setTimeout(() => { $("copy").textContent = TEXT.copy; }, 1500); }
  });
  $("before").addEventListener("pointerdown", startDragging);
  $("after").addEventListener("click", event => {
    const cell = event.target.closest(".cell");
    if (picked && cell && !judged && state.mode === "predict") dropAll(picked, cell);
  });
  document.documentElement.classList.toggle("embedded", self !== top);
  narrow.addEventListener("change", show);
  addEventListener("hashchange", read);
  read();
}

// The address decides; on the first visit without one, the reader predicts.
function read() {
  const wishes = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const first = kept.read() === null;
  if (first) kept.write({predicted: []});
  choose({mode: first && !location.hash ? "predict" : state.mode, ...wishes});
  show();
}

start();
