// UTF-8. QuickJS has neither TextEncoder nor TextDecoder; its functions for URIs convert without a loop per character.

/** Replaces lone surrogates, which UTF-8 cannot express, by U+FFFD. */
export function wellFormed(text) {
  return text.replace(/[\ud800-\udfff]/gu, "\ufffd");
}

/** Converts text to bytes; lone surrogates become U+FFFD. */
export function encode(text) {
  const binary = unescape(encodeURIComponent(wellFormed(text)));
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < bytes.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

/** Converts bytes to text. Throws a URIError if they are not UTF-8. */
export function decode(bytes) {
  const parts = [];
  // Functions take a limited number of arguments.
  for (let start = 0; start < bytes.length; start += 4096) {
    parts.push(String.fromCharCode(...bytes.subarray(start, start + 4096)));
  }
  return decodeURIComponent(escape(parts.join("")));
}

/** Converts bytes to text; each byte that is not part of a character becomes U+FFFD. */
export function decodeLossy(bytes) {
  try {
    return decode(bytes);
  } catch {
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      const lead = bytes[at];
      const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      try {
        text += decode(bytes.subarray(at, at + length));
        at += length;
      } catch {
        text += "\ufffd";
        at += 1;
      }
    }
    return text;
  }
}

/** One list of bytes. */
export function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
