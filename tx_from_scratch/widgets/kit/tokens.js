/* Tokens as people can read them: what is invisible gets a mark, but copying gives the token itself.
 * Python's half is tx_from_scratch/widgets/tokens.py. */
import { element } from "./elements.js";

const TOKEN_MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zs}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0]/u;
const JOINERS = "\u200c\u200d"; // shape the letters and emoji between which they stand; at an end they show nothing

/* The token's characters, each with its mark or null, and a mark that stands before them all, or null. */
function readable(token) {
  const characters = [...token].map((character, index, all) => {
    const joins = JOINERS.includes(character) && index > 0 && index < all.length - 1;
    if (joins || !INVISIBLE.test(character)) return [character, null];
    const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return [character, TOKEN_MARKS[character] ?? `⟨${code}⟩`];
  });
  // An accent needs a letter to stand on.
  return { characters, before: token ? (/^\p{M}/u.test(token) ? "◌" : null) : "∅" };
}

/* The token with its marks as plain text, for labels; what is longer than `most` characters ends in "…". */
export function visible(token, most = Infinity) {
  const { characters, before } = readable(token);
  const text = (before ?? "") + characters.map(([character, mark]) => mark ?? character).join("");
  const all = [...text];
  return all.length <= most ? text : `${all.slice(0, most - 1).join("")}…`;
}

/* The token as an element whose text is the token itself, whatever that is: marks come from the style sheet. */
export function tokenElement(token, attributes = {}) {
  const { characters, before } = readable(token);
  const parts = [];
  let plain = "";
  for (const [character, mark] of characters) {
    if (mark === null) {
      plain += character;
      continue;
    }
    // The character itself is kept in a box of no width, beyond which its direction has no effect.
    if (plain) parts.push(plain);
    plain = "";
    parts.push(element("span", { class: "txw-mark", "data-mark": mark }, element("span", {}, character)));
  }
  if (plain) parts.push(plain);
  return element("bdi", { class: "txw-token", "data-mark": before, ...attributes }, ...parts);
}

/* Copying from inside a token, or from a list of class "txw-tokens", gives the tokens as they are, one a line. */
export function copiesTokens(root) {
  root.addEventListener("copy", (event) => {
    const selection = document.getSelection();
    if (!selection.rangeCount || !event.clipboardData) return;
    const range = selection.getRangeAt(0);
    const common = range.commonAncestorContainer;
    const nearest = common.nodeType === Node.ELEMENT_NODE ? common : common.parentElement;
    const holder = nearest.closest(".txw-token, .txw-tokens");
    if (!holder) return;
    const tokens = holder.matches(".txw-token") ? [holder] : [...holder.querySelectorAll(".txw-token")];
    const texts = tokens.filter((token) => range.intersectsNode(token)).map((token) => selectedText(range, token));
    event.clipboardData.setData("text/plain", texts.join("\n"));
    event.preventDefault();
  });
}

/* What the range selects of the node's text, every character of it. */
function selectedText(range, node) {
  const part = document.createRange();
  part.selectNodeContents(node);
  const { startContainer, startOffset, endContainer, endOffset } = range;
  if (range.compareBoundaryPoints(Range.START_TO_START, part) > 0) part.setStart(startContainer, startOffset);
  if (range.compareBoundaryPoints(Range.END_TO_END, part) < 0) part.setEnd(endContainer, endOffset);
  return part.toString();
}
