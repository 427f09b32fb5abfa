/* Sends events to each control of the page's widget, as a reader's hand would, and takes the time of each: until its
 * listeners have run, the page is laid out, and the canvases are painted. Returns milliseconds by control. */
async (events) => {
  const root = document.querySelector(".txw");
  const results = {};

  const time = async (act) => {
    await new Promise(requestAnimationFrame);
    const start = performance.now();
    act();
    document.body.getBoundingClientRect();
    for (const canvas of root.querySelectorAll("canvas")) canvas.getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - start;
  };
  /* Every event differs from the one before; the value at the start is put back at the end. */
  const measure = async (name, act, restore) => {
    const times = [];
    for (let count = 0; count < events + 3; count += 1) times.push(await time(() => act(count)));
    restore?.();
    results[name] = times.slice(3); // the first ones meet code that is not compiled yet
  };
  const nameOf = (input) => input.getAttribute("aria-label") ?? input.labels?.[0]?.textContent ?? input.name;
  const send = (input, type) => input.dispatchEvent(new Event(type, { bubbles: true }));

  for (const range of root.querySelectorAll("input[type=range]")) {
    const start = range.value;
    const low = Number(range.min);
    const positions = Number(range.max) - low;
    const go = (value) => {
      range.value = value;
      send(range, "input");
    };
    if (positions < 1) continue;
    const jump = (count) => go(low + Math.round((positions * ((count * 7) % 40)) / 39));
    await measure(nameOf(range), jump, () => go(start));
  }
  for (const box of root.querySelectorAll("input[type=checkbox]")) {
    const start = box.checked;
    await measure(nameOf(box), () => box.click(), () => box.checked !== start && box.click());
  }
  for (const group of root.querySelectorAll("fieldset")) {
    const options = [...group.querySelectorAll("input[type=radio]")];
    const start = options.find((option) => option.checked);
    const legend = group.querySelector("legend")?.textContent ?? options[0].name;
    const next = (count) => options[(options.indexOf(start) + 1 + count) % options.length].click();
    await measure(legend, next, () => start.click());
  }
  for (const list of root.querySelectorAll("select")) {
    const start = list.selectedIndex;
    const go = (index) => {
      list.selectedIndex = index;
      send(list, "change");
    };
    await measure(nameOf(list), (count) => go((start + 1 + count) % list.options.length), () => go(start));
  }
  for (const canvas of root.querySelectorAll("canvas[tabindex]")) {
    const point = (count) => {
      const box = canvas.getBoundingClientRect();
      const clientX = box.left + box.width * (((count * 7) % 40) / 40);
      const clientY = box.top + box.height * (((count * 11) % 40) / 40);
      canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, pointerType: "mouse", clientX, clientY }));
    };
    const leave = () => canvas.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
    await measure(`pointer on ${canvas.getAttribute("aria-label").split(";")[0]}`, point, leave);
  }
  return results;
}
