/* What the page and the program must agree on: constants that Python wrote into the page (`nemo_gym/view/page.py`), and
what Python means by blanks and by plain text. */

export const SHARED = JSON.parse(document.getElementById("rollout-gym-shared").textContent);
export const BLANK = `[${SHARED.blanks}]`;
const OUTER_BLANKS = new RegExp(`^${BLANK}+|${BLANK}+$`, "g");

export function strip(text) {
  return text.replace(OUTER_BLANKS, "");
}

/** Text as the index stores it: without NUL and lone surrogates. */
export function plainText(text) {
  return text.replaceAll("\0", "\ufffd").replace(/\p{Cs}/gu, "?");
}
