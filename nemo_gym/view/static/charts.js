/* The few charts the overview needs, without a library: a histogram, a curve with points, a scatter plot. */

import { html, useEffect, useMemo, useRef, useSize, useState } from "./dom.js";
import { formatNumber, formatScore } from "./format.js";
import { rewardShare } from "./ui.js";

const CHART_HEIGHT = 190;
const MARGIN = { left: 40, right: 12, top: 12, bottom: 26 };
const NEAR = 14;

/** Round numbers that divide a range into about `count` steps. */
export function ticksOf(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step)
    ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

const UNITS_OF_TIME = [
  [1, "s"],
  [60, "min"],
  [3600, "h"],
];

/** Round times from zero to `end` seconds, in the unit that a person would count them in. */
export function timeTicks(end, count) {
  const [unit, name] = UNITS_OF_TIME.findLast(([seconds]) => end >= 5 * seconds) ?? UNITS_OF_TIME[0];
  return ticksOf(0, end / unit, count).map((tick) => ({ at: tick * unit, text: `${formatNumber(tick)} ${name}` }));
}

function compactNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return formatNumber(value);
}

function YGrid({ ticks, y, width }) {
  return ticks.map(
    (tick) =>
      html`<g key=${tick}>
        <line class="grid" x1=${MARGIN.left} x2=${width - MARGIN.right} y1=${y(tick)} y2=${y(tick)} />
        <text class="axis" x=${MARGIN.left - 8} y=${y(tick) + 3.5} text-anchor="end">${compactNumber(tick)}</text>
      </g>`,
  );
}

/** Counts per bin. `coloured` gives each bar the colour of its reward; a click passes on the edges of the bin. */
export function Histogram({ edges, counts, coloured, onPick, label }) {
  const ref = useRef();
  const { width } = useSize(ref);
  const most = Math.max(...counts, 1);
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => MARGIN.left + ((value - low) / (high - low || 1)) * (width - MARGIN.left - MARGIN.right);
  const y = (count) => CHART_HEIGHT - MARGIN.bottom - (count / most) * (CHART_HEIGHT - MARGIN.top - MARGIN.bottom);
  const ticks = ticksOf(0, most, 4).filter(Number.isInteger);
  return html`<div class="chart" ref=${ref}>
    ${
      width > 0 &&
      html`<svg width=${width} height=${CHART_HEIGHT} role=${onPick ? "group" : "img"} aria-label=${label}>
        <${YGrid} ticks=${ticks} y=${y} width=${width} />
        ${counts.map((count, index) => {
          const [from, to] = [x(edges[index]), x(edges[index + 1])];
          const share = rewardShare((edges[index] + edges[index + 1]) / 2).toFixed(3);
          const range = `${formatNumber(edges[index])} to ${formatNumber(edges[index + 1])}: ${formatNumber(count)}`;
          const pick =
            onPick && count ? () => onPick(edges[index], edges[index + 1], index === counts.length - 1) : undefined;
          return html`<g
            key=${index}
            class=${`bin ${pick ? "pick" : ""}`}
            role=${pick && "button"}
            aria-label=${pick && range}
            tabindex=${pick && 0}
            onClick=${pick}
            onKeyDown=${pick && ((event) => event.key === "Enter" && pick())}
          >
            <title>${range}</title>
            <rect
              class="bin-area"
              x=${from}
              width=${to - from}
              y=${MARGIN.top}
              height=${CHART_HEIGHT - MARGIN.top - MARGIN.bottom}
            />
            <rect
              class=${`bar ${coloured ? "coloured" : ""}`}
              style=${{ "--share": share }}
              x=${from + 1}
              width=${Math.max(to - from - 2, 1)}
              y=${Math.min(y(count), CHART_HEIGHT - MARGIN.bottom - (count ? 2 : 0))}
              height=${count ? Math.max(CHART_HEIGHT - MARGIN.bottom - y(count), 2) : 0}
              rx="1.5"
            />
          </g>`;
        })}
        <line
          class="base"
          x1=${MARGIN.left}
          x2=${width - MARGIN.right}
          y1=${CHART_HEIGHT - MARGIN.bottom}
          y2=${CHART_HEIGHT - MARGIN.bottom}
        />
        ${ticksOf(low, high, width < 360 ? 4 : 5).map(
          (tick) =>
            html`<text key=${tick} class="axis" x=${x(tick)} y=${CHART_HEIGHT - 8} text-anchor="middle"
              >${compactNumber(tick)}</text
            >`,
        )}
      </svg>`
    }
  </div>`;
}

