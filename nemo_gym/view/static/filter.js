/* The filter language for pages without a server: text in, predicate over the values of a row out. It means what
`nemo_gym/filters` means by it, and a test compares the two, up to the digits of a number: whole numbers beyond 2 ** 53
are rounded here. Parsed, never evaluated.

    filter      ::=  both ("or" both)*
    both        ::=  term ("and" term)*
    term        ::=  "not" term | "(" filter ")" | comparison
    comparison  ::=  value operator value [operator value]  |  value ["not"] "contains" value
                  |  value ["not"] "in" "[" literal ("," literal)* "]"  |  value "is" ["not"] "null"
*/

import { BLANK, SHARED, plainText, strip } from "./shared.js";
import { compareText, plainValue } from "./sorting.js";

const LANGUAGE = SHARED.filter;
const SPACE = new RegExp(`${BLANK}*`, "y");
const FILTER_TOKEN =
  /([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\p{L}\p{N}_.])|("(?:[^"\\]|\\[^])*"|'(?:[^'\\]|\\[^])*')|`([^`]+)`|((?!\p{Nd})[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*)|(==|!=|<=|>=|<|>|\(|\)|\[|\]|,)/uy;

/** A filter that can't be read: what was expected, and at which character. */
class FilterError extends Error {
  constructor(message, position, hint = null) {
    super(`filter: ${message} (character ${position + 1})`);
    this.position = position;
    this.hint = hint;
  }
}

/** A predicate over the values of a row; an empty filter lets everything pass. */
export function compileFilter(text, names) {
  const { longest } = LANGUAGE;
  if ([...text].length > longest) throw new FilterError(`longer than ${longest} characters`, longest);
  if (!strip(text)) return () => true;
  return new FilterParser(filterTokens(text), names).whole();
}

/** The tokens, each with its position in characters; JavaScript itself counts those beyond 2 ** 16 twice. */
function filterTokens(text) {
  const tokens = [];
  let [place, at] = [0, 0];
  const skip = (pattern) => {
    pattern.lastIndex = place;
    const match = pattern.exec(text);
    if (match) [place, at] = [pattern.lastIndex, at + [...match[0]].length];
    return match;
  };
  for (skip(SPACE); place < text.length; skip(SPACE)) {
    const start = at;
    const match = skip(FILTER_TOKEN);
    if (!match) throw unreadableFilter(text.slice(place), at);
    tokens.push({ ...filterToken(match), at: start });
  }
  return [...tokens, { kind: "end", text: "the end", at }];
}

function filterToken([, number, quoted, odd, name, sign]) {
  if (number !== undefined) return { kind: "literal", text: number, value: Number(number) };
  if (quoted !== undefined) {
    const value = quoted.slice(1, -1).replace(/\\([^])/gu, (_, letter) => LANGUAGE.escapes[letter] ?? letter);
    return { kind: "literal", text: quoted, value: plainText(value) };
  }
  if (odd !== undefined) return { kind: "name", text: plainText(odd) };
  if (sign !== undefined) return { kind: "sign", text: sign };
  const word = name.toLowerCase();
  if (Object.hasOwn(LANGUAGE.constants, word)) return { kind: "literal", text: name, value: LANGUAGE.constants[word] };
  return LANGUAGE.words.includes(word) ? { kind: "word", text: word } : { kind: "name", text: name };
}

function unreadableFilter(rest, at) {
  const [first] = rest;
  const { foreign, hints } = LANGUAGE;
  if ("\"'`".includes(first)) return new FilterError(`the ${first} is never closed`, at, hints.close);
  for (const [sign, ours] of Object.entries(foreign)) {
    if (rest.startsWith(sign)) return new FilterError(`'${sign}' is not an operator here`, at, `write ${ours}`);
  }
  if (/\p{Nd}/u.test(first)) return new FilterError("not a number", at, hints.number);
  return new FilterError(`unexpected '${first}'`, at, hints.known);
}

class FilterParser {
  constructor(tokens, names) {
    Object.assign(this, { tokens, names, place: 0, depth: 0, terms: 0, columns: [] });
  }

  get next() {
    return this.tokens[this.place];
  }

  took(...texts) {
    const found = (this.next.kind === "word" || this.next.kind === "sign") && texts.includes(this.next.text);
    if (found) this.place += 1;
    return found ? this.tokens[this.place - 1].text : null;
  }

