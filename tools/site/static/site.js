// The front page offers the lesson that was open last. Only this browser knows which one that was.
const continueReading = () => {
  const button = document.querySelector(".start p"), zh = document.documentElement.lang.startsWith("zh");
  const key = zh ? "collectives-last-zh" : "collectives-last";
  try {  // a browser may keep nothing, or refuse it to a file
    const root = document.documentElement.dataset.content_root;
    if (document.querySelector(".about-page [download]")) {
      const path = location.pathname.slice(new URL(root, location.href).pathname.length);
      localStorage.setItem(key, JSON.stringify({path, title: document.querySelector("h1").firstChild.textContent}));
    }
    const last = JSON.parse(localStorage.getItem(key));
    if (!button || !last || !/^notebooks\/[\w/]+\.html$/.test(last.path)) return;
    const link = button.appendChild(document.createElement("a"));
    link.className = "continue";
    link.href = last.path;
    link.textContent = `${zh ? "接着上次读：" : "Continue where you were: "}${last.title}`;
  } catch (error) { if (!(error instanceof DOMException)) throw error; }
};

// A long table shows only the rows with what its reader types.
const findRows = table => {
  const input = document.createElement("input"), rows = [...table.tBodies[0].rows];
  const text = document.documentElement.lang.startsWith("zh") ? "只看含有这些字的行" : "Only rows with ...";
  Object.assign(input, {type: "search", className: "find-row", placeholder: text, ariaLabel: text});
  input.addEventListener("input", () => {
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(input.value.toLowerCase());
  });
  (table.closest(".pst-scrollable-table-container") || table).before(input);
};

addEventListener("DOMContentLoaded", () => {
  // A screen reader calls the arrows in the list of pages by the page whose subpages they show.
  for (const arrow of document.querySelectorAll("nav summary:has(.toctree-toggle)"))
    arrow.ariaLabel = arrow.closest("li").querySelector("a").textContent;

  // In a long list of pages, this one is in sight.
  const list = document.querySelector(".bd-sidebar-primary"), here = list?.querySelector(".current.active");
  if (here) list.scrollTop = here.offsetTop - list.clientHeight / 2;

  continueReading();
  for (const table of document.querySelectorAll(".bd-article table")) if (table.tBodies[0]?.rows.length > 25) findRows(table);

  // The page in a frame gets the end of this page's address and its colours, and says how high it
  // is and what it shows.
  const frame = document.getElementById("in-frame");
  if (!frame) return;
  const theme = () => frame.contentWindow.postMessage({theme: document.documentElement.dataset.theme}, "*");
  if (location.hash) frame.src = frame.dataset.page + location.hash;
  addEventListener("message", event => {
    if (event.source !== frame.contentWindow) return;
    frame.style.height = `${event.data.height}px`;
    if (event.data.hash && event.data.hash !== location.hash) history.replaceState(null, "", event.data.hash);
  });
  frame.addEventListener("load", theme);
  // The arrow keys of the page in the frame work before the reader has clicked into it.
  addEventListener("keydown", event => {
    if (event.target !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    frame.contentWindow.postMessage({key: event.key}, "*");
  });
  new MutationObserver(theme).observe(document.documentElement, {attributeFilter: ["data-theme"]});
});
