"use strict";
// A cursor shared by a video and its charts: the pointer, the slider, the arrow keys or the play button move it.
for (const player of document.querySelectorAll("[data-player]")) {
  const data = JSON.parse(player.querySelector("script").textContent);
  const image = player.querySelector("img");
  const slider = player.querySelector("input");
  const button = player.querySelector("button");
  const readout = player.querySelector("output");
  const last = data.seconds.length - 1;
  const nearest = (numbers, wanted) =>
    numbers.reduce((best, value, at) => (Math.abs(value - wanted) < Math.abs(numbers[best] - wanted) ? at : best), 0);

  const charts = [...player.querySelectorAll(".plot")].map((plot, number) => {
    const { x: [left, right], y: [low, high], lines } = data.charts[number];
    const make = (kind) => plot.appendChild(Object.assign(document.createElement("i"), { className: kind }));
    const cursor = make("cursor");
    const dots = lines.map((line) => make("dot " + line.kind));
    const values = plot.querySelectorAll(".end.live .now");
    const mark = (frame) => {
      const across = (100 * (data.seconds[frame] - left)) / (right - left) + "%";
      cursor.style.left = across;
      lines.forEach((line, at) => {
        const value = line.values[frame];  // null where it is not known
        dots[at].hidden = value === null;
        dots[at].style.left = across;
        dots[at].style.top = (100 * (high - value)) / (high - low) + "%";
        values[at].textContent = value === null ? "\u2014" : (value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(2);
      });
    };
    const pointed = (event) => {
      const box = plot.getBoundingClientRect();
      return nearest(data.seconds, left + ((event.clientX - box.left) / box.width) * (right - left));
    };
    return { plot, mark, pointed };
  });

  let frame = 0;
  const show = (wanted) => {
    frame = Math.max(0, Math.min(last, wanted));
    const seconds = data.seconds[frame];
    charts.forEach((chart) => chart.mark(frame));
    image.src = data.images[nearest(data.shown, frame)];
    slider.value = frame;
    player.dataset.frame = frame;
    const text = `frame ${data.steps[frame]} of ${data.steps[last]} \u00b7 ${seconds.toFixed(1)} s`;
    readout.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  };

  // The whole video takes its own time, but never so short or so long that nothing can be seen.
  const length = data.seconds[last] - data.seconds[0];
  const pace = length / Math.min(12, Math.max(3, length));
  let clock = null;
  const stop = () => { cancelAnimationFrame(clock); clock = null; player.classList.remove("playing"); };
  const play = () => {
    if (frame === last) show(0);
    const from = data.seconds[frame], begun = performance.now();
    player.classList.add("playing");
    const tick = (now) => {
      const at = from + (pace * (now - begun)) / 1000;
      show(nearest(data.seconds, at));
      if (frame < last) clock = requestAnimationFrame(tick); else stop();
    };
    clock = requestAnimationFrame(tick);
  };

  button.addEventListener("click", () => (clock === null ? play() : stop()));
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  for (const { plot, pointed } of charts)
    for (const kind of ["pointermove", "pointerdown"])
      plot.addEventListener(kind, (event) => { stop(); show(pointed(event)); });
  player.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    stop();
    show(frame + step);
  });
  show(last);  // the end of the video, where the labels are
}
