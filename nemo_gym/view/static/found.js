/* The words of the search, marked in the conversation without touching its elements. */

import { useEffect } from "./dom.js";

const MOST_MARKS = 2000;
const SETTLE = 120; // ms; parts of the conversation are drawn as they are scrolled to

/** Marks the words of a search below an element, for as long as the search is on. */
export function useFoundWords(ref, search) {
  useEffect(() => {
    const words = (search ?? "").match(/[\p{L}\p{N}_]+/gu);
    if (!words || !ref.current || !globalThis.CSS?.highlights) return undefined;
    const pattern = new RegExp(`(?<![\\p{L}\\p{N}_])(?:${words.join("|")})`, "giu");
    let timer = null;
    const mark = () => CSS.highlights.set("found", new Highlight(...rangesOf(ref.current, pattern)));
    const observer = new MutationObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(mark, SETTLE);
    });
    observer.observe(ref.current, { childList: true, subtree: true });
    mark();
    return () => {
      clearTimeout(timer);
      observer.disconnect();
      CSS.highlights.delete("found");
    };
  }, [search]);
}

function rangesOf(root, pattern) {
  const ranges = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && ranges.length < MOST_MARKS) {
    const node = walker.currentNode;
    for (const match of node.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      ranges.push(range);
    }
  }
  return ranges;
}
