"use strict";
// What every rank holds in a case that nobody has recorded: what the call promises. tests/docs compares it
// with all that was recorded.
const REDUCED = {
  SUM: numbers => numbers.reduce((sum, one) => sum + one),
  PRODUCT: numbers => numbers.reduce((product, one) => product * one),
  MIN: numbers => numbers.reduce((least, one) => one < least ? one : least),
  MAX: numbers => numbers.reduce((most, one) => one > most ? one : most),
  BAND: numbers => numbers.reduce((bits, one) => bits & one),
  BOR: numbers => numbers.reduce((bits, one) => bits | one),
  BXOR: numbers => numbers.reduce((bits, one) => bits ^ one),
};

// As int64 computes it, which forgets what does not fit into 64 bits. A number that JavaScript does not have stays a BigInt.
function reduced(op, numbers) {
  const exact = BigInt.asIntN(64, REDUCED[op](numbers.map(BigInt)));
  return Number.isSafeInteger(Number(exact)) ? Number(exact) : exact;
}

function computed({call, n, length, op, root, splits}) {
  const all = range(0, n - 1), places = range(1, length), everyone = 2 ** n - 1;
  const digits = (rank, first = 0) => places.map(place => (first + place) * 10 ** rank);
  const tens = rank => places.map(place => 10 * rank + place);
  const of = (rank, held) => held.map(() => 1 << rank);
  const madeOf = () => op === "MIN" ? 1 : op === "MAX" ? 1 << n - 1 : everyone;
  // Of each rank: what it holds before and after, and whose numbers these are.
  const cases = {
    all_reduce: () => reduction(all.map(rank => digits(rank)), () => 0, () => true),
    reduce: () => reduction(all.map(rank => digits(rank)), () => 0, rank => rank === root),
    reduce_scatter: () => reduction(all.map(rank => all.map(piece => digits(rank, piece * length))), rank => rank * length, () => true),
    reduce_scatter_single: () => reduction(all.map(rank => all.flatMap(piece => digits(rank, piece * length))), rank => rank * length, () => true),
    broadcast: () => moved(all.map(tens), () => tens(root), () => of(root, places)),
    gather: () => moved(all.map(tens), rank => rank === root ? all.map(tens) : null, rank => rank === root ? all.map(one => of(one, places)) : null),
    all_gather: () => moved(all.map(tens), () => all.map(tens), () => all.map(one => of(one, places))),
    all_gather_single: () => moved(all.map(tens), () => all.flatMap(tens), () => all.flatMap(one => of(one, places))),
    scatter: () => moved(all.map(rank => rank === root ? all.map(tens) : null), tens, () => of(root, places)),
    all_to_all: () => exchanged(() => length),
    all_to_all_single: () => exchanged({
      even: () => length,
      triangle: (from, to) => length * (to <= from),
      popular: (from, to) => to === 0 ? length + 1 : 1,
      neighbour: (from, to) => length * (to === (from + 1) % n),
    }[splits]),
    send: () => moved(all.map(tens), rank => tens(rank === (root + 1) % n ? root : rank), rank => of(rank === (root + 1) % n ? root : rank, places)),
  };

  function moved(before, after, from) {
    return {before, after: all.map(after), from: all.map(from)};
  }

  function reduction(before, first, gets) {
    if (op === "AVG") return {before, error: refusal(call)};
    const columns = rank => places.map((_, place) => before.map(held => flat(held)[first(rank) + place]));
    return moved(before, rank => gets(rank) ? columns(rank).map(numbers => reduced(op, numbers)) : null, rank => gets(rank) ? places.map(madeOf) : null);
  }

  function exchanged(count) {
    const piece = (from, to) => range(1, count(from, to)).map(place => 100 * from + 10 * to + place);
    return moved(all.map(from => all.map(to => piece(from, to))), to => all.map(from => piece(from, to)), to => all.map(from => of(from, piece(from, to))));
  }

  return cases[call]();
}

// gloo refuses the mean of whole numbers in every world in which that was recorded.
const refusal = call => Object.entries(RANKS.states).find(([key, one]) => key.startsWith(`${call}/`) && one.error)[1].error;
