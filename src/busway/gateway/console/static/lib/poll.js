// @ts-check
/** Values that are asked again and again while their screen is visible. */

import {useEffect, useRef, useState} from "preact/hooks";
import {epoch} from "./bus.js";

/**
 * @template T
 * @typedef {{value: T | null, error: string, refresh: () => void}} Polled
 */

/**
 * The last value of a request that is repeated every `ms`, 0: only once. It begins anew when `deps` change or the
 * broker was restarted. While the tab is hidden nothing is asked.
 * @template T
 * @param {() => Promise<T>} request
 * @param {number} ms
 * @param {any[]} deps
 * @returns {Polled<T>}
 */
export function usePoll(request, ms, deps) {
  const [found, setFound] = useState(/** @type {{value: T | null, error: string}} */ ({value: null, error: ""}));
  const [again, setAgain] = useState(0);
  const latest = useRef(request);
  latest.current = request;
  const key = JSON.stringify(deps);
  const shown = useRef(key);
  useEffect(() => {
    let live = true;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    if (shown.current !== key) {
      shown.current = key;
      setFound({value: null, error: ""});
    }
    const next = () => {
      if (live && ms) timer = setTimeout(look, ms);
    };
    const look = async () => {
      if (document.hidden) return next();
      try {
        const value = await latest.current();
        if (live) setFound({value, error: ""});
      } catch (error) {
        if (live) setFound(before => ({value: before.value, error: /** @type {Error} */ (error).message}));
      }
      next();
    };
    const back = () => {
      if (document.hidden) return;
      clearTimeout(timer);
      look();
    };
    document.addEventListener("visibilitychange", back);
    look();
    return () => {
      live = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", back);
    };
  }, [key, ms, epoch.value, again]);
  return {...found, refresh: () => setAgain(count => count + 1)};
}
