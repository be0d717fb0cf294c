/* Token ids of a rollout: the segments of each model call, and where its context departs from what came before. */

import { outputOf } from "./record.js";

/** For each model call that recorded ids: what was new in its context, what it sampled, and with which log-probabilities. */
export function segmentsOf(record) {
  const segments = [];
  let seen = [];
  outputOf(record).forEach((item, index) => {
    if (!Array.isArray(item?.generation_token_ids)) return;
    const added = item.prompt_token_ids_added ?? [];
    const prompt = item.prompt_token_ids ?? [...seen.slice(0, item.prompt_tokens_kept ?? seen.length), ...added];
    let same = 0;
    while (same < seen.length && prompt[same] === seen[same]) same += 1;
    const whole = same === seen.length;
    segments.push({
      index,
      context: prompt.slice(same),
      ids: item.generation_token_ids,
      logProbs: item.generation_log_probs ?? [],
      texts: tokenTexts(item),
      breakAt: whole ? null : same,
      before: seen.length,
    });
    seen = [...prompt, ...item.generation_token_ids];
  });
  return segments;
}

/** The text of each sampled token, where the answer recorded it as well and the two agree in number. */
function tokenTexts(item) {
  const recorded = (Array.isArray(item.content) ? item.content : []).flatMap((part) => part?.logprobs ?? []);
  if (recorded.length !== item.generation_token_ids.length) return null;
  return recorded.map((entry) => String(entry?.token ?? ""));
}
