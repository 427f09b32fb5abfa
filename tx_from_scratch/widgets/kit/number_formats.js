/* Rounding to the number formats that models compute in: to the nearest one, ties to the even one. */

const FORMATS = {
  // Bits behind the point, the exponent of the smallest normal number, the largest number.
  fp16: { bits: 10, smallest: -14, largest: 65504 },
  bf16: { bits: 7, smallest: -126, largest: 255 * 2 ** 120 },
};
const TO_INTEGER = 3 * 2 ** 51; // Adding it leaves a double no bits behind the point, rounded to even.

const double = new Float64Array(1);
const words = new Uint32Array(double.buffer);
const OFFSET = 1023; // of the powers below, and of the exponent inside a double
const POWERS = Float64Array.from({ length: 2047 }, (_, index) => 2 ** (index - OFFSET));

/* The function that rounds to "fp32", "fp16" or "bf16"; beyond the largest number it gives infinity. */
export function rounder(format) {
  return ROUNDERS[format];
}

function makeRounder({ bits, smallest, largest }) {
  return (x) => {
    if (x === 0 || !Number.isFinite(x)) return x;
    double[0] = x;
    const exponent = Math.max(((words[1] >>> 20) & 2047) - OFFSET, smallest) - bits;
    const rounded = (x * POWERS[OFFSET - exponent] + TO_INTEGER - TO_INTEGER) * POWERS[OFFSET + exponent];
    if (Math.abs(rounded) > largest) return x > 0 ? Infinity : -Infinity;
    return rounded === 0 && x < 0 ? -0 : rounded;
  };
}

// Made once, so that a browser compiles each of them once.
const ROUNDERS = { fp32: Math.fround, fp16: makeRounder(FORMATS.fp16), bf16: makeRounder(FORMATS.bf16) };

/* Each number times `factor`, rounded to the format. */
export function roundAll(numbers, format, factor = 1) {
  const round = rounder(format);
  const result = new Float64Array(numbers.length);
  for (let index = 0; index < numbers.length; index += 1) result[index] = round(numbers[index] * factor);
  return result;
}
