// Before the first paint: the theme that was chosen here, or else the system's.
(function () {
  'use strict';
  var chosen = null;
  try { chosen = localStorage.getItem('autotune-theme'); } catch (error) { /* storage is off: the system's theme */ }
  var dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
