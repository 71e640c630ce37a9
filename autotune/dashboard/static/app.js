// Theme, copying, ticked rows that survive a live update, local times, files dropped on a text field, keys.
(function () {
  'use strict';
  var picked = new Set();

  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    try { localStorage.setItem('autotune-theme', name); } catch (error) { /* storage is off: this page only */ }
    document.dispatchEvent(new CustomEvent('autotune:theme'));
  }

  function length(seconds) {
    if (seconds < 60) return seconds + ' s';
    if (seconds < 3600) return Math.floor(seconds / 60) + ' min';
    if (seconds < 2 * 86400) return Math.floor(seconds / 3600) + ' h';
    return Math.floor(seconds / 86400) + ' d';
  }

  // Clocks of two machines differ: only what is due may lie ahead.
  function distance(then, due) {
    var seconds = Math.round((Date.now() - then) / 1000);
    if (Math.abs(seconds) >= 7 * 86400 || (seconds < 0 && !due)) return null;
    return seconds < 0 ? 'in ' + length(-seconds) : length(seconds) + ' ago';
  }

  function times() {
    document.querySelectorAll('time[datetime]').forEach(function (element) {
      if (!element.title) element.title = element.textContent;
      var said = distance(Date.parse(element.dateTime), 'due' in element.dataset);
      if (said) element.textContent = said;
    });
  }

  function copy(button) {
    var source = document.getElementById(button.dataset.copy);
    var label = button.dataset.label || (button.dataset.label = button.textContent);
    function done(said) {
      button.textContent = said;
      setTimeout(function () { button.textContent = label; }, 1600);
    }
    function select() {
      var range = document.createRange();
      range.selectNodeContents(source);
      var selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      done(document.execCommand('copy') ? 'Copied' : 'Selected: press Ctrl-C');
    }
    // Browsers offer the clipboard to https and localhost alone.
    if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(function () { done('Copied'); }, select);
    else select();
  }

  function readInto(field, file) {
    if (file) file.text().then(function (text) { field.value = text; });
  }

  document.addEventListener('click', function (event) {
    var button = event.target.closest('[data-copy]');
    if (button) copy(button);
    if (event.target.closest('#theme')) setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  });
  document.addEventListener('change', function (event) {
    var box = event.target;
    if (box.name === 't' && box.type === 'checkbox') picked[box.checked ? 'add' : 'delete'](box.value);
    if (box.id === 'file') readInto(document.querySelector('[data-drop]'), box.files[0]);
  });
  document.addEventListener('dragover', function (event) { if (event.target.closest('[data-drop]')) event.preventDefault(); });
  document.addEventListener('drop', function (event) {
    var field = event.target.closest('[data-drop]');
    if (field && event.dataTransfer.files.length) { event.preventDefault(); readInto(field, event.dataTransfer.files[0]); }
  });
  document.addEventListener('keydown', function (event) {
    var field = document.querySelector('[data-focus]');
    if (event.key === '/' && field && !event.ctrlKey && !event.metaKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
      event.preventDefault();
      field.focus();
    }
  });
  function renew() {
    picked.forEach(function (value) {
      var box = document.querySelector('input[name="t"][value="' + CSS.escape(value) + '"]');
      if (box) box.checked = true;
    });
    times();
  }
  // At once, so that nobody sees a row without its tick; and again where settling put old attributes back.
  document.addEventListener('htmx:afterSwap', renew);
  document.addEventListener('htmx:afterSettle', renew);
  times();
  setInterval(times, 30000);
})();
