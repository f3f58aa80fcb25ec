"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SVG_TAGS = new Set(["svg", "path", "circle", "g"]);
  const data = JSON.parse(document.getElementById("data").textContent);

  /** An element with attributes and children; text always goes in as text. */
  function make(tag, attributes = {}, ...children) {
    const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // Theme: the system's, until the button is used.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  function sayTheme() {
    theme.textContent = isDark() ? "Light theme" : "Dark theme";
  }
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    sayTheme();
  });
  system.addEventListener("change", sayTheme);
  sayTheme();

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => {
      // The old way: pages opened from disk are not everywhere allowed to use the new one.
      getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
      const done = document.execCommand("copy");
      button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    });
  }

  if (!data.runs) return;

  // Moving thumbnails: all of them move, or none does, as the system wants it until the button is used.
  const films = [...document.querySelectorAll("img[data-film]")];
  const motion = document.getElementById("motion");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const stills = new Map();
  let moving = !calm.matches;

  /** A film's first frame, as an address. */
  async function still(uri) {
    const image = make("img", { src: uri });
    await image.decode();
    const canvas = make("canvas", { width: image.naturalWidth, height: image.naturalHeight });
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/png");
  }
  function showFilms() {
    motion.textContent = moving ? "Pause the videos" : "Play the videos";
    for (const film of films) {
      const uri = data.films[film.dataset.film];
      if (moving) {
        film.src = uri;
        continue;
      }
      if (!stills.has(uri)) stills.set(uri, still(uri));
      stills.get(uri).then((first) => {
        if (!moving) film.src = first;
      });
    }
  }
  if (films.length) {
    motion.hidden = false;
    motion.addEventListener("click", () => {
      moving = !moving;
      showFilms();
    });
    calm.addEventListener("change", () => {
      moving = !calm.matches;
      showFilms();
    });
    showFilms();
  }

  // Thumbnails: cut out of two sheets; words where there is nothing to see.
  for (const sheet of [data.queries, data.gallery]) {
    if (sheet.words) continue;
    sheet.image = new Image();
    sheet.image.src = sheet.uri;
  }
  function thumb(sheet, number, label) {
    if (sheet.words) return make("q", { class: "words" }, sheet.words[number]);
    const canvas = make("canvas", { width: sheet.size, height: sheet.size, role: "img", "aria-label": label });
    const x = (number % sheet.columns) * sheet.cell;
    const y = Math.floor(number / sheet.columns) * sheet.cell;
    const draw = () => {
      canvas.getContext("2d").drawImage(sheet.image, x, y, sheet.size, sheet.size, 0, 0, sheet.size, sheet.size);
      canvas.dataset.drawn = "yes";
    };
    if (sheet.image.complete) draw();
    else sheet.image.addEventListener("load", draw, { once: true });
    return canvas;
  }

  const nameOf = (level, label) => data.levels[level].groups[data.levels[level].of[label]];
  const groupsAbove = (label) => data.levels.slice(1).map((_, i) => nameOf(i + 1, label));
  const describe = (sample) => [nameOf(0, data.classes[sample]), ...groupsAbove(data.classes[sample])].join(", ");

  // Shapes about the origin, of one area.
  const OUTLINES = [
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0Z",
    "M0 -5.4L5 3.6L-5 3.6Z",
    "M-3.7 -3.7H3.7V3.7H-3.7Z",
    "M0 -5.2L5.2 0L0 5.2L-5.2 0Z",
  ];
  const [SIZE, EDGE] = [440, 16];
  const ROOM = SIZE - 2 * EDGE;
  const highest = Math.max(...data.runs.flatMap((run) => run.places.map((place) => place[1])));
  const HEIGHT = Math.ceil(highest * ROOM + 2 * EDGE); // one for all maps, so that they stand level
  const section = document.getElementById("map");
  const tip = document.getElementById("tip");
  const panel = document.getElementById("panel");
  const status = document.getElementById("status");
  let level = Number(section.dataset.level);
  let current = null;
  let opened = null;
  let only = null;
  let lastMap = 0;

  const maps = data.runs.map((run, number) => {
    const field = make("svg", {
      class: "field", viewBox: `0 0 ${SIZE} ${HEIGHT}`, tabindex: 0, role: "application",
      "aria-roledescription": `map of ${data.thing}s`,
      "aria-label": `Map of ${run.places.length} test ${data.thing}s, ${run.label}`,
      "aria-describedby": "map-help",
    });
    const wide = Math.max(...run.places.map((place) => place[0]));
    const high = Math.max(...run.places.map((place) => place[1]));
    const spots = run.places.map(([x, y]) => [
      EDGE + (x + (1 - wide) / 2) * ROOM,
      HEIGHT - EDGE - (y + (highest - high) / 2) * ROOM,
    ]);
    const marks = spots.map(([x, y], sample) =>
      make("path", { class: "mark", "data-sample": sample, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }));
    const ring = make("circle", { class: "ring", r: 8.5, visibility: "hidden" });
    field.append(...marks, ring);
    const title = make("h3");
    title.textContent = run.label;
    document.getElementById("maps").append(make("figure", {}, title, field));
    const map = { number, run, field, spots, marks, ring };
    listen(map);
    return map;
  });

  function listen(map) {
    const { field } = map;
    field.addEventListener("pointermove", (event) => {
      const sample = nearestTo(map, event);
      if (sample === null) return leave();
      look(sample, map);
    });
    field.addEventListener("pointerleave", () => leave());
    field.addEventListener("click", (event) => {
      const sample = current ?? nearestTo(map, event); // what is ringed is what opens
      if (sample !== null) open(sample, map);
    });
    field.addEventListener("focus", () => {
      lastMap = map.number;
      if (field.matches(":focus-visible")) look(current ?? opened ?? middle(map), map, true);
    });
    field.addEventListener("blur", () => leave());
    field.addEventListener("keydown", (event) => {
      const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const turns = { PageDown: 1, PageUp: -1 };
      if (ways[event.key]) look(step(map, ...ways[event.key]), map, true);
      else if (turns[event.key]) look(turn(turns[event.key]), map, true);
      else if ((event.key === "Enter" || event.key === " ") && current !== null) open(current, map);
      else return;
      event.preventDefault();
    });
  }

  function nearestTo(map, event) {
    const box = map.field.getBoundingClientRect();
    const scale = SIZE / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let [best, least] = [null, (event.pointerType === "touch" ? 24 : 12) * scale];
    map.spots.forEach(([sx, sy], sample) => {
      const far = Math.hypot(sx - x, sy - y);
      if (far < least && !hidden(sample)) [best, least] = [sample, far];
    });
    return best;
  }

  /** The next sample in a direction; what lies aside counts double. */
  function step(map, dx, dy) {
    if (current === null) return middle(map);
    const [cx, cy] = map.spots[current];
    let [best, least] = [current, Infinity];
    map.spots.forEach(([x, y], sample) => {
      const along = (x - cx) * dx + (y - cy) * dy;
      const aside = Math.abs((x - cx) * dy) + Math.abs((y - cy) * dx);
      const cost = along + 2 * aside;
      if (sample !== current && along > 0 && aside <= 2 * along && cost < least && !hidden(sample)) {
        [best, least] = [sample, cost];
      }
    });
    return best;
  }

  /** The next sample in the order of the data; so, none is out of reach. */
  function turn(way) {
    let sample = current ?? opened ?? 0;
    do sample = (sample + way + data.classes.length) % data.classes.length; while (hidden(sample));
    return sample;
  }

  function middle(map) {
    let [best, least] = [0, Infinity];
    map.spots.forEach(([x, y], sample) => {
      const far = Math.hypot(x - SIZE / 2, y - HEIGHT / 2);
      if (far < least && !hidden(sample)) [best, least] = [sample, far];
    });
    return best;
  }

  const groupOf = (sample) => data.levels[level].of[data.classes[sample]];
  const hidden = (sample) => only !== null && groupOf(sample) !== only;

  function rings() {
    const sample = current ?? opened;
    for (const { ring, spots } of maps) {
      ring.setAttribute("visibility", sample === null ? "hidden" : "visible");
      if (sample === null) continue;
      ring.setAttribute("cx", spots[sample][0]);
      ring.setAttribute("cy", spots[sample][1]);
    }
  }

  function look(sample, map, aloud = false) {
    if (sample === current && !tip.hidden) return;
    current = sample;
    rings();
    const label = data.classes[sample];
    const words = make("div", {}, make("b", {}, nameOf(0, label)), ...groupsAbove(label).map((g) => make("span", {}, g)));
    tip.replaceChildren(thumb(data.queries, sample, describe(sample)), words);
    tip.dataset.sample = sample;
    tip.hidden = false;
    const [outer, box] = [section.getBoundingClientRect(), map.field.getBoundingClientRect()];
    const [x, y] = map.spots[sample].map((value) => (value * box.width) / SIZE);
    const left = Math.min(box.left - outer.left + x + 14, outer.width - tip.offsetWidth);
    const above = box.top - outer.top + y - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${above}px`;
    if (aloud) status.textContent = `${describe(sample)}. Enter shows what is nearest to it.`;
  }

  function leave() {
    current = null;
    tip.hidden = true;
    rings();
  }

  const rankWords = (rank) => (rank === 0 ? "\u2715 negative" : `${rank} \u00b7 same ${data.levels[rank - 1].name}`);

  function open(sample, map) {
    opened = sample;
    lastMap = map.number;
    rings();
    const close = make("button", { type: "button" }, "Close");
    close.addEventListener("click", shut);
    const words = make("div", {}, make("h3", {}, nameOf(0, data.classes[sample])),
      make("p", {}, [...groupsAbove(data.classes[sample]), `test ${data.thing} ${data.rows[sample]}`].join(" \u00b7 ")));
    panel.replaceChildren(
      make("header", {}, thumb(data.queries, sample, describe(sample)), words, close),
      ...data.runs.map((run) => found(run, sample)),
    );
    panel.dataset.sample = sample;
    panel.hidden = false;
    const box = map.field.getBoundingClientRect();
    const below = box.top + (map.spots[sample][1] * box.width) / SIZE + 24 - panel.getBoundingClientRect().top;
    if (below > 0) scrollBy(0, below); // the panel would cover what it is about
  }

  function found(run, sample) {
    const right = run.ranks[sample].filter((rank) => rank === 1).length;
    const of = run.ranks[sample].length;
    const list = make("ol", {}, ...run.ranks[sample].map((rank, place) => {
      const name = nameOf(0, run.classes[sample][place]);
      const words = make("div", {}, make("span", { class: "rank" }, rankWords(rank)), make("b", {}, name),
        `cosine ${run.cosines[sample][place].toFixed(3)}`);
      return make("li", { "data-rank": rank }, thumb(data.gallery, run.thumbs[sample][place], name), words);
    }));
    const head = make("h4", {}, run.label, make("span", {}, `${right} of ${of} same ${data.levels[0].name}`));
    return make("div", { class: "found" }, head, list);
  }

  function shut() {
    if (panel.hidden) return;
    const inside = panel.contains(document.activeElement);
    panel.hidden = true;
    panel.replaceChildren();
    opened = null;
    rings();
    if (inside) maps[lastMap].field.focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (panel.hidden) leave();
    shut();
  });

  // Colours and the legend.
  function paint() {
    for (const { marks } of maps) {
      marks.forEach((mark, sample) => {
        const [colour, shape] = data.levels[level].marks[groupOf(sample)];
        mark.setAttribute("fill", colour);
        mark.setAttribute("d", OUTLINES[shape]);
      });
    }
    const present = [...new Set(data.classes.map((label) => data.levels[level].of[label]))];
    const order = (group) => data.levels.slice(level).reverse().map((above) => above.of[data.levels[level].of.indexOf(group)]);
    present.sort((a, b) => compare(order(a), order(b)));
    document.getElementById("legend").classList.toggle("many", present.length > 24);
    document.getElementById("legend").replaceChildren(...present.map((group) => {
      const [colour, shape] = data.levels[level].marks[group];
      const icon = make("svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true" }, make("path", { d: OUTLINES[shape], fill: colour }));
      const chip = make("button", { type: "button", "aria-pressed": "false" }, icon, data.levels[level].groups[group]);
      chip.addEventListener("click", () => {
        only = only === group ? null : group;
        for (const other of chip.parentElement.children) other.setAttribute("aria-pressed", String(other === chip && only === group));
        dim();
      });
      return chip;
    }));
  }
  function compare(a, b) {
    const at = a.findIndex((value, i) => value !== b[i]);
    return at < 0 ? 0 : a[at] - b[at];
  }
  function dim() {
    for (const { marks } of maps) marks.forEach((mark, sample) => mark.classList.toggle("dim", hidden(sample)));
  }
  for (const input of section.querySelectorAll("input[name=level]")) {
    input.addEventListener("change", () => {
      [level, only] = [Number(input.value), null];
      paint();
      dim();
    });
  }
  paint();
})();
