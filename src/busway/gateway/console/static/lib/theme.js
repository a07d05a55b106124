// @ts-check
/** The colors: as the system wants them, light or dark. The choice stays in this browser. */

import {computed, signal} from "@preact/signals";

const NAME = "busway-theme";
const CHOICES = ["system", "light", "dark"];

/** "system", "light" or "dark" */
export const theme = signal(stored());
const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => { systemDark.value = system.matches; });
/** Whether the colors are dark now. */
export const dark = computed(() => theme.value === "dark" || theme.value === "system" && systemDark.value);

function stored() {
  try {
    const found = localStorage.getItem(NAME) || "";
    return CHOICES.includes(found) ? found : "system";
  } catch {
    return "system";
  }
}

function apply() {
  document.documentElement.dataset.theme = theme.value;
}

/** Use the next of the three choices. */
export function nextTheme() {
  theme.value = CHOICES[(CHOICES.indexOf(theme.value) + 1) % CHOICES.length];
  apply();
  try {
    localStorage.setItem(NAME, theme.value);
  } catch {
    // A browser without storage forgets the choice.
  }
}

apply();
