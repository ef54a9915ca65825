// SHA-256, FIPS 180-4. Browsers offer theirs only to pages over TLS or from this machine.

/** The first 32 bits of the fractional parts of a root of the first primes. */
function fractions(count: number, root: (prime: number) => number): Uint32Array {
  const found: number[] = [];
  for (let number = 2; found.length < count; number += 1) {
    if (found.every((prime) => number % prime !== 0)) found.push(number);
  }
  return Uint32Array.from(found, (prime) => Math.floor((root(prime) % 1) * 2 ** 32));
}

function ownDigest(bytes: Uint8Array): Uint8Array {
  // Only primes are in `found`, since a number without a smaller prime factor is one.
  const constants = fractions(64, Math.cbrt);
  const state = fractions(8, Math.sqrt);
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length << 3) >>> 0);
  const words = new Int32Array(64);
  const at = (array: Int32Array | Uint32Array, index: number) => array[index] as number;
  const rotate = (word: number, by: number) => (word >>> by) | (word << (32 - by));
  for (let block = 0; block < padded.length; block += 64) {
    for (let index = 0; index < 16; index += 1) words[index] = view.getInt32(block + 4 * index);
    for (let index = 16; index < 64; index += 1) {
      const early = at(words, index - 15);
      const late = at(words, index - 2);
      const one = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
      const two = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
      words[index] = at(words, index - 16) + one + at(words, index - 7) + two;
    }
    let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state;
    for (let index = 0; index < 64; index += 1) {
      const sum = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const first = (h + sum + ((e & f) ^ (~e & g)) + at(constants, index) + at(words, index)) | 0;
      const second = ((rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    for (const [index, word] of [a, b, c, d, e, f, g, h].entries()) state[index] = at(state, index) + word;
  }
  const digest = new DataView(new ArrayBuffer(32));
  for (const [index, word] of state.entries()) digest.setUint32(4 * index, word);
  return new Uint8Array(digest.buffer);
}

/** The digest of a component, as the admin API names it. */
export async function componentDigest(bytes: Uint8Array<ArrayBuffer>, subtle = globalThis.crypto?.subtle): Promise<string> {
  const digest = subtle ? new Uint8Array(await subtle.digest("SHA-256", bytes)) : ownDigest(bytes);
  return `sha256:${Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
