/* The filter and search boxes. A filter is validated before it is applied; an error is shown where it occurs. */

import { html, useEffect, useRef, useState } from "./dom.js";
import { clean } from "./format.js";
import { goTo } from "./place.js";

const IDLE = 650; // ms without a key before the text is applied

export function FilterBar({ source, place, columns }) {
  const [error, setError] = useState(null);
  const latest = useRef(null);
  const commit = async (filter) => {
    latest.current = filter;
    if (filter === (place.filter ?? "")) return setError(null);
    try {
      await source.rollouts({ filter, offset: 0, limit: 1 });
    } catch (problem) {
      return latest.current === filter ? setError({ problem, filter }) : undefined;
    }
    // The answer to an earlier filter may come after that to a later one.
    if (latest.current !== filter) return undefined;
    setError(null);
    return goTo({ filter: filter || null }, { replace: Boolean(place.filter) });
  };
  return html`<div class="filter-bar" role="search">
    <div class="filter-cell">
      <${Box}
        name="filter"
        label="Filter"
        value=${place.filter ?? ""}
        onCommit=${commit}
        invalid=${Boolean(error)}
        placeholder="reward < 0.5 and tool_calls > 3"
        hint="/"
        columns=${columns}
      />
      ${error && html`<${FilterProblem} ...${error} />`}
    </div>
    <${Box}
      name="search"
      label="Search"
      value=${place.search ?? ""}
      onCommit=${(search) => goTo({ search: search || null }, { replace: Boolean(place.search) })}
      placeholder="words in prompts, answers, tool output"
      hint="s"
    />
  </div>`;
}

function Box({ name, label, value, onCommit, invalid, placeholder, hint, columns }) {
  const [text, setText] = useState(value);
  const [focused, setFocused] = useState(false);
  const timer = useRef();
  const input = useRef();
  const committed = useRef(value);
  useEffect(() => {
    // What the box itself asked for is already in it, perhaps with more that was typed meanwhile.
    if (value === committed.current) return;
    clearTimeout(timer.current);
    committed.current = value;
    setText(value);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const now = (next) => {
    clearTimeout(timer.current);
    committed.current = next.trim();
    onCommit(committed.current);
  };
  const change = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => now(next), IDLE);
  };
  const offers = columns && focused ? offersFor(text, input.current?.selectionStart ?? text.length, columns) : [];
  const accept = (offer) => {
    change(text.slice(0, offer.from) + offer.name + text.slice(offer.to));
    input.current.focus();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter") now(text);
    else if (event.key === "Escape") input.current.blur();
    else if (event.key === "Tab" && offers.length && !event.shiftKey) {
      event.preventDefault();
      accept(offers[0]);
    }
  };
  return html`<label class=${`box ${name} ${invalid ? "invalid" : ""}`}>
    <span class="box-label">${label}</span>
    <input
      ref=${input}
      id=${`${name}-box`}
      type="text"
      value=${text}
      placeholder=${placeholder}
      spellcheck=${false}
      autocomplete="off"
      autocapitalize="off"
      aria-invalid=${Boolean(invalid)}
      aria-describedby=${invalid ? "filter-problem" : undefined}
      onInput=${(event) => change(event.target.value)}
      onKeyDown=${onKeyDown}
      onFocus=${() => setFocused(true)}
      onBlur=${() => setTimeout(() => setFocused(false), 150)}
    />
    ${
      text
        ? html`<button
            class="clear"
            aria-label=${`clear the ${name}`}
            onClick=${() => {
              setText("");
              now("");
            }}
          >
            ×
          </button>`
        : html`<kbd>${hint}</kbd>`
    }
    ${
      offers.length > 0 &&
      html`<span class="offers"
        >${offers.map(
          (offer) =>
            html`<button
              key=${offer.name}
              type="button"
              tabindex="-1"
              onPointerDown=${(event) => {
                event.preventDefault();
                accept(offer);
              }}
            >
              ${clean(offer.name)}
            </button>`,
        )}<span class="quiet">Tab accepts the first</span></span
      >`
    }
  </label>`;
}

/** Columns that begin with the word before the caret. */
function offersFor(text, caret, columns) {
  const word = /[A-Za-z_][\w.]*$/.exec(text.slice(0, caret))?.[0];
  if (!word || (text.slice(0, caret).match(/"/g) ?? []).length % 2) return [];
  const starts = columns.filter(
    (column) => /^[\w.]+$/.test(column.name) && column.name.startsWith(word) && column.name !== word,
  );
  return starts.slice(0, 6).map((column) => ({ name: column.name, from: caret - word.length, to: caret }));
}

function FilterProblem({ problem, filter }) {
  const letters = [...filter];
  const at = typeof problem.position === "number" ? Math.min(problem.position, letters.length) : null;
  return html`<div class="filter-problem" id="filter-problem" role="alert">
    ${
      at !== null &&
      html`<code
        >${clean(letters.slice(0, at).join(""))}<mark>${clean(letters[at] ?? " ")}</mark>${clean(
          letters.slice(at + 1).join(""),
        )}</code
      >`
    }
    <span>${clean(problem.message.replace(/^filter: /, ""))}</span
    >${problem.hint && html`<span class="quiet">${clean(problem.hint)}</span>`}
  </div>`;
}
