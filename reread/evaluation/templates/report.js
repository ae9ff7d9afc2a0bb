"use strict";
// Charts in the page's colours and width.
(() => {
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
