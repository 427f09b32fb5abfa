/* latest(name, keys, make): what make() gave the last time, as long as the keys are the same. */
export function memory() {
  const kept = new Map();
  return (name, keys, make) => {
    const last = kept.get(name);
    if (last && last.keys.every((key, index) => key === keys[index])) return last.value;
    const value = make();
    kept.set(name, { keys, value });
    return value;
  };
}
