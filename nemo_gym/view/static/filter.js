/* The filter language for pages without a server: text in, predicate over the values of a row out. It means what
`nemo_gym/filters` means by it, and a test compares the two. Parsed, never evaluated.

    filter      ::=  both ("or" both)*
    both        ::=  term ("and" term)*
    term        ::=  "not" term | "(" filter ")" | comparison
    comparison  ::=  value operator value [operator value]  |  value ["not"] "contains" value
                  |  value ["not"] "in" "[" literal ("," literal)* "]"  |  value "is" ["not"] "null"
*/

import { compareText, plainValue } from "./sorting.js";

const FILTER_TOKEN =
  /\s*(?:([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|("(?:[^"\\]|\\[\s\S])*"|'(?:[^'\\]|\\[\s\S])*')|`([^`]+)`|((?!\d)[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*)|(==|!=|<=|>=|<|>|\(|\)|\[|\]|,))/uy;
const FILTER_CONSTANTS = { true: true, false: false, null: null };
const FILTER_WORDS = new Set(["and", "or", "not", "in", "contains", "is"]);
const FILTER_LONGEST = 4000; // characters
const FILTER_DEEPEST = 40;
const FILTER_MOST = 300; // comparisons
const FOREIGN_SIGNS = { "&&": "and", "||": "or", "<>": "!=", "=~": "contains", "=": "==", "!": "not" };

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
  if (text.length > FILTER_LONGEST) throw new FilterError(`longer than ${FILTER_LONGEST} characters`, FILTER_LONGEST);
  if (!text.trim()) return () => true;
  return new FilterParser(filterTokens(text), names).whole();
}

function filterTokens(text) {
  const tokens = [];
  const end = text.trimEnd().length;
  FILTER_TOKEN.lastIndex = 0;
  let place = 0;
  while (place < end) {
    FILTER_TOKEN.lastIndex = place;
    const match = FILTER_TOKEN.exec(text);
    const at = place + /^\s*/.exec(text.slice(place))[0].length;
    if (!match) throw unreadableFilter(text, at);
    place = FILTER_TOKEN.lastIndex;
    tokens.push({ ...filterToken(match), at });
  }
  return [...tokens, { kind: "end", text: "the end", at: text.length }];
}

function filterToken([, number, quoted, odd, name, sign]) {
  if (number !== undefined) return { kind: "literal", text: number, value: Number(number) };
  if (quoted !== undefined) {
    const value = quoted.slice(1, -1).replace(/\\([\s\S])/g, (_, letter) => ({ n: "\n", t: "\t" })[letter] ?? letter);
    return { kind: "literal", text: quoted, value };
  }
  if (odd !== undefined) return { kind: "name", text: odd };
  if (sign !== undefined) return { kind: "sign", text: sign };
  const word = name.toLowerCase();
  if (Object.hasOwn(FILTER_CONSTANTS, word)) return { kind: "literal", text: name, value: FILTER_CONSTANTS[word] };
  return FILTER_WORDS.has(word) ? { kind: "word", text: word } : { kind: "name", text: name };
}

function unreadableFilter(text, at) {
  if ("\"'`".includes(text[at]))
    return new FilterError(`the ${text[at]} is never closed`, at, "close it with the same sign");
  for (const [sign, ours] of Object.entries(FOREIGN_SIGNS)) {
    if (text.startsWith(sign, at)) return new FilterError(`'${sign}' is not known here`, at, `write ${ours}`);
  }
  if (/\p{Nd}/u.test(text[at]))
    return new FilterError("not a number", at, "texts need quotes, unusual names `backquotes`");
  return new FilterError(`unexpected '${text[at]}'`, at, "comparisons are != < <= == > >= contains in is");
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
    if (this.depth > FILTER_DEEPEST) throw new FilterError(`nested more than ${FILTER_DEEPEST} deep`, this.next.at);
    let test;
    if (this.took("not")) test = opposite(this.term());
    else if (this.took("(")) {
      test = this.either();
      if (!this.took(")")) throw this.expected("')'");
    } else test = this.comparison();
    this.depth -= 1;
    return test;
  }

  /** Counts a comparison or a value of a list against the limit. */
  count() {
    this.terms += 1;
    if (this.terms > FILTER_MOST) throw new FilterError(`more than ${FILTER_MOST} comparisons`, this.next.at);
  }

  comparison() {
    this.count();
    const left = this.operand();
    if (this.took("is")) return this.nullTest(left);
    const negated = this.took("not");
    const test = this.wordComparison(left);
    if (test) return negated ? opposite(test) : test;
    if (negated) throw this.expected("'in' or 'contains'");
    const sign = this.took(...Object.keys(COMPARE));
    if (!sign)
      throw this.expected("a comparison", 'compare it with a value: reward < 0.5, agent == "name", failure is null');
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
      this.count();
    }
    if (!this.took("]")) throw this.expected("']'");
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
    return (values) => plainValue(values[name]);
  }

  constant(wanted = "a value") {
    if (this.next.kind !== "literal")
      throw this.expected(wanted, this.next.kind === "name" ? "texts need quotes" : null);
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
