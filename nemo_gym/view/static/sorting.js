/* The order of values in a page without a server: that of the server's index. */

import { strip } from "./shared.js";

/** Texts by code point, as the index compares them; JavaScript's own order is by halves of code points. */
export function compareText(left, right) {
  const shorter = Math.min(left.length, right.length);
  let at = 0;
  while (at < shorter && left[at] === right[at]) at += 1;
  if (at === shorter) return left.length - right.length;
  return left.codePointAt(at) - right.codePointAt(at);
}

/** True and false are 1 and 0, as they are in the index; what is not there is null. */
export function plainValue(value) {
  return typeof value === "boolean" ? Number(value) : (value ?? null);
}

/** Compares by several keys in turn, each `{ valueOf, sign }`: numbers before texts, and what is missing always last. */
export function orderBy(keys) {
  return (left, right) => {
    for (const { valueOf, sign } of keys) {
      const [one, other] = [plainValue(valueOf(left)), plainValue(valueOf(right))];
      if (one === other) continue;
      if (one === null || other === null) return one === null ? 1 : -1;
      if (typeof one !== typeof other) return (typeof one === "string" ? 1 : -1) * sign;
      const order = typeof one === "string" ? compareText(one, other) : one - other;
      if (order) return order * sign;
    }
    return 0;
  };
}

/** The keys that a text such as `reward,-tokens` names; only known columns can be sorted by. */
export function sortKeys(text, known, valueOf) {
  return text
    .split(",")
    .map((part) => strip(part))
    .filter(Boolean)
    .map((part) => {
      const name = part.replace(/^-/, "");
      if (!known.includes(name)) throw new Error(`can't sort by '${name}': no such column`);
      return { valueOf: (row) => valueOf(row, name), sign: part.startsWith("-") ? -1 : 1 };
    });
}
