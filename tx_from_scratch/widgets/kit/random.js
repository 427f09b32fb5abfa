/* Random numbers that Python makes too, bit for bit in 32 of them (tx_from_scratch/counter_random.py).
 *
 * Number i of a seed is a hash of both, so none depends on those before it. The hash is "lowbias32", found and put
 * into the public domain by Chris Wellons (2018). */

function hash(value) {
  value = Math.imul(value ^ (value >>> 16), 0x7feb352d);
  value = Math.imul(value ^ (value >>> 15), 0x846ca68b);
  return (value ^ (value >>> 16)) >>> 0;
}

/* `count` numbers in (0, 1), never 0 or 1. */
export function uniforms(seed, count) {
  const start = hash(seed + 0x9e3779b9);
  const result = new Float64Array(count);
  for (let index = 0; index < count; index += 1) result[index] = (hash(start + index) + 0.5) / 2 ** 32;
  return result;
}

/* `count` numbers of the standard normal distribution, in single precision (Box & Muller 1958). */
export function normals(seed, count) {
  const uniform = uniforms(seed, count + (count % 2));
  const result = new Float32Array(count);
  for (let index = 0; index < count; index += 2) {
    const radius = Math.sqrt(-2 * Math.log(uniform[index]));
    const angle = 2 * Math.PI * uniform[index + 1];
    result[index] = radius * Math.cos(angle);
    if (index + 1 < count) result[index + 1] = radius * Math.sin(angle);
  }
  return result;
}
