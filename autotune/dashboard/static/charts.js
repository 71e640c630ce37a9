// Draws the figures that stand as JSON beside their place, in the colours of the page's theme.
(function () {
  'use strict';
  var figures = {};

  function colours(value, style) {
    if (typeof value === 'string' && value.startsWith('--')) return style.getPropertyValue(value).trim() || '#888';
    if (Array.isArray(value)) return value.map(function (inner) { return colours(inner, style); });
    if (value && typeof value === 'object') {
      var out = {};
      Object.keys(value).forEach(function (key) { out[key] = colours(value[key], style); });
      return out;
    }
    return value;
  }

  function axis(given, style) {
    return Object.assign({
      gridcolor: style.getPropertyValue('--line').trim(), zerolinecolor: style.getPropertyValue('--line').trim(),
      linecolor: style.getPropertyValue('--line-2').trim(), automargin: true, fixedrange: true, separatethousands: true
    }, given || {}, { title: Object.assign({ standoff: 8, font: { size: 11 } }, (given || {}).title || {}), tickfont: { size: 11 } });
  }

  var GLYPHS = { circle: '●', diamond: '◆', 'x-thin': '✕', 'triangle-down': '▼' };

  // Names are escaped for Plotly, which takes tags for markup.
  function plainText(text) { return text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&amp;/g, '&'); }

  // Plotly's own legend takes half of a phone's screen.
  function legend(place, figure, style) {
    var list = place.closest('.chart').querySelector('.legend');
    list.replaceChildren();
    figure.data.forEach(function (trace) {
      if (!trace.name || trace.showlegend === false) return;
      var item = document.createElement('li'), glyph = document.createElement('span');
      var marker = trace.marker || {}, line = trace.line || {};
      var lines = trace.mode && trace.mode.indexOf('lines') >= 0;
      var colour = trace.fillcolor || (lines ? line.color : Array.isArray(marker.color) ? '--s4' : marker.color);
      glyph.textContent = trace.type === 'bar' || trace.fillcolor ? '■' : lines ? '━' : GLYPHS[marker.symbol] || '●';
      glyph.style.color = colours(colour || '--text-3', style);
      glyph.setAttribute('aria-hidden', 'true');
      item.append(glyph, ' ' + plainText(trace.name));
      list.append(item);
    });
  }

  function draw(place) {
    var name = place.dataset.figure, figure = figures[name];
    if (!figure) return;
    var empty = !figure.data.length;
    place.closest('.chart').hidden = empty;
    if (empty) return;
    var style = getComputedStyle(document.documentElement);
    var layout = colours(figure.layout, style);
    legend(place, figure, style);
    var narrow = place.closest('.chart').clientWidth < 560;
    place.classList.toggle('tall', false);
    if (layout.grid && narrow) {
      layout.grid = Object.assign({}, layout.grid, { columns: 2, rows: Math.ceil(layout.grid.columns / 2), ygap: 0.45 });
      place.classList.toggle('tall', layout.grid.rows > 1);
    }
    Object.keys(layout).concat(['xaxis', 'yaxis']).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) layout[key] = axis(layout[key], style);
    });
    Object.assign(layout, {
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style.getPropertyValue('--text-2').trim() },
      margin: { l: 8, r: 12, t: 8, b: 8 }, dragmode: false,
      showlegend: false,
      hoverlabel: {
        bgcolor: style.getPropertyValue('--panel').trim(), bordercolor: style.getPropertyValue('--line-2').trim(),
        font: { color: style.getPropertyValue('--text').trim(), size: 12 }, align: 'left'
      }
    });
    Plotly.react(place, colours(figure.data, style), layout, { displayModeBar: false, responsive: true }).then(function () {
      if (place.dataset.linked) return;
      place.dataset.linked = 'yes';
      place.on('plotly_click', function (event) {
        var link = event.points[0] && event.points[0].customdata;
        if (typeof link === 'string' && link.startsWith('/') && !document.documentElement.dataset.report) location.assign(link);
      });
    });
  }

  function collect(root) {
    root.querySelectorAll('script[data-for]').forEach(function (block) {
      figures[block.dataset.for] = JSON.parse(block.textContent);
    });
    root.querySelectorAll('.plot').forEach(draw);
  }

  function redraw() { document.querySelectorAll('.plot').forEach(draw); }

  collect(document);
  document.addEventListener('autotune:theme', redraw);
  addEventListener('beforeprint', function () {
    document.documentElement.dataset.theme = 'light';
    redraw();
    document.querySelectorAll('.plot').forEach(function (place) { if (place.data) Plotly.Plots.resize(place); });
  });
  document.addEventListener('htmx:afterSettle', function (event) { collect(event.target.parentElement || document); });
  document.addEventListener('htmx:sseMessage', function () {
    var place = document.querySelector('[data-figures]');
    if (!place) return;
    fetch(place.dataset.figures).then(function (answer) { return answer.ok ? answer.json() : {}; }).then(function (found) {
      Object.keys(found).forEach(function (name) { figures[name] = found[name]; });
      redraw();
    }, function () { /* the server went away; the event stream tries again */ });
  });
})();
