// The page in a frame gets the end of this page's address and its colours, and says how high it is
// and what it shows.
addEventListener("DOMContentLoaded", () => {
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
  new MutationObserver(theme).observe(document.documentElement, {attributeFilter: ["data-theme"]});
});
