"use strict";
// Predict: numbers are dragged or typed into the cells, and judged against those of the call.
const cells = () => [...$("after").querySelectorAll("input")];
let judged = false, picked = null;

// A number that the reader has put into a cell: typed, or added up from what was dragged there.
function said(input) {
  const text = input.value.replace(/\s/g, "");
  return text === "" || text === "?" ? null : text.split("+").reduce((sum, part) => sum + Number(part), 0);
}

// subtle: of a reduce, only the root holds a result. What the others hold is not asked for.
const isUndefined = rank => state.call === "reduce" && rank !== state.root;

function drop(chip, input) {
  const value = Number(chip.dataset.value), before = said(input);
  const joins = has("op") && before !== null && {SUM: before + value, PRODUCT: before * value}[state.op];
  input.value = joins || value;
  paint(input, (joins ? Number(input.dataset.origin) || 0 : 0) | 1 << chip.dataset.rank);
}

// The cells that move together with this one: its piece, also where the pieces lie end to end.
function together(cell) {
  const all = [...cell.parentElement.querySelectorAll(".cell")], first = all.indexOf(cell) - all.indexOf(cell) % state.length;
  return state.call === "all_to_all_single" ? all : all.slice(first, first + state.length);
}

function dropAll(chip, cell) {
  const from = together(chip), to = together(cell), fit = from.length === to.length;
  (fit ? from : [chip]).forEach((one, i) => drop(one, (fit ? to[i] : cell).querySelector("input")));
}

// Why a cell is wrong: a key of TEXT.mistakes; null if it is right.
function mistake(rank, place, answer, held) {
  const own = flat(held.after[rank])[place], before = flat(held.before[rank])[place];
  if (isUndefined(rank)) return answer === null ? null : "undefined";
  if (answer === null) return "empty";
  if (answer === Number(own)) return null;  // a BigInt, if it is large
  if (answer === before) return "kept";
  if (flat(held.after[rank]).includes(answer)) return "place";
  const everywhere = held.after.flatMap((one, peer) => isUndefined(peer) ? [] : flat(one));
  if (everywhere.includes(answer)) return "other";
  return has("op") && isPart(answer, own, held) ? "part" : "value";
}

// Whether it is the number of some ranks: of one, or the sum of several.
function isPart(answer, own, held) {
  return held.before.some(one => flat(one).includes(answer)) || (state.op === "SUM" && answer > 0 && answer < own);
}

function judge() {
  const held = outcome(), kinds = new Map();
  let right = 0;
  judged = true;
  for (const input of cells()) {
    const rank = Number(input.dataset.rank), place = Number(input.dataset.place), answer = said(input);
    const kind = mistake(rank, place, answer, held);
    if (kind === null) right += 1;
    else if (!kinds.has(kind)) kinds.set(kind, {rank, answer, is: flat(held.after[rank])[place]});
    reveal(input, held, rank, place, kind);
  }
  const all = cells().length, texts = [fill(right === all ? TEXT.right.all : TEXT.right.some, {right, all})];
  for (const [kind, {rank, answer, is}] of kinds) {
    const first = kind === "undefined" ? "" : fill(answer === null ? TEXT.wrongEmpty : TEXT.wrongCell, {rank, is, said: answer}) + " ";
    texts.push(first + ((TEXT.mistakes[state.call] || {})[kind] || TEXT.mistakes.any[kind]));
  }
  texts.push(TEXT.about_call[state.call]);
  if (right === all) {
    const known = predicted();
    known.add(state.call);
    kept.write({predicted: [...known]});
    if (known.size === CHOICES.call().length) texts.push(fill(TEXT.done, {all: known.size}));
  }
  say(texts, right === all ? "right" : "wrong");
  showScore(); showActions(); showWay();
}

function reveal(input, held, rank, place, kind) {
  const yours = input.value.trim(), is = flat(held.after[rank])[place];
  input.readOnly = true;
  input.value = is;
  paint(input, flat(held.from[rank])[place]);
  const cell = input.parentElement;
  cell.classList.toggle("wrong", kind !== null);
  cell.classList.toggle("undefined", isUndefined(rank));
  if (kind !== null) element("s", cell, {textContent: yours || "–"});
}

function predicted() {
  const found = (kept.read() || {}).predicted, names = CHOICES.call();
  return new Set((Array.isArray(found) ? found : []).filter(name => names.includes(name)));
}

function showScore() {
  $("score").textContent = fill(TEXT.score, {count: predicted().size, all: CHOICES.call().length});
}

function showActions() {
  const on = state.mode === "predict" && outcome() && !outcome().error;
  $("actions").hidden = !on;
  $("judge").textContent = judged ? TEXT.again : TEXT.judge;
  $("clear").hidden = judged;
  $("same").hidden = judged || new Set(cells().map(one => one.dataset.rank)).size < 2;
  $("next").hidden = !judged;
}

// The next call that was not predicted yet, in a small world.
function nextCall() {
  const names = CHOICES.call(), known = predicted(), from = names.indexOf(state.call) + 1;
  const ordered = [...names.slice(from), ...names.slice(0, from)];
  go({call: ordered.find(name => !known.has(name)) || ordered[0], n: 4, length: 1, mode: "predict"});
}

// The first rank that may be asked for decides what the others get.
function sameEverywhere() {
  const first = cells().filter(one => one.dataset.rank === cells()[0].dataset.rank);
  for (const input of cells()) {
    const model = first[input.dataset.place];
    if (model && input !== model) { input.value = model.value; paint(input, Number(model.dataset.origin) || 0); }
  }
}

function clearCells() { for (const input of cells()) { input.value = ""; paint(input, 0); } }

function pick(chip) {
  if (picked) picked.classList.remove("picked");
  picked = chip === picked ? null : chip;
  if (picked) picked.classList.add("picked");
}

// Pointer events, and not the browser's own dragging, which phones do not have.
function startDragging(event) {
  const chip = event.target.closest("[data-value]");
  if (!chip || state.mode !== "predict" || judged) return;
  event.preventDefault();
  let ghost = null;
  const target = at => { const found = document.elementFromPoint(at.clientX, at.clientY); return found && found.closest("#after .cell"); };
  const move = at => {
    if (!ghost && Math.hypot(at.clientX - event.clientX, at.clientY - event.clientY) < 6) return;
    if (!ghost) {
      ghost = element("div", document.body, {className: "ghost piece"});
      ghost.append(...together(chip).map(one => one.cloneNode(true)));
    }
    Object.assign(ghost.style, {left: `${at.clientX}px`, top: `${at.clientY}px`});
    document.querySelectorAll("#after .over").forEach(one => one.classList.remove("over"));
    const over = target(at);
    if (over) over.classList.add("over");
  };
  const end = at => {
    removeEventListener("pointermove", move); removeEventListener("pointerup", end); removeEventListener("pointercancel", end);
    document.querySelectorAll("#after .over").forEach(one => one.classList.remove("over"));
    if (!ghost) { if (at.type === "pointerup") pick(chip); return; }
    ghost.remove();
    const cell = at.type === "pointerup" && target(at);
    if (cell) dropAll(chip, cell);
  };
  addEventListener("pointermove", move); addEventListener("pointerup", end); addEventListener("pointercancel", end);
}
