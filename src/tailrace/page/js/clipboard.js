// The clipboard, on pages with TLS and without.

/** Puts text on the clipboard; true if it is there. Off localhost a page without TLS has to go the old way. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

const SAID_MS = 3000;

/** Copies a text and tells `say` for a while whether it worked; then tells it "". */
export async function copyAndSay(text, say) {
  say((await copy(text)) ? "Copied." : "The browser does not allow it: select the text and copy it.");
  setTimeout(() => say(""), SAID_MS);
}
