"use strict";
// The page of attention: the choices, and the documents that they leave.
(() => {
  const { unit, sets, readings } = JSON.parse(document.getElementById("payload").textContent);
  const choice = Object.fromEntries(
    ["network", "seed", "class", "answer", "other-network", "other-seed"].map((id) => [id, document.getElementById(id)]),
  );
  const variants = [...new Set(readings.map((one) => one.variant))];

  function element(name, className, text, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    made.append(...children);
    return made;
  }

  /** Give a select these [value, text]; the value is kept where it is still one of them. */
  function offer(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    if (options.some(([value]) => value === before)) select.value = before;
  }

  function seedsOf(variant) {
    const mine = readings.filter((one) => one.variant === variant);
    return mine.map((one, place) => [String(one.seed), place ? String(one.seed) : `${one.seed} (best)`]);
  }

  const chosen = (network, seed) =>
    readings.find((one) => one.variant === network.value && String(one.seed) === seed.value);

  function reading(of, place, words) {
    const found = of.documents[place];
    const heaviest = Math.max(...found.sentences.map((one) => one.weight), 1);
    const predicted = found.predicted.flatMap(([name, probability], number) => [
      number ? ", " : "", element("strong", "", name), probability === null ? "" : ` (${probability.toFixed(3)})`,
    ]);
    const made = element("section", "");
    made.append(
      element("h2", "", `${of.variant}, seed ${of.seed}`),
      element("div", "labels small", undefined,
        element("span", `badge ${found.right ? "holds" : "fails"}`, found.right ? "✓ right" : "✗ wrong"),
        element("span", "", "predicted ", ...(predicted.length ? predicted : ["nothing"]))),
    );
    found.sentences.forEach((sentence, number) => {
      const bar = element("i", "");
      bar.style.width = `${Math.round((100 * sentence.weight) / heaviest)}%`;
      const weight = element("span", "weight", (unit * sentence.weight).toFixed(2), element("span", "bar", undefined, bar));
      weight.title = `sentence weight ${(unit * sentence.weight).toFixed(4)}`;
      const text = element("p", "");
      words[number].forEach((word, index) => {
        const shown = element("span", `l${sentence.shades[index]}`, word);
        shown.title = (unit * sentence.weights[index]).toFixed(4);
        text.append(index ? " " : "", shown);
      });
      made.append(element("div", "sentence", undefined, weight, text));
    });
    return made;
  }

  function show() {
    const first = chosen(choice.network, choice.seed);
    const second = chosen(choice["other-network"], choice["other-seed"]);
    const set = sets[first.set];
    const articles = [];
    set.documents.forEach((about, place) => {
      const mine = first.documents[place];
      const beside = second ? sets[second.set].documents.findIndex((one) => one.id === about.id) : -1;
      if (choice.class.value && !mine.true.includes(choice.class.value)) return;
      if (choice.answer.value === "right" && !mine.right) return;
      if (choice.answer.value === "wrong" && mine.right) return;
      const labels = (one) => one.predicted.map(([name]) => name).join("\n");
      if (choice.answer.value === "differ" && (beside < 0 || labels(mine) === labels(second.documents[beside]))) return;
      const both = element("div", "readings", undefined, reading(first, place, about.sentences));
      if (beside >= 0) {
        both.classList.add("two");
        both.append(reading(second, beside, sets[second.set].documents[beside].sentences));
      }
      const head = element("div", "labels small", undefined,
        element("span", "", "true ", element("strong", "", mine.true.join(", ") || "nothing")),
        element("span", "soft", about.id));
      const article = element("article", "card document", undefined, head, both);
      articles.push(article);
    });
    const right = first.documents.filter((one) => one.right).length;
    document.getElementById("count").textContent =
      `${articles.length} of ${set.documents.length} documents of ${set.data} are shown. ` +
      `${first.variant}, seed ${first.seed}: ${right} of ${set.documents.length} are classified right.`;
    document.getElementById("documents").replaceChildren(...articles);
  }

  function update(event) {
    const from = event ? event.target : choice.network;
    if (from === choice.network) {
      offer(choice.seed, seedsOf(choice.network.value));
      const { data, classes } = sets[chosen(choice.network, choice.seed).set];
      offer(choice.class, [["", "any"], ...classes.map((name) => [name, name])]);
      const others = variants.filter((name) => sets[readings.find((one) => one.variant === name).set].data === data);
      offer(choice["other-network"], [["", "nothing"], ...others.map((name) => [name, name])]);
    }
    if (from === choice.network || from === choice["other-network"]) {
      const other = choice["other-network"].value;
      offer(choice["other-seed"], other ? seedsOf(other) : [["", "–"]]);
      choice["other-seed"].disabled = !other;
      choice.answer.options[3].disabled = !other;
      if (!other && choice.answer.value === "differ") choice.answer.value = "";
    }
    show();
  }

  offer(choice.network, variants.map((name) => [name, name]));
  document.querySelector("form.choices").addEventListener("change", update);
  update();
})();
