"use strict";
// Draws the charts of a report from the value in #facts; sorts its tables. Nothing is fetched.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  // Okabe and Ito's colours, told apart by colour-blind readers too; dashes repeat the distinction
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "ink"];
  const DASHES = ["solid", "dashed", "dotted"];
  const NARROW = 640;
  const FEW = 6; // beyond, names stand at the ends of lines
  const SPARSE = 12; // a line of so few points shows them: between two of them nobody looked
  const charts = [];
  let printing = false;

  // ---------------------------------------------------------------------------------- small helpers

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const look = () => ({
    paper: css("paper"), ink: css("ink"), muted: css("muted"), faint: css("faint"), soft: css("soft"),
    accent: css("accent"), warn: css("warn"), line: css("line"),
    dark: !printing && matchMedia("(prefers-color-scheme: dark)").matches,
  });
  let theme = look();
  const escapeText = (text) =>
    String(text).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
  const make = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "on") Object.entries(value).forEach(([event, act]) => made.addEventListener(event, act));
      else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  };
  const number = (value, digits = 2) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace("-", "−");
    return value.toFixed(size >= 100 ? 1 : size >= 1 ? digits : 3).replace("-", "−");
  };
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let place = 0;
    while (value >= 1000 && place < 4) { value /= 1000; place++; }
    return `${value >= 100 || place === 0 ? Math.round(value) : +value.toFixed(1)} ${units[place]}`;
  };
  const seconds = (value) => (value >= 7200 ? `${+(value / 3600).toFixed(1)} h` : value >= 120 ? `${+(value / 60).toFixed(1)} min` : `${+value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0)} s`);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const deviation = (values) => {
    const middle = mean(values);
    return values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - middle) ** 2, 0) / (values.length - 1)) : 0;
  };
  /** A long text without its middle: names often differ at their ends alone. */
  const cut = (text, most) => {
    const tail = Math.floor(most * 0.45);
    return text.length <= most ? text : `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
  };

  // ------------------------------------------------------------------------------ drawing and redrawing

  /** A chart in a box: `build(width)` gives {height, option, canvas, after}; it is drawn anew when looks or width change. */
  function draw(box, build) {
    const plot = box.querySelector(":scope > .plot") || box.appendChild(make("div", { class: "plot" }));
    const chart = { box, plot, build, instance: null, width: 0 };
    charts.push(chart);
    redraw(chart);
    return () => redraw(chart);
  }

  function redraw(chart) {
    const width = printing ? Math.min(chart.box.clientWidth || 660, 660) : chart.box.clientWidth;
    if (!width) return; // in a setting that is not shown
    const built = chart.build(width);
    if (chart.instance) chart.instance.dispose();
    chart.plot.style.height = `${built.height}px`;
    chart.instance = echarts.init(chart.plot, null, { renderer: built.canvas ? "canvas" : "svg", width, height: built.height });
    chart.width = chart.box.clientWidth;
    chart.instance.setOption({ animation: false, textStyle: { fontFamily: "system-ui, sans-serif", color: theme.ink }, ...built.option });
    if (built.after) built.after(chart.instance, width);
  }

  function redrawAll() {
    theme = look();
    charts.forEach(redraw);
  }

  let waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => charts.forEach((chart) => { if (chart.box.clientWidth !== chart.width) redraw(chart); }), 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  const print = (on) => {
    if (printing === on) return;
    printing = on;
    reveal();
    if (on) facts.settings.forEach((_, place) => prepare(place)); // paper has no tabs to click
    while (queue.length) queue.shift()();
    redrawAll();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));

  const tooltip = (more = {}) => ({
    confine: true, backgroundColor: theme.paper, borderColor: theme.line, padding: [6, 10],
    textStyle: { color: theme.ink, fontSize: 12 }, extraCssText: "box-shadow:0 2px 10px rgba(0,0,0,.12);max-width:340px;", ...more,
  });
  const axisLooks = () => ({
    axisLine: { lineStyle: { color: theme.line } }, axisTick: { show: false },
    axisLabel: { color: theme.muted, fontSize: 11, hideOverlap: true },
    splitLine: { lineStyle: { color: theme.faint } },
    nameTextStyle: { color: theme.muted, fontSize: 11 },
  });
  const valueAxis = (name, more = {}) => {
    const looks = axisLooks();
    return { type: "value", name, scale: true, nameLocation: "middle", nameGap: 28, ...looks, ...more, axisLabel: { ...looks.axisLabel, ...more.axisLabel } };
  };
  /** Names along the vertical axis; above their rows where a phone has no room for long ones beside them. */
  const stacks = (width, names) => width < NARROW && names.some((name) => 10 + 6.8 * name.length > width * 0.34);
  const nameRoom = (width, names) => {
    if (stacks(width, names)) return 0;
    const longest = 10 + 6.8 * Math.max(...names.map((name) => name.length));
    return Math.round(Math.min(longest, width < NARROW ? width * 0.34 : 230));
  };
  const nameAxis = (names, width) => {
    const above = stacks(width, names);
    const placed = above
      ? { inside: true, margin: 2, align: "left", verticalAlign: "bottom", padding: [0, 0, 12, 0], width: width - 40 }
      : { width: nameRoom(width, names) };
    return {
      type: "category", data: names, inverse: true, ...axisLooks(), splitLine: { show: false }, z: above ? 5 : 0,
      axisLabel: {
        color: theme.ink, fontSize: 11.5, interval: 0, overflow: "truncate", hideOverlap: false,
        formatter: (name) => (10 + 6.8 * name.length <= placed.width + 1 ? name : cut(name, Math.max(10, Math.floor(placed.width / 7.4)))),
        ...placed,
      },
    };
  };
  const rowsHigh = (width, names) => names.length * (stacks(width, names) ? 44 : printing && names.length > 30 ? 18 : 25);
  const swatch = (colour) => `<span style="display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px;background:${colour}"></span>`;

  function select(label, choices, act, chosen = 0) {
    const field = make("select", { on: { change: () => act(field.value) } });
    choices.forEach(([value, text], place) => field.append(make("option", { value, selected: place === chosen }, cut(String(text), 70))));
    return make("label", {}, label, field);
  }

  function choices(label, options, act, chosen) {
    const group = make("span", { role: "group", "aria-label": label }, label);
    for (const [value, text] of options) {
      const button = make("button", { "aria-pressed": String(value === chosen), "data-choice": value }, text);
      button.addEventListener("click", () => {
        group.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        act(value);
      });
      group.append(button);
    }
    return group;
  }

  // --------------------------------------------------------------------------- methods: colours, names

  /** How each method looks; `names`: of those that there are lines of. */
  function dress(setting, hidden, names = setting.methods.map((method) => method.name)) {
    const shown = names.filter((name) => !hidden.has(name)).length;
    const found = {};
    setting.methods.forEach((method, place) => {
      const at = method.colour >= 0 ? method.colour : shown <= FEW + 2 ? place : -1;
      const colour = at < 0 ? null : COLOURS[at % COLOURS.length];
      found[method.name] = {
        grey: at < 0, dash: at < 0 ? "solid" : DASHES[Math.floor(at / COLOURS.length) % DASHES.length],
        colour: at < 0 ? (theme.dark ? "#5d6b78" : "#b3bdc7") : colour === "ink" ? theme.ink : theme.dark && !(at % COLOURS.length) ? "#1f8ad0" : colour,
      };
    });
    return found;
  }

  /** Buttons with the names of lines: a click hides, a double click or one with Alt or Shift singles out. */
  function nameLines(names, hidden, changed) {
    const box = make("div", { class: "lines", role: "group", "aria-label": "methods" });
    const buttons = new Map();
    for (const name of names) {
      const button = make("button", { title: name, "data-method": name, "aria-pressed": "true" }, make("i"), make("b"), make("span", {}, cut(name, 34)));
      buttons.set(name, button);
      box.append(button);
    }
    let meant = null, alone = false; // the first click moves names: the second one may be on another, or on none
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-method]"), second = event.detail === 2;
      if (!second) meant = button && box.contains(button) ? button.dataset.method : null;
      if (meant === null) return;
      if (!second) alone = names.every((name) => hidden.has(name) === (name !== meant));
      if (second || event.altKey || event.shiftKey || event.ctrlKey || event.metaKey) {
        names.forEach((name) => (!alone && name !== meant ? hidden.add(name) : hidden.delete(name)));
      } else {
        hidden.has(meant) ? hidden.delete(meant) : hidden.add(meant);
      }
      changed();
    });
    const paint = (looks) => {
      for (const [name, button] of buttons) {
        button.style.setProperty("--c", looks[name].grey ? theme.muted : looks[name].colour);
        button.querySelector("i").className = looks[name].dash;
        button.classList.toggle("off", hidden.has(name));
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
      }
    };
    return { box, buttons, paint };
  }

  /** Moves labels apart, each as near to its line as the others allow; positions from the top. */
  function spread(wanted, gap, most) {
    const order = wanted.map((y, place) => ({ y, place })).sort((a, b) => a.y - b.y);
    const blocks = [];
    for (const item of order) {
      blocks.push({ items: [item], y: item.y });
      while (blocks.length > 1) {
        const [above, below] = blocks.slice(-2);
        if (above.y + above.items.length * gap <= below.y) break;
        const items = above.items.concat(below.items);
        const y = mean(items.map((each, place) => each.y - place * gap));
        blocks.splice(-2, 2, { items, y: Math.max(0, Math.min(y, most - items.length * gap)) });
      }
    }
    const found = [];
    let free = 0;
    for (const block of blocks) {
      let y = Math.max(free, Math.min(block.y, most - block.items.length * gap));
      for (const item of block.items) { found[item.place] = y; y += gap; }
      free = y;
    }
    return found;
  }

  // ------------------------------------------------------------------------------------ learning curves

  function smooth(values, weight) {
    let last = 0, sum = 0;
    return values.map((value) => {
      if (value == null) return null;
      last = weight * last + (1 - weight) * value;
      sum = weight * sum + (1 - weight);
      return last / sum;
    });
  }

  const AXES = {
    rounds: ["rounds", (v) => String(Math.round(v)), "round"],
    bytes: ["bytes", bytes, "bytes sent, both ways"],
    seconds: ["seconds", seconds, "seconds of work: clients added up, and merging"],
  };

  function sumUp(setting, quantity, name, axis, weight) {
    const x = setting.axes[name][axis];
    const seeds = quantity.curves[name].map((values) => (weight ? smooth(values, weight) : values));
    const points = [];
    x.forEach((at, place) => {
      const values = seeds.map((own) => own[place]).filter((value) => value != null);
      if (values.length && at != null) points.push([at, mean(values), deviation(values), values.length]);
    });
    return points;
  }

  function drawCurves(body, setting) {
    const state = { quantity: setting.quantities[0], axis: "rounds", weight: 0 };
    const hidden = new Set();
    const tools = make("div", { class: "tools" });
    const box = make("div", { class: "chart" });
    body.append(tools);
    let lines = null, again = () => {};
    const rename = () => {
      if (lines) lines.box.remove();
      lines = nameLines(setting.methods.map((m) => m.name).filter((name) => name in state.quantity.curves), hidden, () => again());
      box.before(lines.box);
    };
    if (setting.quantities.length > 1) {
      tools.append(choices("show", setting.quantities.map((q) => [q.key, q.label]), (key) => {
        state.quantity = setting.quantities.find((q) => q.key === key);
        rename();
        again();
      }, state.quantity.key));
    }
    tools.append(choices("over", Object.entries(AXES).map(([key, [text]]) => [key, text]), (key) => { state.axis = key; again(); }, "rounds"));
    const slider = make("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0, "aria-label": "smoothing" });
    slider.addEventListener("input", () => { state.weight = +slider.value; again(); });
    tools.append(make("label", {}, "smoothing", slider));
    tools.append(make("button", { "data-act": "all", on: { click: () => { hidden.clear(); again(); } } }, "show all"));
    body.append(box);
    rename();

    again = draw(box, (width) => {
      const { quantity, axis, weight } = state;
      const names = [...lines.buttons.keys()];
      const shown = names.filter((name) => !hidden.has(name));
      const looks = dress(setting, hidden, names);
      const beside = width >= NARROW && names.length > FEW;
      const room = beside ? Math.min(280, Math.round(width * 0.28)) : 0;
      const [, format, title] = AXES[axis];
      const curves = Object.fromEntries(shown.map((name) => [name, sumUp(setting, quantity, name, axis, weight)]));
      const series = [];
      for (const name of shown.slice().sort((a, b) => looks[b].grey - looks[a].grey)) {
        const { colour, dash, grey } = looks[name];
        const points = curves[name];
        if (!grey && points.some((point) => point[3] > 1)) {
          const edge = points.map(([x, y, sd]) => [x, y - sd]).concat(points.map(([x, y, sd]) => [x, y + sd]).reverse());
          series.push({
            type: "custom", name: `${name}\u0000band`, silent: true, clip: true, z: 1, tooltip: { show: false },
            encode: { x: 0, y: [1, 2] }, data: points.map(([x, y, sd]) => [x, y - sd, y + sd]),
            renderItem: (at, api) => at.dataIndex ? null : {
              type: "polygon", shape: { points: edge.map((point) => api.coord(point)) }, style: { fill: colour, opacity: shown.length > 8 ? 0.07 : 0.13 },
            },
          });
        }
        series.push({
          type: "line", name, data: points.map(([x, y]) => [x, y]), showSymbol: points.length <= SPARSE, symbol: "circle", symbolSize: points.length === 1 ? 7 : 5,
          lineStyle: { width: grey ? 1.1 : 2, color: colour, type: dash }, itemStyle: { color: colour }, z: grey ? 2 : 3,
          emphasis: { focus: "series", lineStyle: { width: 3 } }, blur: { lineStyle: { opacity: 0.25 } },
        });
      }
      lines.paint(looks);
      const height = Math.max(width < NARROW ? 300 : 400, beside ? names.length * 16 + 70 : 0);
      return {
        height,
        option: {
          grid: { left: 52, right: room + (width < NARROW ? 14 : 18), top: 16, bottom: 44 },
          xAxis: valueAxis(title, { scale: axis === "rounds", minInterval: axis === "rounds" ? 1 : undefined, splitLine: { show: false }, axisLabel: { formatter: format } }),
          yAxis: valueAxis(quantity.percent ? `${quantity.label} (%)` : quantity.label, { nameGap: 38 }),
          tooltip: tooltip({
            trigger: "axis", order: "seriesAsc", axisPointer: { lineStyle: { color: theme.line } },
            formatter: (items) => tellPoint(items.filter((item) => item.seriesType === "line"), curves, quantity, format, axis),
          }),
          series,
        },
        after: (chart) => placeNames(chart, lines, box, { beside, room, left: width - room, height, shown, names, curves, looks }),
      };
    });
  }

  function tellPoint(items, curves, quantity, format, axis) {
    if (!items.length) return "";
    const sorted = items.slice().sort((a, b) => (quantity.percent ? b.value[1] - a.value[1] : a.value[1] - b.value[1]));
    const rows = sorted.slice(0, 16).map((item) => {
      const point = curves[item.seriesName].find((each) => each[0] === item.value[0]) || [];
      const spread = point[3] > 1 ? ` ± ${number(point[2])}` : "";
      return `<tr><td style="border:0;padding:0 12px 0 0;text-align:left">${swatch(item.color)}${escapeText(cut(item.seriesName, 34))}</td><td style="border:0;padding:0">${number(item.value[1])}${spread}</td></tr>`;
    });
    const rest = sorted.length > 16 ? `<div style="color:${theme.muted}">and ${sorted.length - 16} more</div>` : "";
    return `<b>${axis === "rounds" ? "round " : ""}${format(items[0].axisValue ?? items[0].value[0])}</b><table style="width:auto;font-size:12px">${rows.join("")}</table>${rest}`;
  }

  const tellLast = (button, points) => (button.querySelector("b").textContent = points && points.length ? number(points[points.length - 1][1], 1) : "");

  /** Names at the ends of the lines where there is room and there are many, else above them. */
  function placeNames(chart, lines, box, { beside, room, left, height, shown, names, curves, looks }) {
    lines.box.classList.toggle("beside", beside);
    lines.box.querySelectorAll("svg").forEach((old) => old.remove());
    if (!beside) {
      if (lines.box.parentNode !== box.parentNode) box.before(lines.box);
      lines.box.style.width = lines.box.style.height = lines.box.style.left = "";
      const last = (name) => (curves[name] && curves[name].length ? curves[name][curves[name].length - 1][1] : -Infinity);
      const order = names.length > FEW ? names.slice().sort((a, b) => last(b) - last(a)) : names; // the best in sight
      lines.buttons.forEach((button, name) => { button.style.top = ""; button.style.order = order.indexOf(name); tellLast(button, curves[name]); });
      return;
    }
    box.append(lines.box);
    lines.box.style.left = `${left}px`;
    lines.box.style.width = `${room}px`;
    lines.box.style.height = `${height}px`;
    const ends = names.map((name) => {
      const points = curves[name];
      if (!points || !points.length) return null;
      return chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, points[points.length - 1].slice(0, 2));
    });
    const wanted = ends.map((end) => (end ? end[1] - 8 : height)); // those that are hidden stand below
    const tops = spread(wanted, 16, height - 6);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    names.forEach((name, place) => {
      const button = lines.buttons.get(name);
      button.style.top = `${tops[place]}px`;
      tellLast(button, curves[name]);
      button.onmouseenter = () => chart.dispatchAction({ type: "highlight", seriesName: name });
      button.onmouseleave = () => chart.dispatchAction({ type: "downplay", seriesName: name });
      if (!ends[place]) return;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("d", `M-6 ${ends[place][1]}L0 ${ends[place][1]}L12 ${tops[place] + 8}`);
      line.setAttribute("stroke", looks[name].colour);
      line.setAttribute("fill", "none");
      svg.append(line);
    });
    lines.box.prepend(svg);
  }

  // ---------------------------------------------------------------------------- differences and ranks

  function drawDifferences(body, setting) {
    for (const [heading, table] of Object.entries(setting.differences)) {
      const names = Object.keys(table);
      const first = Math.max(0, names.indexOf(setting.methods[0].name));
      const state = { reference: names[first] };
      let again = () => {};
      const label = heading === "accuracy %" ? "minus" : `${heading.replace(" %", "")}: minus`;
      body.append(make("div", { class: "tools" }, select(label, names.map((name) => [name, name]), (name) => { state.reference = name; again(); }, first)));
      const box = make("div", { class: "chart" });
      body.append(box);
      again = draw(box, (width) => {
        const rows = Object.entries(table[state.reference]).sort((a, b) => b[1][0] - a[1][0]);
        const clear = (gap) => gap[1] != null && (gap[1] > 0 || gap[2] < 0);
        const colour = (gap) => (!clear(gap) ? theme.muted : gap[0] > 0 ? "#009E73" : "#D55E00");
        return {
          height: rowsHigh(width, rows.map(([name]) => name)) + 64,
          option: {
            grid: { left: nameRoom(width, rows.map(([name]) => name)) + 12, right: 18, top: 8, bottom: 46 },
            yAxis: nameAxis(rows.map(([name]) => name), width),
            xAxis: valueAxis(`points above ${cut(state.reference, width < NARROW ? 18 : 50)}`, { scale: false }),
            tooltip: tooltip({ trigger: "item", formatter: (item) => {
              const [name, gap] = rows[item.dataIndex];
              const range = gap[1] == null ? `no interval: ${gap[3]} seed${gap[3] > 1 ? "s" : ""}` : `95 % interval ${number(gap[1])} to ${number(gap[2])}`;
              return `<b>${escapeText(name)}</b><br>${number(gap[0])} points; ${range}`;
            } }),
            series: [
              { type: "custom", silent: true, encode: { x: [1, 2], y: 0 }, data: rows.map(([, gap], place) => [place, gap[1] ?? gap[0], gap[2] ?? gap[0]]), markLine: { silent: true, z: 6, symbol: "none", label: { show: false }, lineStyle: { color: theme.ink, type: "solid", opacity: 0.5 }, data: [{ xAxis: 0 }] },
                renderItem: (at, api) => {
                  const low = api.coord([api.value(1), api.value(0)]), high = api.coord([api.value(2), api.value(0)]);
                  return { type: "line", shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style: { stroke: colour(rows[at.dataIndex][1]), lineWidth: 2.5, lineCap: "round" } };
                } },
              { type: "scatter", symbolSize: 9, data: rows.map(([, gap], place) => ({ value: [gap[0], place], itemStyle: { color: colour(gap) } })) },
            ],
          },
        };
      });
    }
  }

  function drawRanks(body, ranks) {
    const box = make("div", { class: "chart" });
    body.append(box);
    const rows = ranks.methods.map((name, place) => [name, ranks.mean[place]]).sort((a, b) => a[1] - b[1]);
    draw(box, (width) => ({
      height: rowsHigh(width, ranks.methods) + 64,
      option: {
        grid: { left: nameRoom(width, ranks.methods) + 12, right: 24, top: 8, bottom: 46 },
        yAxis: nameAxis(rows.map(([name]) => name), width),
        xAxis: valueAxis("mean rank", { min: 1, max: Math.max(rows.length, 2), scale: false }),
        tooltip: tooltip({ formatter: (item) => `<b>${escapeText(rows[item.dataIndex][0])}</b><br>mean rank ${number(rows[item.dataIndex][1])}` }),
        series: [{
          type: "scatter", symbolSize: 10, itemStyle: { color: theme.accent }, data: rows.map(([, rank], place) => [rank, place]),
          markArea: { silent: true, itemStyle: { color: theme.accent, opacity: 0.1 }, data: [[{ xAxis: rows[0][1] }, { xAxis: Math.min(rows[0][1] + ranks.critical, rows.length) }]] },
        }],
      },
    }));
  }

  // ------------------------------------------------------------------------------------------ heat maps

  const BLUES = () => (theme.dark ? ["#18222c", "#1f4d6e", "#3a8bbf", "#8fd0ff"] : ["#edf4f9", "#8dbfdd", "#3a8bbf", "#0b3d66"]);
  const REDS = () => (theme.dark ? ["#18222c", "#6e3a14", "#d5722a", "#ffc08a"] : ["#faf3ed", "#f0b78a", "#d5722a", "#7d2f00"]);

  /** Rows by columns; `cells`: [column, row, value]. */
  function heat(width, { rows, columns, cells, least, most, colours, xName, tell, label, extra = [], rowHeight = 22 }) {
    const crowded = rows.length > 40;
    const height = Math.max(180, Math.min(rows.length * rowHeight, 620) + 96);
    const longest = Math.round(Math.min(10 + 6.8 * Math.max(...rows.map((name) => name.length)), width < NARROW ? width * 0.34 : 230));
    const looks = axisLooks();
    const names = { type: "category", data: rows, inverse: true, ...looks, splitLine: { show: false } };
    names.axisLabel = { color: theme.ink, fontSize: 11, interval: crowded ? "auto" : 0, width: longest, overflow: "truncate" };
    return {
      height, canvas: cells.length > 1500,
      option: {
        grid: { left: longest + 12, right: 14, top: 44, bottom: 44 },
        xAxis: { type: "category", data: columns, name: xName, nameLocation: "middle", nameGap: 28, ...looks, splitLine: { show: false } },
        yAxis: names,
        visualMap: {
          min: least, max: most > least ? most : least + 1, seriesIndex: 0, dimension: 2, orient: "horizontal", right: 10, top: 0, itemWidth: 10, itemHeight: 110,
          text: [label(most), label(least)], textStyle: { color: theme.muted, fontSize: 11 }, inRange: { color: colours },
        },
        tooltip: tooltip({ trigger: "item", formatter: tell }),
        series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: theme.paper, borderWidth: cells.length > 1500 ? 0 : 1 }, emphasis: { itemStyle: { borderColor: theme.ink, borderWidth: 1 } } }, ...extra],
      },
    };
  }

  function drawSplit(body, setting) {
    const seeds = Object.keys(setting.splits);
    const state = { seed: seeds[0] };
    let again = () => {};
    if (seeds.length > 1) body.append(make("div", { class: "tools" }, choices("seed", seeds.map((s) => [s, s]), (seed) => { state.seed = seed; tellFacts(); again(); }, state.seed)));
    const about = make("p", { class: "how" });
    const box = make("div", { class: "chart" });
    body.append(about, box);
    const tellFacts = () => {
      const split = setting.splits[state.seed];
      const held = split.counts.map((row) => row.filter((n) => n > 0).length).sort((a, b) => a - b);
      const sizes = split.counts.map((row) => row.reduce((a, b) => a + b, 0));
      const some = split.of > split.clients.length ? `${split.clients.length} of ${split.of.toLocaleString("en")} clients, chosen at random` : `${split.of} clients`;
      about.textContent = `Seed ${state.seed}: ${some}, ${Math.min(...sizes)} to ${Math.max(...sizes)} samples each; half of them hold at most ${held[Math.floor((held.length - 1) / 2)]} of ${split.classes.length} classes.`;
    };
    tellFacts();
    again = draw(box, (width) => {
      const split = setting.splits[state.seed];
      const names = split.clients.map((client, place) => split.names[place] || String(client));
      const cells = [];
      let most = 0;
      split.counts.forEach((row, x) => row.forEach((n, y) => { if (n) cells.push([x, y, n]); most = Math.max(most, n); }));
      const tell = (item) => `client ${escapeText(names[item.value[0]])}, class ${escapeText(split.classes[item.value[1]])}<br><b>${item.value[2]}</b> samples`;
      const made = heat(width, { rows: split.classes, columns: names, cells, least: 0, most, colours: BLUES().slice(1), xName: "client", tell, label: String });
      const room = width - made.option.grid.left - made.option.grid.right;
      const cell = Math.min(room / names.length, (made.height - 88) / split.classes.length, 26);
      if (cells.length <= 600 && cell >= 7) {
        // a bubble's area is its count; the largest fills its cell
        made.option.series[0] = { type: "scatter", data: cells, symbolSize: (value) => Math.max(3, cell * Math.sqrt(value[2] / most)), itemStyle: { borderColor: theme.paper, borderWidth: 0.5, opacity: 1 } };
        made.option.yAxis.splitLine = { show: true, lineStyle: { color: theme.faint } };
        made.option.yAxis.boundaryGap = made.option.xAxis.boundaryGap = true;
      }
      return made;
    });
  }

  function drawClasses(body, setting) {
    const names = Object.keys(setting.class_maps);
    const state = { method: names[0], what: "accuracy" };
    let again = () => {};
    const tools = make("div", { class: "tools" });
    if (names.length > 1) tools.append(select("method", names.map((n) => [n, n]), (name) => { state.method = name; again(); }));
    tools.append(choices("show", [["accuracy", "accuracy"], ["forgotten", "forgotten"]], (what) => { state.what = what; again(); }, "accuracy"));
    const box = make("div", { class: "chart" });
    body.append(tools, box);
    again = draw(box, (width) => {
      const map = setting.class_maps[state.method];
      const table = map[state.what];
      const classes = table.map((_, place) => setting.classes[place] || String(place));
      const cells = [];
      table.forEach((row, y) => row.forEach((value, x) => { if (value != null) cells.push([x, y, value / 10]); }));
      const forgotten = state.what === "forgotten";
      const highest = forgotten ? Math.max(10, ...Object.values(setting.class_maps).map((own) => Math.max(...own.forgotten.flat().map((v) => v ?? 0)) / 10)) : 100;
      return heat(width, {
        rows: classes, columns: map.rounds.map(String), cells, least: 0, most: Math.ceil(highest), colours: forgotten ? REDS() : BLUES(), xName: "round",
        label: (v) => (forgotten ? `${v} points` : `${v} %`),
        tell: (item) => `class ${escapeText(classes[item.value[1]])}, round ${map.rounds[item.value[0]]}<br><b>${number(item.value[2], 1)}</b> ${forgotten ? "points below its best" : "%"}`,
      });
    });
  }

  /** One chart for what each method has, with a choice of the method. */
  function drawEach(body, byMethod, build) {
    const names = Object.keys(byMethod);
    let method = names[0], again = () => {};
    if (names.length > 1) body.append(make("div", { class: "tools" }, select("method", names.map((n) => [n, n]), (name) => { method = name; again(); })));
    const box = make("div", { class: "chart" });
    body.append(box);
    again = draw(box, (width) => build(byMethod[method], width));
  }

  function drawLayers(body, maps, word, unit) {
    drawEach(body, maps, (map, width) => {
      const cells = [];
      map.values.forEach((row, y) => row.forEach((value, x) => { if (value != null) cells.push([x, y, value]); }));
      const values = cells.map((cell) => cell[2]);
      const least = values.length ? Math.min(...values) : 0, most = values.length ? Math.max(...values) : 1;
      const chosen = map.chosen.map(([x, y]) => [x, y]);
      const made = heat(width, {
        rows: map.layers, columns: map.rounds.map(String), cells, least, most, colours: BLUES(), xName: "round", label: (v) => number(v), rowHeight: 30,
        tell: (item) => `layer ${escapeText(map.layers[item.value[1]])}, round ${map.rounds[item.value[0]]}<br>${item.seriesType === "scatter" ? `<b>${word}</b>` : `${unit} <b>${number(item.value[2], 3)}</b>`}`,
        extra: chosen.length ? [{ type: "scatter", data: chosen, symbol: "circle", symbolSize: 10, itemStyle: { color: "#D55E00", borderColor: "#fff", borderWidth: 1.5, opacity: 1 }, z: 5 }] : [],
      });
      if (!values.length) delete made.option.visualMap;
      return made;
    });
  }

  // ---------------------------------------------------------------------------------- clients, seconds

  function drawClients(body, setting) {
    const box = make("div", { class: "chart" });
    body.append(box);
    const names = setting.methods.map((method) => method.name).filter((name) => name in setting.boxes);
    draw(box, (width) => ({
      height: rowsHigh(width, names) + 60,
      option: {
        grid: { left: nameRoom(width, names) + 12, right: 18, top: 8, bottom: 46 },
        yAxis: nameAxis(names, width),
        xAxis: valueAxis("accuracy of a client (%)", { min: 0, max: 100, scale: false }),
        tooltip: tooltip({ trigger: "item", formatter: (item) => {
          const name = names[item.seriesType === "boxplot" ? item.dataIndex : item.value[1]];
          const own = setting.boxes[name];
          const [low, q1, middle, q3, high] = own.five;
          return `<b>${escapeText(name)}</b><br>median ${number(middle)} %, half within ${number(q1)} to ${number(q3)} %<br>from ${number(low)} to ${number(high)} %<br>worst tenth: ${number(own.worst_tenth)} % on average<br>${own.clients} tests of clients`;
        } }),
        series: [
          { type: "boxplot", boxWidth: [6, 12], itemStyle: { color: theme.soft, borderColor: theme.accent, borderWidth: 1.4 }, data: names.map((name) => setting.boxes[name].five) },
          { type: "scatter", name: "clients of the worst tenth", symbolSize: 6, itemStyle: { color: "#D55E00", opacity: 0.6 }, data: names.flatMap((name, place) => setting.boxes[name].worst.map((value) => [value, place])) },
          { type: "scatter", name: "worst tenth", symbol: "diamond", symbolSize: 11, itemStyle: { color: "#D55E00", borderColor: theme.paper, borderWidth: 1 }, data: names.map((name, place) => [setting.boxes[name].worst_tenth, place]) },
        ],
      },
    }));
  }

  const KINDS = { local: ["clients", "#0072B2"], aggregate: ["merging", "#E69F00"], evaluate: ["tests", "#94A3B3"], measure: ["measures", "#CC79A7"] };

  function drawSeconds(body, setting) {
    const box = make("div", { class: "chart" });
    body.append(box);
    const names = setting.methods.map((method) => method.name).filter((name) => name in setting.seconds);
    const kinds = Object.keys(KINDS).filter((kind) => names.some((name) => setting.seconds[name][kind]));
    draw(box, (width) => ({
      height: rowsHigh(width, names) + 90,
      option: {
        grid: { left: nameRoom(width, names) + 12, right: 22, top: 36, bottom: 44 },
        legend: { top: 0, left: nameRoom(width, names) + 8, itemWidth: 12, itemHeight: 10, textStyle: { color: theme.muted, fontSize: 11.5 }, data: kinds.map((kind) => KINDS[kind][0]) },
        yAxis: nameAxis(names, width),
        xAxis: valueAxis("", { scale: false, axisLabel: { formatter: seconds } }),
        tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow" }, formatter: (items) => `<b>${escapeText(items[0].name)}</b>` + items.map((item) => `<br>${swatch(item.color)}${item.seriesName}: ${seconds(item.value)}`).join("") }),
        series: kinds.map((kind) => ({ type: "bar", stack: "all", barMaxWidth: 14, name: KINDS[kind][0], itemStyle: { color: KINDS[kind][1] }, data: names.map((name) => setting.seconds[name][kind] || 0) })),
      },
    }));
  }

  function drawWeights(body, setting) {
    drawEach(body, setting.weights, (visits) => {
      const points = (late) => visits.filter((visit) => visit.straggler === late).map((visit) => ({ value: [visit.round, 100 * visit.share], visit }));
      const late = points(true);
      return {
        height: 340, canvas: visits.length > 1500,
        option: {
          grid: { left: 52, right: 18, top: 36, bottom: 44 },
          legend: late.length ? { top: 0, left: 44, itemWidth: 12, textStyle: { color: theme.muted, fontSize: 11.5 } } : undefined,
          xAxis: valueAxis("round", { minInterval: 1, splitLine: { show: false } }),
          yAxis: valueAxis("share (%)", { nameGap: 38, scale: false }),
          tooltip: tooltip({ trigger: "item", formatter: ({ data: { visit } }) => `client ${visit.client}, round ${visit.round}${visit.straggler ? " <b>(straggler)</b>" : ""}<br>share ${number(100 * visit.share)} %<br>Fisher trace ${number(visit.trace)}, ${visit.samples ?? "–"} samples` }),
          series: [
            { type: "scatter", name: "ordinary clients", symbolSize: 6, itemStyle: { color: theme.accent, opacity: 0.6 }, data: points(false) },
            ...(late.length ? [{ type: "scatter", name: "stragglers", symbol: "triangle", symbolSize: 9, itemStyle: { color: "#D55E00", opacity: 0.85 }, data: late }] : []),
          ],
        },
      };
    });
  }

  function drawImages(body, setting) {
    for (const [method, images] of Object.entries(setting.images)) {
      if (Object.keys(setting.images).length > 1) body.append(make("h3", {}, method));
      const row = make("div", { class: "images" });
      for (const { label, width, height, channels, pixels } of images) {
        const canvas = make("canvas", { width, height, role: "img", "aria-label": `class ${label}` });
        const context = canvas.getContext("2d");
        const data = context.createImageData(width, height);
        for (let place = 0; place < width * height; place++) {
          for (let part = 0; part < 3; part++) data.data[4 * place + part] = pixels[(channels === 3 ? part * width * height : 0) + place];
          data.data[4 * place + 3] = 255;
        }
        context.putImageData(data, 0, 0);
        row.append(make("figure", {}, canvas, make("figcaption", { title: label }, label)));
      }
      body.append(row);
    }
  }

  // ------------------------------------------------------------------------------------------- measures

  function drawMeasures(body, setting) {
    const lines = setting.measured.filter((own) => Object.keys(own.curves).length);
    const hidden = new Set();
    const redraws = [];
    const names = setting.methods.map((m) => m.name).filter((name) => lines.some((own) => name in own.curves));
    const bar = names.length > 1 ? nameLines(names, hidden, () => redraws.forEach((again) => again())) : null;
    if (bar) body.append(bar.box);
    const grid = make("div", { class: "grid" });
    body.append(grid);
    const title = (own) => own.name.replaceAll("_", " ");
    for (const own of lines) {
      const box = make("div", { class: "chart" });
      grid.append(make("div", {}, make("h3", {}, title(own)), make("p", {}, own.reading), box));
      redraws.push(draw(box, () => {
        const looks = dress(setting, hidden, names);
        if (bar) bar.paint(looks);
        return {
          height: 210,
          option: {
            grid: { left: 48, right: 10, top: 10, bottom: 40 },
            xAxis: valueAxis("round", { minInterval: 1, splitLine: { show: false }, nameGap: 24 }),
            yAxis: valueAxis("", { splitNumber: 4, axisLabel: { formatter: (v) => String(+v.toPrecision(4)) } }),
            tooltip: tooltip({ trigger: "axis", formatter: (items) => `<b>round ${items[0].value[0]}</b>` + items.slice().sort((a, b) => b.value[1] - a.value[1]).slice(0, 12).map((item) => `<br>${swatch(item.color)}${escapeText(cut(item.seriesName, 30))}: ${number(item.value[1], 3)}`).join("") }),
            series: names.filter((name) => name in own.curves && !hidden.has(name)).map((name) => ({
              type: "line", name, data: own.curves[name], showSymbol: own.curves[name].length <= SPARSE, symbol: "circle", symbolSize: own.curves[name].length === 1 ? 6 : 4, z: looks[name].grey ? 2 : 3,
              lineStyle: { width: looks[name].grey ? 1 : 1.8, color: looks[name].colour, type: looks[name].dash }, itemStyle: { color: looks[name].colour }, emphasis: { focus: "series" },
            })),
          },
        };
      }));
    }
    for (const own of setting.measured) {
      if (Object.keys(own.layers).length) {
        const part = make("div", { style: "margin-top:1.6rem" }, make("h3", {}, `${title(own)} by layer`), make("p", { class: "how" }, own.reading));
        body.append(part);
        drawLayers(part, own.layers, "", title(own));
      }
      if (Object.keys(own.lists).length) {
        const box = make("div", { class: "chart" });
        body.append(make("div", { style: "margin-top:1.6rem" }, make("h3", {}, `${title(own)}, last round measured`), make("p", { class: "how" }, own.reading), box));
        draw(box, () => {
          const looks = dress(setting, hidden);
          return {
            height: 260,
            option: {
              grid: { left: 56, right: 14, top: 10, bottom: 40 }, xAxis: valueAxis("place", { minInterval: 1, splitLine: { show: false } }), yAxis: valueAxis("", {}),
              tooltip: tooltip({ trigger: "axis", formatter: (items) => `<b>${items[0].value[0]}</b>` + items.slice(0, 12).map((item) => `<br>${swatch(item.color)}${escapeText(cut(item.seriesName, 30))}: ${number(item.value[1], 3)}`).join("") }),
              series: Object.entries(own.lists).map(([name, values]) => ({ type: "line", name, data: values.map((v, place) => [place + 1, v]), showSymbol: false, lineStyle: { width: 1.6, color: looks[name].colour, type: looks[name].dash }, itemStyle: { color: looks[name].colour } })),
            },
          };
        });
      }
    }
  }

  // ---------------------------------------------------------------------------------------------- table

  function sortable(table) {
    table.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
      const head = button.parentNode, column = +button.dataset.column;
      const down = head.getAttribute("aria-sort") !== "descending" && (column > 0 || head.getAttribute("aria-sort") === "ascending");
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const text = row.children[column].dataset.value;
        return column === 0 ? text.toLowerCase() : text === "" ? null : +text;
      };
      table.querySelectorAll("tbody").forEach((block) => {
        const rows = [...block.querySelectorAll("tr:not(.block)")];
        rows.sort((a, b) => {
          const one = value(a), other = value(b);
          if (one === null || other === null) return (one === null) - (other === null); // what is missing stays below
          return (one < other ? -1 : one > other ? 1 : 0) * (down ? -1 : 1);
        });
        block.append(...rows);
      });
    }));
  }

  /** Long names stand without their middle; a click on one shows all of them whole, and back. */
  function nameRows(table) {
    const cells = [...table.querySelectorAll("tbody td:first-child")];
    const paint = () => {
      const most = table.classList.contains("whole") ? Infinity : innerWidth < NARROW ? 18 : 38;
      cells.forEach((cell) => (cell.querySelector("code").textContent = cut(cell.dataset.value, most)));
    };
    cells.forEach((cell) => cell.addEventListener("click", () => { table.classList.toggle("whole"); paint(); }));
    addEventListener("resize", paint);
    paint();
  }

  /** A table that needs more room than the text has takes what the window has. */
  function widen(table) {
    const box = table.parentNode;
    box.classList.toggle("wide", box.classList.contains("wide") || table.scrollWidth > box.clientWidth + 1);
  }

  function save(name, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // ------------------------------------------------------------------------------------------- beginning

  const PARTS = {
    differences: drawDifferences, curves: drawCurves, split: drawSplit, boxes: drawClients, class_maps: drawClasses,
    measured: drawMeasures, weights: drawWeights, images: drawImages, seconds: drawSeconds,
    feedback: (body, setting) => drawLayers(body, setting.feedback, "chosen", "agreement"),
  };
  const drawn = new Set();
  const queue = [];
  let shown = 0;

  /** Draws what is waiting, part by part, so that the page can be read meanwhile. */
  function drawNext() {
    const act = queue.shift();
    if (act) act();
    if (queue.length) setTimeout(drawNext);
    else document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }

  /** On the screen the open setting is shown, on paper all of them. */
  function reveal() {
    document.querySelectorAll(".setting").forEach((own) => (own.hidden = !printing && own.dataset.setting !== String(shown)));
  }

  /** Puts the parts of a setting into the queue, once. */
  function prepare(place) {
    if (drawn.has(place)) return;
    drawn.add(place);
    document.querySelectorAll(`.setting[data-setting="${place}"] section.part`).forEach((section) => {
      const act = PARTS[section.dataset.part], body = section.querySelector(".body");
      if (act && body) queue.push(() => act(body, facts.settings[place]));
    });
  }

  function show(place) {
    shown = place;
    reveal();
    document.querySelectorAll("[data-tab]").forEach((tab) => tab.setAttribute("aria-selected", String(tab.dataset.tab === String(place))));
    charts.forEach((chart) => { if (chart.box.clientWidth !== chart.width) redraw(chart); });
    prepare(place);
    setTimeout(drawNext);
  }

  document.querySelectorAll("table.figures").forEach((table) => { sortable(table); nameRows(table); widen(table); });
  document.querySelectorAll("[data-file]").forEach((button) => button.addEventListener("click", () => {
    const setting = facts.settings[+button.closest("section").dataset.of];
    save(`table.${button.dataset.file}`, setting.files[button.dataset.file]);
  }));
  document.querySelectorAll("[data-tab]").forEach((tab) => tab.addEventListener("click", () => show(+tab.dataset.tab)));
  document.querySelectorAll('section[data-part="ranks"]').forEach((section) => drawRanks(section.querySelector(".body"), facts.ranks[section.dataset.key]));

  // ------------------------------------------------------- a page that refreshes keeps what the reader chose

  const CONTROLS = {
    "[data-tab]": [(own) => own.getAttribute("aria-selected") === "true", (own, was) => was && own.click()],
    "[data-choice]": [(own) => own.getAttribute("aria-pressed") === "true", (own, was) => was && own.click()],
    "[data-method]": [(own) => own.getAttribute("aria-pressed") === "true", (own, was) => was || own.click()],
    "select, input": [(own) => own.value, (own, was) => { own.value = was; own.dispatchEvent(new Event(own.matches("select") ? "change" : "input")); }],
    "th:has([data-column])": [(own) => own.getAttribute("aria-sort"), (own, was) => { for (let turn = 0; was && turn < 3 && own.getAttribute("aria-sort") !== was; turn++) own.firstChild.click(); }],
    details: [(own) => own.open, (own, was) => (own.open = was)],
  };
  /** What a control is known by: its part of the page, its kind, and its name, or else its place. */
  const name = (own, kind, place) => {
    const part = own.closest("section.part");
    return [kind, part ? `${part.dataset.part} ${part.dataset.of} ${part.dataset.key}` : "", own.dataset.method || own.dataset.choice || place].join("|");
  };
  const list = (kind) => {
    const seen = {};
    return [...document.querySelectorAll(kind)].map((own) => {
      const part = own.closest("section.part");
      const at = part ? part.dataset.part + part.dataset.of + part.dataset.key : "";
      return [name(own, kind, (seen[at] = (seen[at] || 0) + 1)), own];
    });
  };
  const KEPT = `unskew ${location.pathname}`;

  function keepChoices() {
    const kept = {};
    for (const [kind, [read]] of Object.entries(CONTROLS)) list(kind).forEach(([key, own]) => (kept[key] = read(own)));
    sessionStorage.setItem(KEPT, JSON.stringify(kept));
  }

  function restoreChoices() {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
    for (const [kind, [read, set]] of Object.entries(CONTROLS)) {
      list(kind).forEach(([key, own]) => { if (key in kept && kept[key] !== read(own)) set(own, kept[key]); });
      while (queue.length) queue.shift()(); // a tab's parts come with it
    }
  }

  show(0);
  if (document.querySelector('meta[http-equiv="refresh"]')) {
    try {
      while (queue.length) queue.shift()();
      restoreChoices();
      addEventListener("pagehide", keepChoices);
    } catch { /* a browser that keeps nothing */ }
  }
})();