/** Values over k: a curve with its points; the value under the pointer is written out. Bounds are those of the values
 * unless given; a curve that stays in the upper quarter of given bounds is shown from their middle on. */
export function Curve({ points, low, high, label }) {
  const ref = useRef();
  const { width } = useSize(ref);
  const [at, setAt] = useState(null);
  const last = points.at(-1)?.k ?? 1;
  const values = points.map((point) => point.value);
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  const room = highest > lowest ? (highest - lowest) * 0.1 : Math.abs(highest) * 0.1 || 1;
  const ceiling = high ?? highest + room;
  const bottom = low ?? lowest - room;
  const floor = low !== undefined && lowest > low + 0.75 * (ceiling - low) ? (low + ceiling) / 2 : bottom;
  const inner = width - MARGIN.left - MARGIN.right - 12;
  const x = (k) => MARGIN.left + 8 + (last === 1 ? inner / 2 : ((k - 1) / (last - 1)) * inner);
  const y = (value) =>
    CHART_HEIGHT - MARGIN.bottom - ((value - floor) / (ceiling - floor)) * (CHART_HEIGHT - MARGIN.top - MARGIN.bottom);
  const named = at ?? points.length - 1;
  const ks = [...new Set(ticksOf(1, last, 6).filter(Number.isInteger).concat(1, last))].filter(
    (k) => k === last || k === 1 || x(last) - x(k) > 26,
  );
  return html`<div class="chart" ref=${ref} onPointerLeave=${() => setAt(null)}>
    ${
      width > 0 &&
      html`<svg width=${width} height=${CHART_HEIGHT} role="img" aria-label=${label}>
        <${YGrid} ticks=${ticksOf(floor, ceiling, 4)} y=${y} width=${width} />
        <path
          class="curve"
          d=${points.map((point, index) => `${index ? "L" : "M"}${x(point.k)},${y(point.value)}`).join("")}
        />
        ${points.map(
          (point, index) =>
            html`<g key=${point.k} onPointerEnter=${() => setAt(index)}>
              <rect
                class="bin-area"
                x=${x(point.k) - inner / last / 2}
                width=${inner / last}
                y="0"
                height=${CHART_HEIGHT}
              />
              <circle
                class=${`dot ${index === named ? "named" : ""}`}
                cx=${x(point.k)}
                cy=${y(point.value)}
                r=${index === named ? 4 : points.length > 24 ? 0 : 2.5}
              />
            </g>`,
        )}
        ${
          points[named] &&
          html`<text
            class="callout"
            x=${Math.min(x(points[named].k), width - MARGIN.right - 4)}
            y=${y(points[named].value) + (y(points[named].value) < 30 ? 18 : -9)}
            text-anchor=${named > points.length / 2 ? "end" : named ? "middle" : "start"}
            >${formatScore(points[named].value, 3)} at k = ${points[named].k}</text
          >`
        }
        ${ks.map(
          (k) => html`<text key=${k} class="axis" x=${x(k)} y=${CHART_HEIGHT - 8} text-anchor="middle">${k}</text>`,
        )}
      </svg>`
    }
  </div>`;
}

