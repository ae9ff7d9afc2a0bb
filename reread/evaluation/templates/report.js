"use strict";
// The report: charts in the page's colours and width, tables that sort and filter.
(() => {
  const FEWEST_ROWS_TO_FILTER = 8;
  const PANEL = 235; // pixels that a panel of a chart needs
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--chart-${name}`).trim();

  function config() {
    const text = { labelColor: colour("ink"), titleColor: colour("ink"), labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal" };
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      axis: { ...text, gridColor: colour("fill"), domainColor: colour("line"), tickColor: colour("line") },
      header: text,
      legend: { ...text, orient: "top", symbolOpacity: 1, symbolStrokeWidth: 2.5 },
      view: { stroke: colour("line") },
      range: { category: ["blue", "vermillion", "green", "orange", "purple", "sky", "grey"].map(colour) },
    };
  }

  /** The chart in the colours of the page, its panels or its one view as wide as there is room. */
  function fitted(text, width) {
    const spec = JSON.parse(text.replace(/"@([\w-]+)"/g, (_, name) => JSON.stringify(colour(name))));
    if (!spec.facet) {
      const labels = width < 560 ? 110 : 230;
      spec.encoding.y.axis.labelLimit = labels;
      return { ...spec, width, autosize: { type: "fit-x", contains: "padding" } };
    }
    const panel = spec.columns > 3 ? 0.75 * PANEL : PANEL;
    const count = new Set(spec.data.values.map((row) => row[spec.facet.field])).size;
    const names = spec.spec.encoding?.y?.type === "nominal" ? 90 : 0;
    const columns = Math.max(1, Math.min(spec.columns, count, Math.floor(width / (panel + names))));
    const side = Math.floor((width - 64 - names) / columns) - 24;
    const square = spec.spec.width === spec.spec.height;
    spec.facet.header.labelLimit = side;
    Object.assign(spec.spec, { width: side }, square && side < spec.spec.height ? { height: side } : {});
    return { ...spec, columns };
  }

  async function draw() {
    for (const place of document.querySelectorAll(".chart")) {
      const spec = fitted(document.getElementById(place.dataset.chart).textContent, place.clientWidth);
      await vegaEmbed(place, spec, { actions: false, renderer: "canvas", logLevel: 1, config: config(), tooltip: { theme: dark.matches ? "dark" : "light" } });
    }
    document.documentElement.dataset.drawn = "yes";
  }

  const valueOf = (row, column) => {
    const { dataset, textContent } = row.cells[column];
    const text = dataset.value ?? textContent.trim();
    return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
  };

  /** Numbers before texts; an empty cell or a dash comes last either way. */
  function compare(first, second, sign) {
    const empty = (one) => one === "" || one === "–" || one === "None";
    if (empty(first) || empty(second)) return empty(first) - empty(second);
    if (typeof first === "number" && typeof second === "number") return sign * (first - second);
    return sign * String(first).localeCompare(String(second), undefined, { numeric: true });
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const rows = [...body.rows];
        const numbers = rows.some((row) => typeof valueOf(row, column) === "number");
        const before = head.getAttribute("aria-sort");
        const up = before ? before === "descending" : !numbers;
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        rows.sort((a, b) => compare(valueOf(a, column), valueOf(b, column), up ? 1 : -1));
        body.append(...rows);
      });
    });
    if (body.rows.length < FEWEST_ROWS_TO_FILTER) return;
    const field = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter rows", className: "filter" });
    field.setAttribute("aria-label", `Filter rows: ${table.getAttribute("aria-label")}`);
    const count = Object.assign(document.createElement("output"), { className: "soft small" });
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      const shown = [...body.rows].filter((row) => {
        const names = [...row.cells].filter((cell) => cell.dataset.value === undefined);
        const text = names.map((cell) => cell.textContent.toLowerCase()).join(" ");
        row.hidden = !words.every((word) => text.includes(word));
        return !row.hidden;
      });
      count.textContent = field.value ? ` ${shown.length} of ${body.rows.length} rows` : "";
    });
    (table.closest(".scroll") ?? table).before(field, count);
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  let waiting = 0, width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar came or went
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 200);
  });
  dark.addEventListener("change", draw);
  draw();
})();
