// Pages come before the names of the API: who searches for all_reduce wants its lesson.
var Scorer = {
  objNameMatch: 3, objPartialMatch: 1, objPrio: {}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