/** Points on a canvas; the one under the pointer is described, a click passes on its id. */
export function Scatter({ x: xs, y: ys, ids, xName, yName, coloured, onPick, describe }) {
  const ref = useRef();
  const canvas = useRef();
  const { width } = useSize(ref);
  const [at, setAt] = useState(null);
  const height = CHART_HEIGHT + 50;
  const area = scatterArea(xs, ys, width, height);
  const points = useMemo(() => placePoints(xs, ys, area), [xs, ys, width]);
  useEffect(() => {
    if (!width || !canvas.current) return undefined;
    const paint = () => paintPoints(canvas.current, { points, width, height, coloured });
    paint();
    // Repaint when the theme changes.
    const theme = new MutationObserver(paint);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", paint);
    return () => {
      theme.disconnect();
      system.removeEventListener("change", paint);
    };
  }, [xs, ys, width, coloured]);
  const find = (event) => nearest(event.offsetX, event.offsetY, points);
  return html`<div class="chart" ref=${ref}>
    ${
      width > 0 &&
      html`<svg width=${width} height=${height} class="under" aria-hidden="true">
          <${YGrid} ticks=${area.yTicks} y=${area.y} width=${width} />
          <line
            class="base"
            x1=${MARGIN.left}
            x2=${width - MARGIN.right}
            y1=${height - MARGIN.bottom}
            y2=${height - MARGIN.bottom}
          />
          ${area.xTicks.map(
            (tick) =>
              html`<text key=${tick} class="axis" x=${area.x(tick)} y=${height - 8} text-anchor="middle"
                >${compactNumber(tick)}</text
              >`,
          )}
        </svg>
        <canvas
          ref=${canvas}
          role="img"
          aria-label=${`${yName} against ${xName}, ${xs.length} points`}
          class=${at === null ? "" : "pick"}
          onPointerMove=${(event) => setAt(find(event))}
          onPointerLeave=${() => setAt(null)}
          onClick=${(event) => find(event) !== null && onPick(ids[find(event)])}
        ></canvas>
        ${
          at !== null &&
          html`<div
            class=${`tip ${points.x[at] > width * 0.6 ? "left" : ""}`}
            style=${{ left: `${points.x[at]}px`, top: `${points.y[at]}px` }}
          >
            ${describe(at)}
          </div>`
        }`
    }
  </div>`;
}

function scatterArea(xs, ys, width, height) {
  const [left, right] = padded(xs, 0.02);
  const [low, high] = padded(ys, 0.06);
  return {
    x: (value) => MARGIN.left + ((value - left) / (right - left)) * (width - MARGIN.left - MARGIN.right),
    y: (value) => height - MARGIN.bottom - ((value - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom),
    xTicks: ticksOf(left, right, width < 500 ? 4 : 8),
    yTicks: ticksOf(low, high, 5),
  };
}

function padded(values, share) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!values.length) return [0, 1];
  const room = (high - low || 1) * share;
  return [low - room, high + room];
}

/** Positions of the points. Values that many points share are spread a little, or thousands would look like one. */
function placePoints(xs, ys, area) {
  const few = (values) => new Set(values.slice(0, 400)).size <= 12;
  const [spreadX, spreadY] = [few(xs) ? 16 : 0, few(ys) ? 16 : 0];
  const noise = (index, salt) => ((Math.imul(index + salt, 2654435761) >>> 8) % 1000) / 1000 - 0.5;
  return {
    x: xs.map((value, index) => area.x(value) + spreadX * noise(index, 7)),
    y: ys.map((value, index) => area.y(value) + spreadY * noise(index, 101)),
  };
}

function paintPoints(canvas, { points, width, height, coloured }) {
  const count = points.x.length;
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const colours = ["--scale-0", "--scale-1", "--scale-2", "--scale-3", "--scale-4"].map((name) =>
    themeColour(canvas, name),
  );
  const accent = themeColour(canvas, "--accent");
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.globalAlpha = count > 1500 ? 0.35 : count > 300 ? 0.5 : 0.7;
  const radius = count > 1500 ? 2.2 : 3;
  for (let index = 0; index < count; index += 1) {
    context.fillStyle = coloured ? colours[Math.round(rewardShare(coloured[index]) * 4)] : accent;
    context.beginPath();
    context.arc(points.x[index], points.y[index], radius, 0, 2 * Math.PI);
    context.fill();
  }
}

/** A colour of the style sheet in the current theme. */
function themeColour(element, name) {
  element.style.color = `var(${name})`;
  return getComputedStyle(element).color;
}

function nearest(x, y, points) {
  let [best, distance] = [null, NEAR ** 2];
  for (let index = 0; index < points.x.length; index += 1) {
    const off = (points.x[index] - x) ** 2 + (points.y[index] - y) ** 2;
    if (off < distance) [best, distance] = [index, off];
  }
  return best;
}
