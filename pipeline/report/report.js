"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add("js");

  // Blurred pictures are shown when somebody asks, and blurred again likewise.
  const reveal = (card, isShown) => {
    const veil = card.querySelector(".veil");
    if (!veil) return;
    card.classList.toggle("is-shown", isShown);
    veil.setAttribute("aria-pressed", String(isShown));
    veil.firstElementChild.textContent = isShown ? "Blur" : "Show";
  };
  document.addEventListener("click", (event) => {
    const veil = event.target.closest(".veil");
    if (veil) reveal(veil.closest(".card"), veil.getAttribute("aria-pressed") !== "true");
    const every = event.target.closest("[data-unblur]");
    if (every) {
      const isShown = every.getAttribute("aria-pressed") !== "true";
      every.setAttribute("aria-pressed", String(isShown));
      every.textContent = isShown ? "Blur them again" : "Show all of this video’s blurred pictures";
      all(".card.is-blurred", byId(every.dataset.unblur)).forEach((card) => reveal(card, isShown));
    }
  });

  // A mark on the timeline points at its card.
  const point = (event) => {
    const mark = event.target.closest?.(".mark");
    all(".is-pointed").forEach((card) => card.classList.remove("is-pointed"));
    if (mark) byId(mark.getAttribute("href").slice(1))?.classList.add("is-pointed");
  };
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);

  // Links into a closed section open it.
  const openTarget = () => {
    const target = /^#v\d+(-k\d+)?$/.test(location.hash) && byId(location.hash.slice(1));
    const section = target && target.closest("details");
    if (section) {
      section.hidden = false;
      section.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", openTarget);
  openTarget();
  addEventListener("beforeprint", () => all("details.video:not([hidden])").forEach((section) => { section.open = true; }));
  const setOpen = (isOpen) => all("details.video:not([hidden])").forEach((section) => { section.open = isOpen; });
  byId("open-all")?.addEventListener("click", () => setOpen(true));
  byId("close-all")?.addEventListener("click", () => setOpen(false));

  const table = byId("table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];

  // Sorting, by a column's data-value: numbers as numbers, text as people sort it.
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const valueOf = (row, column) => row.cells[column].dataset.value;
  all("thead button", table).forEach((button) => button.addEventListener("click", () => {
    const heading = button.closest("th");
    const isUp = heading.getAttribute("aria-sort") !== "ascending";
    all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const column = heading.cellIndex;
    const isNumeric = rows.every((row) => valueOf(row, column) !== "" && Number.isFinite(Number(valueOf(row, column))));
    const compare = isNumeric
      ? (a, b) => Number(valueOf(a, column)) - Number(valueOf(b, column))
      : (a, b) => collator.compare(valueOf(a, column), valueOf(b, column));
    body.append(...[...rows].sort((a, b) => (isUp ? compare(a, b) : compare(b, a))));
  }));

  // Filtering rows, sections and rejections alike.
  const find = byId("find");
  const show = byId("show");
  const texts = rows.map((row) => row.cells[0].textContent.toLowerCase());
  const rest = new Map();
  all("details[data-video], li[data-video]").forEach((element) => rest.set(element.dataset.video, element));
  const fits = (row, kind, value) =>
    kind === "" || row.dataset[kind] === value || (kind === "answers" && row.dataset.answers.split(" ").includes(value));
  const filter = () => {
    const wanted = find.value.trim().toLowerCase();
    const at = show.value.indexOf(":");
    const [kind, value] = [show.value.slice(0, Math.max(0, at)), show.value.slice(at + 1)];
    let matches = 0;
    rows.forEach((row, i) => {
      const isShown = texts[i].includes(wanted) && fits(row, kind, value);
      row.hidden = !isShown;
      const other = rest.get(row.dataset.video);
      if (other) other.hidden = !isShown;
      matches += isShown;
    });
    byId("matches").textContent = matches === rows.length ? "" : `${matches} of ${rows.length} videos`;
  };
  find.addEventListener("input", filter);
  show.addEventListener("change", filter);
  filter();
})();
