/* A scroll bar for more rows than a browser can place: beyond a height, a pixel of the bar stands for several of the list.

`top` is where the list itself is, in its own pixels; wheel and page keys move it by what they say, only the bar is
coarse. */

import { useEffect, useLayoutEffect, useRef, useState } from "./dom.js";

// Positions are single-precision numbers when they are painted: text gets blurred well before browsers give up.
const TALLEST = 6_000_000;

export function useLongScroll(frame, { total, height, head }) {
  const [view, setView] = useState({ top: 0, bar: 0, height: 800 });
  const whole = total * height;
  const room = view.height - head;
  const stretch = whole <= TALLEST ? 1 : (whole - room) / (TALLEST - room);
  const now = useRef(null);
  now.current = { view, stretch, end: Math.max(0, whole - room) };
  useLayoutEffect(() => {
    const measure = () => setView((last) => ({ ...last, height: frame.current.clientHeight }));
    const observer = new ResizeObserver(measure);
    observer.observe(frame.current);
    measure();
    return () => observer.disconnect();
  }, []);
  const moveTo = (top) => {
    const to = Math.max(0, Math.min(now.current.end, top));
    frame.current.scrollTop = to / now.current.stretch;
    setView((last) => ({ ...last, top: to, bar: frame.current.scrollTop }));
  };
  const onScroll = () => {
    const bar = frame.current.scrollTop;
    // The position set by moveTo is known more exactly than the bar can show.
    setView((last) => (Math.abs(bar - last.bar) < 1 ? last : { ...last, bar, top: bar * now.current.stretch }));
  };
  useEffect(() => {
    const box = frame.current;
    const wheel = (event) => {
      if (now.current.stretch === 1 || event.ctrlKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      moveTo(now.current.view.top + event.deltaY * (event.deltaMode ? height : 1));
    };
    const page = (event) => {
      const pages = { PageDown: 0.9, PageUp: -0.9 }[event.key];
      if (!pages || now.current.stretch === 1) return;
      event.preventDefault();
      moveTo(now.current.view.top + pages * now.current.view.height);
    };
    box.addEventListener("wheel", wheel, { passive: false });
    box.addEventListener("keydown", page);
    return () => {
      box.removeEventListener("wheel", wheel);
      box.removeEventListener("keydown", page);
    };
  }, [height]);
  // Rows keep their distance from the top of the window, however much the bar stands for.
  return {
    top: view.top,
    height: view.height,
    room,
    shift: view.bar - view.top,
    space: Math.min(whole, TALLEST),
    moveTo,
    onScroll,
  };
}
