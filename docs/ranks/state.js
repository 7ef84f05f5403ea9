"use strict";
// Where the reader is, and the program of it.
const $ = id => document.getElementById(id);
const state = {call: "all_reduce", op: "SUM", root: 0, n: 4, length: 1, splits: "even", mode: "look", way: "ring", at: 0, rank: 2, bad: "missing"};

// What can be chosen. What was not recorded is computed.
const range = (first, last) => Array.from({length: last - first + 1}, (_, i) => first + i);
const CHOICES = {
  call: () => Object.keys(RANKS.calls),
  op: () => [...RANKS.ops, "BAND", "BOR", "BXOR"],
  root: () => range(0, state.n - 1),
  n: () => range(2, 8),
  length: () => range(1, 5),
  splits: () => Object.keys(RANKS.splits),
};
const has = hole => !["op", "root", "splits"].includes(hole) || RANKS.calls[state.call].holes.includes(hole);

// The name of a state in the data: see State in tools/ranks_program.py.
const keyOf = one => [one.call, one.n, one.length, ...["op", "root", "splits"].map(hole => RANKS.calls[one.call].holes.includes(hole) ? one[hole] : "")].join("/");
const isRecorded = () => keyOf(state) in RANKS.states;
const outcome = () => RANKS.states[keyOf(state)] || computed(state);
const waysHere = () => RANKS.ways[keyOf(state)] || {};

// What one rank may do otherwise than the others, as in "op/MAX": see Change in tools/ranks_program.py. All of it is recorded.
function changes() {
  const found = ["missing"], others = hole => CHOICES[hole]().filter(value => value !== state[hole]);
  for (const hole of ["length", "op", "root"]) if (has(hole)) found.push(...others(hole).map(value => `${hole}/${value}`));
  return found.filter(broken);
}
const brokenKey = (bad = state.bad) => `${keyOf(state)} ${state.rank}/${bad}${bad.includes("/") ? "" : "/"}`;
const broken = bad => BROKEN.broken[brokenKey(bad)];

// What is broken here was recorded in a world of this shape.
const BREAKABLE = {n: 4, length: 4, op: "SUM", root: 0, splits: "even"};

// Take what exists of these wishes, and else the nearest or the first.
function choose(wishes) {
  const root = "root" in wishes ? Number(wishes.root) : state.root;
  const wasLast = state.root === state.n - 1 && state.n > 1 && !("root" in wishes);
  for (const hole of ["call", "op", "splits"]) if (CHOICES[hole]().includes(wishes[hole])) state[hole] = wishes[hole];
  for (const hole of ["n", "length"]) if (CHOICES[hole]().includes(Number(wishes[hole]))) state[hole] = Number(wishes[hole]);
  state.root = wasLast ? state.n - 1 : Math.max(0, Math.min(Math.trunc(root) || 0, state.n - 1));
  if (["predict", "look", "break"].includes(wishes.mode)) state.mode = wishes.mode;
  state.rank = Math.max(0, Math.min(Math.trunc(Number(wishes.rank ?? state.rank)) || 0, state.n - 1));
  if ("bad" in wishes) state.bad = wishes.bad;
  if (!changes().includes(state.bad)) state.bad = changes()[0] || "missing";
  if (state.mode === "break" && !changes().length) state.mode = "look";  // nothing is broken in a world of this shape
  const ways = waysHere(), names = Object.keys(ways);
  if ("way" in wishes) state.way = wishes.way;
  if (!names.includes(state.way)) state.way = names[0] || "";
  const last = state.way ? ways[state.way].steps.length : 0;
  state.at = Math.max(0, Math.min(Math.trunc(Number(wishes.at)) || 0, last));
}

function address() {
  const holes = ["call", "n", "length", "op", "root", "splits"].filter(has), shown = {};
  for (const hole of holes) shown[hole] = state[hole];
  shown.mode = state.mode;
  if (state.mode === "break") Object.assign(shown, {rank: state.rank, bad: state.bad});
  if (state.mode === "look" && state.way) Object.assign(shown, {way: state.way, at: state.at});
  return "#" + new URLSearchParams(shown);
}

// The program of the state: tools/ranks_program.py fills the same holes.
function program() {
  const holes = {n: state.n, length: state.length, op: `dist.ReduceOp.${state.op}`, root: state.root, splits: RANKS.splits[state.splits]};
  const [what, value] = state.mode === "break" ? state.bad.split("/") : [];
  if (what in holes) holes[what] = `${what === "op" ? "dist.ReduceOp." : ""}${value} if rank == ${state.rank} else ${holes[what]}`;
  const [before, indent] = what === "missing" ? [`if rank != ${state.rank}:\n`, "    "] : ["", ""];
  return RANKS.calls[state.call].program.replace(/\{\{(\w+)\}\}/g, (_, hole) => holes[hole])
    .replace("\n|", `\n${before}|`).replaceAll("\n|", `\n${indent}`);
}

// What the browser keeps: which calls were predicted. It may forbid to keep anything.
const kept = {
  read() { try { return JSON.parse(localStorage.getItem("ranks")) || null; } catch { return null; } },
  write(value) { try { localStorage.setItem("ranks", JSON.stringify(value)); } catch { /* not kept */ } },
};
