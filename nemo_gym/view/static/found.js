/* What a search found, marked in the conversation without touching its elements. */

import { useEffect } from "./dom.js";
import { searchPlaces } from "./search.js";

const MOST_MARKS = 2000;
const SETTLE = 120; // ms; parts of the conversation are drawn as they are scrolled to
const BLOCK = ":not(a, b, code, del, em, i, mark, s, span, strong, sub, sup)"; // elements that end a word

/** Marks what a search finds below an element, for as long as the search is on. */
export function useFoundMarks(ref, search) {
  useEffect(() => {
    if (!search || !ref.current || !globalThis.CSS?.highlights) return undefined;
    const placesIn = searchPlaces(search);
    let timer = null;
    const mark = () => CSS.highlights.set("found", new Highlight(...rangesOf(ref.current, placesIn)));
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

function rangesOf(root, placesIn) {
  const { text, nodes } = textBelow(root);
  const ranges = [];
  for (const matches of placesIn(text)) {
    let place = 0;
    const nodeOf = (at) => {
      while (nodes[place].start + nodes[place].node.length <= at) place += 1;
      return nodes[place];
    };
    for (const match of matches) {
      if (ranges.length >= MOST_MARKS) return ranges;
      const range = new Range();
      const first = nodeOf(match.index);
      const last = nodeOf(match.index + match[0].length - 1);
      range.setStart(first.node, match.index - first.start);
      range.setEnd(last.node, match.index + match[0].length - last.start);
      ranges.push(range);
    }
  }
  return ranges;
}

/** All text below an element, and where each of its text nodes begins in it. */
function textBelow(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const [pieces, nodes] = [[], []];
  let [start, last] = [0, null];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const block = node.parentElement.closest(BLOCK);
    if (block !== last && nodes.length) {
      pieces.push("\n");
      start += 1;
    }
    last = block;
    nodes.push({ node, start });
    pieces.push(node.data);
    start += node.length;
  }
  return { text: pieces.join(""), nodes };
}
