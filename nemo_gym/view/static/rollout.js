/* One rollout: how it was scored, then the conversation, its tokens, its timing and the record itself. */

import { html, useReply, useEffect, useLayoutEffect, useMemo, useState } from "./dom.js";
import { clean, formatField } from "./format.js";
import { factsOf, fieldsOf } from "./record.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { Choice, Reward, RewardChips, Trouble } from "./ui.js";
import { Marking } from "./marks.js";
import { Tokens, hasTokens } from "./tokens.js";
import { Transcript } from "./transcript.js";
import { Waterfall } from "./waterfall.js";
import { JsonTree } from "./parts.js";
import { ownTiming } from "./timing.js";

const RAW_SHOWN = 200_000;

export function Rollout({ source, place, files, onDetail }) {
  const id = place.rollout;
  const { value, error } = useReply(
    (signal) => source.rollout(id, selectionOf(place), signal),
    [id, place.filter, place.search, place.sort],
  );
  const detail = value?.id === id ? value : null;
  useLayoutEffect(() => onDetail(detail), [detail]);
  useEffect(() => scrollTo(0, 0), [id]);
  if (error)
    return html`<main class="page">
      <${Trouble} error=${error} />
      <p><a href=${placeUrl({ rollout: null })}>Back to the list</a></p>
    </main>`;
  if (!detail) return html`<main class="page" aria-busy="true"></main>`;
  return html`<${RolloutPage} key=${id} source=${source} detail=${detail} place=${place} files=${files} />`;
}

function RolloutPage({ source, detail, place, files }) {
  const { record } = detail;
  const recorded = detail.timing?.steps ? detail.timing : null;
  const timing = useMemo(() => recorded ?? ownTiming(record), [record, recorded]);
  const tabs = [
    ["transcript", "Transcript"],
    diffOf(record) && ["changes", "Changes"],
    hasTokens(record) && ["tokens", "Tokens"],
    ["timing", "Timing"],
    ["raw", "Raw"],
  ].filter(Boolean);
  const tab = tabs.some(([name]) => name === place.tab) ? place.tab : "transcript";
  return html`<main class="page rollout" data-id=${detail.id}>
    <${Heading} detail=${detail} place=${place} files=${files} />
    <${Marking} source=${source} detail=${detail} />
    <${Scores} record=${record} />
    <div class="tab-bar">
      <${Choice}
        label="show"
        value=${tab}
        options=${tabs}
        onChange=${(name) => goTo({ tab: name === "transcript" ? null : name }, { replace: true })}
      />
      ${
        detail.continuity &&
        !detail.continuity.ok &&
        html`<a class="bad" href=${placeUrl({ tab: "tokens" })}>context breaks</a>`
      }
    </div>
    ${tab === "transcript" && html`<${Transcript} record=${record} search=${place.search} />`}
    ${tab === "changes" && html`<${Changes} diff=${diffOf(record)} />`}
    ${tab === "tokens" && html`<${Tokens} record=${record} continuity=${detail.continuity} />`}
    ${tab === "timing" && html`<${Waterfall} timing=${timing} missing=${detail.timing?.missing} />`} ${tab === "raw" && html`<${Raw} record=${record} />`}
  </main>`;
}

function Heading({ detail, place, files }) {
  const { record, group } = detail;
  const failure = record._ng_failure_class;
  const file = files.find((one) => String(one.id) === detail.id.split(".")[0]);
  const where = [
    file?.name ?? detail.file,
    detail.line !== null && detail.line !== undefined ? `line ${detail.line}` : null,
  ]
    .filter(Boolean)
    .join(", ");
  return html`<header class="rollout-head">
    <nav class="steps-nav" aria-label="other rollouts">
      <a class="back" href=${placeUrl({ rollout: null, tab: null })}>← ${place.view}</a>
      <span class="stretch"></span>
      <${Jump} id=${detail.previous} text="Previous" name="k" />
      <${Jump} id=${detail.next} text="Next" name="j" />
      <${Jump} id=${detail.next_failure} text="Next failure" name="f" />
    </nav>
    <div class="title">
      <${Reward} value=${record.reward} failure=${failure} size="large" />
      <div>
        <h1>
          Task ${record._ng_task_index ?? "–"}${" "}<span class="quiet"
            >· rollout ${record._ng_rollout_index ?? "–"}</span
          >
        </h1>
        <p class="quiet">${[record.agent_ref?.name, where].filter(Boolean).map(clean).join(" · ")}</p>
      </div>
    </div>
    ${
      failure &&
      html`<div class="failure" role="note">
        <strong>${clean(failure)}</strong><span>${clean(record.error_message ?? "no message")}</span>
      </div>`
    }
    ${
      group?.length > 1 &&
      html`<div class="repeats">
        <span class="name">This task</span><${RewardChips} rollouts=${group} current=${detail.id} /><${CompareLink}
          detail=${detail}
        />
      </div>`
    }
  </header>`;
}

