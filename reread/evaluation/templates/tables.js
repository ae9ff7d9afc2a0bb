"use strict";
// Tables that sort and filter.
(() => {
  const FEWEST_ROWS_TO_FILTER = 8;

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
})();
