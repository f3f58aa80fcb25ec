"use strict";
(() => {
  const LOW = -0.2, HIGH = 1; // of both axes
  const BOX = { left: 60, top: 10, size: 480 }; // of the map, in the coordinates of the axes
  const HALVINGS = 44;
  const byId = (id) => document.getElementById(id);
  const sliders = [...document.querySelectorAll("input[type=range]")];

  // The numbers: the same as in rince/analysis/equilibrium.py, which the tests hold them to.

  /** Quantile of the standard Gaussian (Acklam's rational approximation, relative error below 1.2e-9). */
  function quantile(p) {
    const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
    const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1];
    const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
    const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1];
    const at = (coefficients, x) => coefficients.reduce((sum, one) => sum * x + one, 0);
    if (p > 0.5) return -quantile(1 - p);
    if (p < 0.02425) {
      const q = Math.sqrt(-2 * Math.log(p));
      return at(c, q) / at(d, q);
    }
    const q = p - 0.5;
    return (at(a, q * q) * q) / at(b, q * q);
  }

  function normalNegatives(number, mean, spread) {
    return Array.from({ length: number }, (_, i) =>
      Math.min(1, Math.max(-1, mean + spread * quantile((i + 0.5) / number))));
  }

  function logSumExp(values) {
    const peak = Math.max(...values);
    return peak + Math.log(values.reduce((sum, value) => sum + Math.exp(value - peak), 0));
  }

  /** What K needs to know of the settings: (first, second) → K, positive where rank 2 is pushed away. */
  function tradeOff({ tau1, tau2, number, mean, spread }) {
    const negatives = normalNegatives(number, mean, spread);
    const [inFirst, inSecond] = [tau1, tau2].map((tau) => logSumExp(negatives.map((n) => n / tau)));
    return (first, second) => {
      const push = Math.exp(second / tau1 - logSumExp([first / tau1, second / tau1, inFirst])) / tau1;
      const pull = 1 / (1 + Math.exp(second / tau2 - inSecond)) / tau2;
      return push - pull;
    };
  }

  function risingRoot(rising) {
    let low = -1, high = 1;
    for (let i = 0; i < HALVINGS; i++) {
      const middle = (low + high) / 2;
      if (rising(middle) < 0) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  }

  const atRest = (k, first) => risingRoot((second) => k(first, second));
  const rankingStarts = (k) => (k(1, 1) <= 0 ? Infinity : risingRoot((both) => k(both, both)));

  // The settings. The number of negatives goes through a list of round numbers.
  const NUMBERS = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 4000];
  function settings() {
    const value = Object.fromEntries(sliders.map((slider) => [slider.id, Number(slider.value)]));
    return { ...value, number: NUMBERS[value.number] };
  }

  // Drawing.
  const SVG = "http://www.w3.org/2000/svg";
  function shape(tag, attributes, text = "") {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    byId("axes").append(element);
    return element;
  }
  const x = (similarity) => BOX.left + ((similarity - LOW) / (HIGH - LOW)) * BOX.size;
  const y = (similarity) => BOX.top + BOX.size - ((similarity - LOW) / (HIGH - LOW)) * BOX.size;
  const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(2)} ${y(b).toFixed(2)}`).join("");

  function drawAxes() {
    byId("axes").textContent = "";
    for (let tick = 0; tick <= 5; tick++) {
      const value = tick / 5;
      shape("text", { x: x(value), y: BOX.top + BOX.size + 24, "text-anchor": "middle" }, value.toFixed(1));
      shape("text", { x: BOX.left - 8, y: y(value) + 6, "text-anchor": "end" }, value.toFixed(1));
    }
    shape("text", { x: BOX.left + BOX.size / 2, y: 552, "text-anchor": "middle" }, "h(q, p₁), similarity of rank 1");
    const middle = BOX.top + BOX.size / 2;
    shape("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, "h(q, p₂), similarity of rank 2");
    shape("rect", { x: BOX.left, y: BOX.top, width: BOX.size, height: BOX.size, class: "frame" });
    shape("path", { d: path([[LOW, LOW], [HIGH, HIGH]]), class: "equal" });
    shape("path", { id: "line", class: "line" });
    shape("path", { id: "guide", class: "guide", fill: "none" });
    shape("circle", { id: "dot", class: "dot", r: 7 });
  }

  /** A colour of the page as [red, green, blue], whatever notation it is in. */
  function colour(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return found;
  }

  function drawField(k) {
    const canvas = byId("field"), side = canvas.width, context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    const [paper, pulled, pushed] = ["paper", "pulled", "pushed"].map(colour);
    const values = new Float64Array(side * side);
    let most = 0;
    for (let row = 0; row < side; row++) {
      const second = HIGH - ((row + 0.5) / side) * (HIGH - LOW);
      for (let column = 0; column < side; column++) {
        const value = k(LOW + ((column + 0.5) / side) * (HIGH - LOW), second);
        values[row * side + column] = value;
        most = Math.max(most, Math.abs(value));
      }
    }
    values.forEach((value, i) => {
      const target = value < 0 ? pulled : pushed;
      const strength = 0.12 + 0.88 * Math.sqrt(Math.abs(value) / most); // the sign shows even next to the line
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + (target[c] - paper[c]) * strength;
      image.data[4 * i + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  }

  function words(k, first, second, { tau1, tau2 }) {
    const starts = rankingStarts(k), flat = atRest(k, 1) - atRest(k, 0);
    const order = second >= 1 - 1e-9
      ? "No cosine is high enough: rank 2 is pulled up to 1."
      : second < first
        ? `Ranked: rank 2 rests ${(first - second).toFixed(2)} below rank 1.`
        : "Not ranked: rank 2 would rest above rank 1.";
    const start = starts <= 1
      ? ` Ranking starts once rank 1 is above ${starts.toFixed(2)}.`
      : " With these settings no similarity of rank 1 is enough for a ranking.";
    const why = tau1 > tau2 ? " τ₁ is above τ₂, which the loss refuses unless told otherwise." : "";
    const moves = ` From h(q, p₁) = 0 to 1 the line rises by ${flat.toFixed(2)}.`;
    return order + start + moves + why;
  }

  function update() {
    const now = settings(), k = tradeOff(now);
    for (const slider of sliders) {
      const shown = slider.id === "number" ? now.number.toLocaleString("en") : now[slider.id].toFixed(slider.id.startsWith("tau") ? 3 : 2);
      document.querySelector(`output[for=${slider.id}]`).textContent = shown;
      slider.setAttribute("aria-valuetext", shown);
    }
    drawField(k);
    const points = [];
    for (let i = 0; i <= 120; i++) {
      const first = LOW + ((HIGH - LOW) * i) / 120, second = atRest(k, first);
      if (second < 1 - 1e-9 && second > LOW) points.push([first, second]);
    }
    byId("line").setAttribute("d", path(points));
    const second = atRest(k, now.first), shown = Math.max(LOW, second);
    byId("guide").setAttribute("d", path([[now.first, LOW], [now.first, shown], [LOW, shown]]));
    byId("dot").setAttribute("cx", x(now.first));
    byId("dot").setAttribute("cy", y(shown));
    byId("second").textContent = second.toFixed(4);
    byId("second").dataset.exact = second;
    byId("words").textContent = words(k, now.first, second, now);
  }

  // Theme: the system's, until the button is used. The map is drawn anew, in the other colours.
  const theme = byId("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  function themeChanged() {
    theme.textContent = isDark() ? "Light theme" : "Dark theme";
    update();
  }
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themeChanged();
  });
  system.addEventListener("change", themeChanged);

  let waiting = false;
  function soon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      update();
    });
  }
  byId("sliders").addEventListener("input", soon);
  byId("sliders").addEventListener("reset", () => setTimeout(update));
  drawAxes();
  themeChanged();
})();
