/* Code in a few quiet colours: comments, strings, numbers and keywords that most languages share. Works on text only. */

const HASH_COMMENTS = /^(?:py|python|sh|bash|shell|zsh|yaml|yml|toml|ruby|rb|r|perl|make|dockerfile)/i;
const NO_COLOURS = /^(?:te?xt|plain|output|console|markdown|md|diff|log)?$/i;
const KEYWORDS = new Set(
  (
    "and as assert async await break case catch class const continue def default del do elif else enum except export extends " +
    "false False finally fn for from func function if impl import in interface is lambda let match mut new nil none None not " +
    "null or package pass pub raise return self static struct super switch this throw trait true True try type use using var " +
    "void while with yield select where group order by insert update delete create table join on into values"
  ).split(" "),
);
const SLASHES =
  /(\/\/[^\n]*|\/\*[\s\S]*?\*\/)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;
const HASHES =
  /(#[^\n]*)|("""[\s\S]*?"""|'''[\s\S]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;
const PAINT_LONGEST = 40000;

/** Replace the text of a code element by coloured pieces of the same text. */
export function paintCode(element, language) {
  const text = element.textContent;
  if (NO_COLOURS.test(language) || text.length > PAINT_LONGEST) return;
  const pattern = HASH_COMMENTS.test(language) ? HASHES : SLASHES;
  const pieces = [];
  let done = 0;
  for (const match of text.matchAll(pattern)) {
    const kind = match[1]
      ? "comment"
      : match[2]
        ? "string"
        : match[3]
          ? "number"
          : KEYWORDS.has(match[0])
            ? "keyword"
            : null;
    if (!kind) continue;
    const piece = document.createElement("span");
    piece.className = `code-${kind}`;
    piece.textContent = match[0];
    pieces.push(text.slice(done, match.index), piece);
    done = match.index + match[0].length;
  }
  element.replaceChildren(...pieces, text.slice(done));
}
