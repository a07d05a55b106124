// @ts-check
/** Templates of the console: `html` makes elements of Preact from text, without a compiler. */

import {h} from "preact";
import htm from "htm";

export const html = htm.bind(h);
