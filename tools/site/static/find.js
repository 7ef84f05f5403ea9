// What the search finds, in which order, and what it shows of it. Sphinx's own search wants every
// word of a question on one page, and takes what surrounds the words from a server.
//
// Here a word counts more the fewer pages have it, and more in the title of a page, in a heading, or
// in what others call its subject than in its text. Of two pages the lesson comes first.
{
const WORTH = {title: 5, also: 4, heading: 2, text: 1, part: 0.4};
const KINDS = [
  [/^notebooks\//, 1.25], [/^(exercises|groups|chapters)\//, 0.8],
  [/^(docs\/(glossary|contents|exercises)|README|CONTRIBUTING|records\/.*)$/, 0.6],
  [/^(docs\/api|CHANGELOG|SECURITY)$/, 0.4],
];
const MOST = 40;

const stemmer = new Stemmer();
const stems = text => splitQuery(text.toLowerCase()).filter(word => !stopwords.has(word))
  .map(word => stemmer.stemWord(word));
const numbers = found => found === undefined ? [] : [].concat(found);
const kind = name => (KINDS.find(([pattern]) => pattern.test(name)) || [, 1])[1];

const find = query => {
  const {docnames, titles, alltitles, terms, titleterms} = Search._index;
  const words = [...new Set(stems(query))];
  const sizes = docnames.map(() => 0);
  for (const found of Object.values(terms)) for (const page of numbers(found)) sizes[page]++;
  const usual = sizes.reduce((sum, size) => sum + size, 0) / sizes.length;

  const inTitle = titles.map(title => new Set(stems(`${title} ${title.replaceAll("_", " ")}`)));
  const also = docnames.map(name => new Set(stems(PAGES[name]?.also || "")));
  const rarity = new Map(), points = docnames.map(() => 0), shares = docnames.map(() => 0);
  for (const word of words) {
    // Object.hasOwn, because "constructor" is a word, too
    const text = new Map(numbers(Object.hasOwn(terms, word) ? terms[word] : []).map(page => [page, WORTH.text]));
    if (!text.size && word.length > 3)
      for (const term of Object.keys(terms).filter(term => term.startsWith(word)))
        for (const page of numbers(terms[term])) text.set(page, WORTH.part);
    const heading = new Set(numbers(Object.hasOwn(titleterms, word) ? titleterms[word] : []));
    const has = docnames.map((_, page) =>
      inTitle[page].has(word) ? WORTH.title : also[page].has(word) ? WORTH.also
      : heading.has(page) ? WORTH.heading
      : (text.get(page) || 0) / (0.6 + 0.4 * sizes[page] / usual));
    const pages = has.filter(worth => worth).length;
    if (!pages) continue;
    rarity.set(word, Math.log(1 + docnames.length / pages));
    has.forEach((worth, page) => {
      points[page] += worth * rarity.get(word);
      if (worth) shares[page] += rarity.get(word);
    });
  }
  const all = [...rarity.values()].reduce((sum, one) => sum + one, 0);
  const share = text => stems(text).reduce((sum, word) => sum + (rarity.get(word) || 0), 0) / all;
  // What has most of the question in one heading is about it.
  const sections = titles.map(title => ({share: share(title.replaceAll("_", " "))}));
  for (const [heading, places] of Object.entries(alltitles))
    for (const [page, id] of places)
      if (share(heading) > sections[page].share) sections[page] = {share: share(heading), heading, id};
  return docnames
    .map((name, page) => {
      const section = sections[page].share > 0.7 ? sections[page] : null;
      const score = points[page] * (shares[page] / all) ** 1.5 * (section ? 2 : 1) * kind(name);
      return {name, title: titles[page], section, score};
    })
    .filter(page => page.score > 0)
    .sort((one, other) => other.score - one.score || one.title.localeCompare(other.title));
};

const shown = page => {
  const item = document.createElement("li");
  const link = item.appendChild(document.createElement("a"));
  const {heading, id} = page.section || {};
  link.setAttribute("href", `${page.name}${DOCUMENTATION_OPTIONS.LINK_SUFFIX}${id ? `#${id}` : ""}`);
  link.textContent = heading ? `${page.title} > ${heading}` : page.title;
  const about = item.appendChild(document.createElement("p"));
  about.className = "context";
  about.textContent = PAGES[page.name]?.about || "";
  return item;
};

Search.query = query => {
  const found = find(query);
  // The names of the API come last: who searches for all_reduce wants its lesson.
  const names = splitQuery(query.toLowerCase()).flatMap(word => Search.performObjectSearch(word, new Set([word])))
    .filter(([, name]) => name.toLowerCase().split(".").at(-1) === query.toLowerCase().trim())
    .map(([name, title, anchor]) => ({name, title, section: {heading: "API", id: anchor.slice(1)}}));
  Search.output.replaceChildren(...[...found.slice(0, MOST), ...names].map(shown));
  _finishSearch(found.length + names.length);
};
}