function Jump({ id, text, name }) {
  const inner = html`${text}<kbd>${name}</kbd>`;
  return id
    ? html`<a class="button" href=${placeUrl({ rollout: id })}>${inner}</a>`
    : html`<span class="button disabled" aria-disabled="true">${inner}</span>`;
}

/** The repeat that is most informative to compare with: one with another reward, if there is one. */
export function rivalOf(detail) {
  const others = detail.group.filter((chip) => chip.id !== detail.id);
  return others.find((chip) => chip.reward !== detail.record.reward) ?? others[0];
}

function CompareLink({ detail }) {
  const rival = rivalOf(detail);
  if (!rival) return null;
  return html`<a
    class="button"
    href=${placeUrl({ view: "compare", a: detail.id, b: rival.id, rollout: null, tab: null })}
    >Compare<kbd>c</kbd></a
  >`;
}

function Scores({ record }) {
  const { short, long } = useMemo(() => fieldsOf(record), [record]);
  const facts = factsOf(record);
  return html`<div class="scores">
    ${
      short.length > 0 &&
      html`<dl>
        ${short.map(
          ([name, value]) =>
            html`<div key=${name}>
              <dt>${clean(name)}</dt>
              <dd class=${typeof value}>${formatField(name, value)}</dd>
            </div>`,
        )}
      </dl>`
    }
    ${
      long.length > 0 &&
      html`<div class="long-fields">
        ${long.map(([name, value]) => html`<${LongField} key=${name} name=${name} value=${value} />`)}
      </div>`
    }
    ${
      facts.length > 0 &&
      html`<dl class="facts">
        ${facts.map(
          ([name, value]) =>
            html`<div key=${name}>
              <dt>${name}</dt>
              <dd>${formatField(name, value)}</dd>
            </div>`,
        )}
      </dl>`
    }
  </div>`;
}

function LongField({ name, value }) {
  const [open, setOpen] = useState(false);
  const preview = (typeof value === "string" ? value : JSON.stringify(value)).slice(0, 160).replace(/\s+/g, " ");
  return html`<div class="long-field">
    <button aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class=${`tree-arrow ${open ? "open" : ""}`}></span
      ><span class="field-name">${clean(name)}</span>${!open && html`<span class="preview">${clean(preview)}</span>`}
    </button>
    ${
      open &&
      (typeof value === "string"
        ? html`<pre class="plain">${clean(value)}</pre>`
        : html`<${JsonTree} value=${value} />`)
    }
  </div>`;
}

/** What an agent changed in its files, as the environment or the agent recorded it. */
function diffOf(record) {
  const diff = record.workspace_diff ?? record.workspace?.diff;
  return typeof diff === "string" ? diff : "";
}

function Changes({ diff }) {
  const kinds = { "+": "added", "-": "removed", "@": "hunk" };
  const kindOf = (line) => (/^(?:\+\+\+|---) /.test(line) ? "file" : (kinds[line[0]] ?? ""));
  const lines = clean(diff.slice(0, RAW_SHOWN)).split("\n");
  return html`<pre class="diff">
${lines.map((line, number) => html`<span key=${number} class=${kindOf(line)}>${`${line}\n`}</span>`)}</pre
  >`;
}

function Raw({ record }) {
  const [as, setAs] = useState("tree");
  const [copied, setCopied] = useState(false);
  const text = useMemo(() => JSON.stringify(record, null, 2), [record]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyBySelection(text);
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="raw">
    <div class="transcript-bar">
      <${Choice}
        label="form"
        value=${as}
        options=${[
          ["tree", "Tree"],
          ["text", "Text"],
        ]}
        onChange=${setAs}
      /><button class="button" onClick=${copy}>${copied ? "Copied" : "Copy JSON"}</button>
    </div>
    ${
      as === "tree"
        ? html`<${JsonTree} value=${record} depth=${1} />`
        : html`<pre class="plain">
${text.length > RAW_SHOWN ? `${text.slice(0, RAW_SHOWN)}\n… copy to see the rest` : text}</pre>`
    }
  </div>`;
}

/** For pages that may not use the clipboard, such as those opened from disk. */
function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
