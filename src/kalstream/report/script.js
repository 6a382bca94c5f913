/* Values under the pointer, and a switch between light and dark. The page works without it. */
(function () {
  "use strict";

  var SVG = document.createElementNS.bind(document, document.querySelector("svg").namespaceURI);

  function compact(value) {
    var sizes = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (var i = 0; i < sizes.length; i++) {
      if (Math.abs(value) >= sizes[i][0]) return Number((value / sizes[i][0]).toPrecision(3)) + sizes[i][1];
    }
    return String(Number(value.toPrecision(3)));
  }

  var units = {
    percent: function (v) { return (100 * v).toFixed(1) + "%"; },
    rows: function (v) { return "row " + Math.round(v).toLocaleString("en"); },
    number: compact
  };

  function axis(text) {
    var parts = text.split(" ");
    return { lo: Number(parts[0]), hi: Number(parts[1]), unit: parts[2] };
  }

  /* The points are read from the drawn path, so the page does not hold them twice. */
  function points(path) {
    return path.getAttribute("d").split(/[ML]/).filter(Boolean).map(function (pair) {
      var xy = pair.split(" ");
      return { x: Number(xy[0]) / 1000, y: 1 - Number(xy[1]) / 1000 };
    });
  }

  function nearest(list, x) {
    return list.reduce(function (best, one) { return Math.abs(one.x - x) < Math.abs(best.x - x) ? one : best; });
  }

  function Chart(svg) {
    this.svg = svg;
    this.box = svg.parentNode;
    this.x = axis(svg.dataset.x);
    this.y = axis(svg.dataset.y);
    this.time = svg.dataset.time === "yes";
    this.never = this.y.unit === "log" && /neverforgets/.test(svg.textContent);
    this.lines = Array.prototype.map.call(svg.querySelectorAll("path[data-name]"), function (path) {
      return { name: path.dataset.name, points: points(path) };
    });
    this.cells = Array.prototype.map.call(svg.querySelectorAll("g[data-cells]"), function (g) {
      return { name: g.dataset.name, values: g.dataset.cells };
    }).reverse();
    this.columns = (svg.dataset.columns || "").split(" ").filter(Boolean).map(function (v) { return Number(v) / 1000; });
    this.mark = SVG("g");
    svg.appendChild(this.mark);
  }

  Chart.prototype.write = function (value, which) {
    if (which.unit === "log") return this.never && value > which.hi - 0.02 ? "never" : compact(Math.pow(10, value));
    return (units[which.unit] || compact)(value);
  };

  /* The point nearest to x, and the names and values there. */
  Chart.prototype.at = function (x) {
    var self = this, values = [], place = x;
    if (this.cells.length) {
      var i = 0;
      while (i < this.columns.length - 2 && this.columns[i + 1] < x) i++;
      place = (this.columns[i] + this.columns[i + 1]) / 2;
      this.cells.forEach(function (row) {
        var text = row.values.substr(2 * i, 2);
        values.push({ name: row.name, text: text === ".." ? "–" : (parseInt(text, 36) / 10).toFixed(0) + "%" });
      });
      return { x: place, values: values };
    }
    /* the line drawn last is the learner: the others are read where it has a point */
    if (this.lines.length) place = nearest(this.lines[this.lines.length - 1].points, x).x;
    this.lines.forEach(function (line) {
      var point = nearest(line.points, place);
      if (Math.abs(point.x - place) > 0.03) return;
      var value = self.y.lo + point.y * (self.y.hi - self.y.lo);
      values.push({ name: line.name, text: self.write(value, self.y), point: point });
    });
    values.sort(function (a, b) { return b.point.y - a.point.y; });
    return { x: place, values: values };
  };

  function element(name, text) {
    var made = document.createElement(name);
    made.textContent = text;
    return made;
  }

  function line(x) {
    var made = SVG("line");
    made.setAttribute("class", "cross");
    made.setAttribute("x1", 100 * x + "%");
    made.setAttribute("x2", 100 * x + "%");
    made.setAttribute("y1", "0");
    made.setAttribute("y2", "100%");
    return made;
  }

  var charts = Array.prototype.map.call(document.querySelectorAll("svg.chart"), function (svg) { return new Chart(svg); });
  charts = charts.filter(function (chart) { return chart.lines.length || chart.cells.length; });
  var readout = element("div", "");
  readout.className = "readout";

  function clear() {
    charts.forEach(function (chart) { chart.mark.textContent = ""; });
    readout.remove();
  }

  function show(chart, x) {
    clear();
    var reading = chart.at(x);
    var value = chart.x.lo + reading.x * (chart.x.hi - chart.x.lo);
    charts.forEach(function (other) {
      if (other !== chart && !(other.time && chart.time)) return;
      var share = (value - other.x.lo) / (other.x.hi - other.x.lo);
      if (share >= 0 && share <= 1) other.mark.appendChild(line(share));
    });
    reading.values.forEach(function (one) {
      if (!one.point || one.point.y < 0 || one.point.y > 1) return;
      var dot = SVG("circle");
      dot.setAttribute("cx", 100 * one.point.x + "%");
      dot.setAttribute("cy", 100 * (1 - one.point.y) + "%");
      dot.setAttribute("r", "3.5");
      dot.setAttribute("class", "dot");
      chart.mark.appendChild(dot);
    });
    readout.textContent = "";
    readout.appendChild(element("b", chart.write(value, chart.x)));
    reading.values.forEach(function (one) {
      var row = element("span", "");
      row.appendChild(element("i", one.name));
      row.appendChild(element("span", one.text));
      readout.appendChild(row);
    });
    chart.box.appendChild(readout);
    var plot = chart.svg.getBoundingClientRect(), box = chart.box.getBoundingClientRect();
    var left = plot.left - box.left + reading.x * plot.width;
    var width = readout.offsetWidth;
    left = left + 14 + width <= box.width ? left + 14 : left - 14 - width;
    readout.style.left = Math.max(0, Math.min(left, box.width - width)) + "px";
    chart.place = reading.x;
  }

  charts.forEach(function (chart) {
    var svg = chart.svg, title = svg.querySelector("title");
    /* browsers show an SVG title over the values: the title moves to an attribute */
    svg.setAttribute("aria-label", title.textContent);
    title.remove();
    svg.setAttribute("tabindex", "0");
    function follow(event) {
      var box = svg.getBoundingClientRect();
      show(chart, Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)));
    }
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", function (event) {
      var step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
      if (event.key === "Escape") clear();
      if (!step) return;
      event.preventDefault();
      show(chart, Math.max(0, Math.min(1, (chart.place === undefined ? 0.5 : chart.place) + step)));
    });
  });

  var root = document.documentElement, button = element("button", "");
  button.type = "button";
  button.className = "theme";
  function dark() {
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return window.matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function name() { button.textContent = dark() ? "Light" : "Dark"; }
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  name();
  (document.querySelector("nav") || document.querySelector(".over")).appendChild(button);

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