  expected(wanted, hint = null) {
    const found = this.next.kind === "end" ? "the end" : `'${this.next.text}'`;
    return new FilterError(`expected ${wanted}, found ${found}`, this.next.at, hint);
  }

  whole() {
    const test = this.either();
    if (this.next.kind !== "end") throw this.expected("'and', 'or' or the end");
    const unknown = this.columns.find(({ name }) => !this.names.includes(name));
    if (unknown) {
      const near = this.names.find((known) => known.startsWith(unknown.name.slice(0, 3)));
      throw new FilterError(`no column '${unknown.name}'`, unknown.at, near ? `did you mean ${near}?` : null);
    }
    return test;
  }

  either() {
    const tests = [this.all()];
    while (this.took("or")) tests.push(this.all());
    return (row) => tests.some((test) => test(row));
  }

  all() {
    const tests = [this.term()];
    while (this.took("and")) tests.push(this.term());
    return (row) => tests.every((test) => test(row));
  }

  term() {
    this.depth += 1;
    if (this.depth > LANGUAGE.deepest)
      throw new FilterError(`nested more than ${LANGUAGE.deepest} levels deep`, this.next.at);
    let test;
    if (this.took("not")) test = opposite(this.term());
    else if (this.took("(")) {
      test = this.either();
      if (!this.took(")")) throw this.expected("')'");
    } else test = this.comparison();
    this.depth -= 1;
    return test;
  }

  /** Refuses more comparisons, or values of lists, than the limit allows. */
  limit(what) {
    if (this.terms > LANGUAGE.most_terms)
      throw new FilterError(`more than ${LANGUAGE.most_terms} ${what}`, this.next.at);
  }

  comparison() {
    this.terms += 1;
    this.limit("comparisons");
    const left = this.operand();
    if (this.took("is")) return this.nullTest(left);
    const negated = this.took("not");
    const test = this.wordComparison(left);
    if (test) return negated ? opposite(test) : test;
    if (negated) throw this.expected("'in' or 'contains'");
    const sign = this.took(...Object.keys(COMPARE));
    if (!sign) throw this.expected("a comparison", LANGUAGE.hints.compare);
    const middle = this.operand();
    const first = (row) => COMPARE[sign](left(row), middle(row));
    const second = this.took(...Object.keys(COMPARE));
    if (!second) return first;
    const right = this.operand();
    return (row) => first(row) && COMPARE[second](middle(row), right(row));
  }

  nullTest(left) {
    const negated = Boolean(this.took("not"));
    if (this.next.kind !== "literal" || this.next.value !== null) throw this.expected("null");
    this.place += 1;
    return (row) => (left(row) === null) !== negated;
  }

  wordComparison(left) {
    if (this.took("contains")) {
      const part = this.operand();
      return (row) => containsText(left(row), part(row));
    }
    if (!this.took("in")) return null;
    if (!this.took("[")) throw this.expected("'['");
    const choices = [this.constant()];
    while (this.took(",")) {
      choices.push(this.constant());
      this.terms += 1;
    }
    if (!this.took("]")) throw this.expected("']'");
    this.limit("values");
    return (row) => choices.some((choice) => plainValue(choice) === left(row));
  }

  operand() {
    if (this.next.kind !== "name") {
      const value = plainValue(this.constant("a column or a value"));
      return () => value;
    }
    const { text: name, at } = this.next;
    this.columns.push({ name, at });
    this.place += 1;
    return (values) => (Object.hasOwn(values, name) ? plainValue(values[name]) : null);
  }

  constant(wanted = "a value") {
    if (this.next.kind !== "literal")
      throw this.expected(wanted, LANGUAGE.hints[this.next.kind === "name" ? "quotes" : "value"]);
    this.place += 1;
    return this.tokens[this.place - 1].value;
  }
}

function opposite(test) {
  return (row) => !test(row);
}

function containsText(text, part) {
  return typeof text === "string" && typeof part === "string" && plainCase(text).includes(plainCase(part));
}

/** Only the case of a to z is ignored, as in the index. */
function plainCase(text) {
  return text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

function ordered(holds) {
  return (left, right) => {
    if (left === null || right === null || typeof left !== typeof right) return false;
    return holds(typeof left === "string" ? compareText(left, right) : left - right);
  };
}

const COMPARE = {
  "==": (left, right) => left === right,
  "!=": (left, right) => left !== right,
  "<": ordered((order) => order < 0),
  "<=": ordered((order) => order <= 0),
  ">": ordered((order) => order > 0),
  ">=": ordered((order) => order >= 0),
};
