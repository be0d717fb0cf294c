/* What ng_audit found: how often each rule, and every finding with the line that shows it. */

import { html, useReply } from "./dom.js";
import { clean, formatCount } from "./format.js";
import { placeUrl } from "./place.js";
import { Notice, Panel, Trouble } from "./ui.js";

export function Audit({ source, version }) {
  const { value, error } = useReply((signal) => source.audit(signal), [version]);
  if (error) return html`<main class="page"><${Trouble} error=${error} /></main>`;
  if (!value) return html`<main class="page" aria-busy="true"></main>`;
  const audited = value.runs.filter((run) => run.audited);
  if (!audited.length)
    return html`<main class="page">
      <${Notice} title="Not audited yet">ng_audit +input=… looks for rewards that were not earned.<//>
    </main>`;
  return html`<main class="page"><div class="panels">${audited.map((run) => html`<${AuditedRun} key=${run.name} run=${run} />`)}</div></main>`;
}

function AuditedRun({ run }) {
  return html`<${Panel} title=${clean(run.name)} note=${formatCount(run.found, "finding")} wide=${true}>
    <p>
      ${run.rules.map(
        ([rule, count]) =>
          html`<a key=${rule} class="button" href=${placeUrl({ view: "table", filter: `audit contains "${rule}"` })}>
            ${rule} <span class="quiet">${count}</span>
          </a> `,
      )}
    </p>
    <table class="plain">
      <thead><tr><th>line</th><th>reward</th><th>rule</th><th>why</th><th>shown by</th></tr></thead>
      <tbody>
        ${run.findings.map(
          (found, place) =>
            html`<tr key=${place}>
              <td><a href=${placeUrl({ view: "table", filter: filterOf(found) })}>${found.line}</a></td>
              <td>${found.reward}</td>
              <td>${found.rule}</td>
              <td>${clean(found.message)}</td>
              <td><code>${clean(found.quote)}</code></td>
            </tr>`,
        )}
      </tbody>
    </table>
  <//>`;
}

function filterOf({ task, rollout, rule }) {
  return task === null ? `audit contains "${rule}"` : `task = ${task} and rollout = ${rollout}`;
}
