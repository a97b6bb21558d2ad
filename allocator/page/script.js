// SPDX-License-Identifier: Apache-2.0
// Asks for the page again every few seconds and puts in what is new, with the focus
// and what was opened where they were.
(() => {
  const every = 5000, main = document.getElementById('main'), state = document.getElementById('state');
  const pause = document.getElementById('pause');
  let shown = null, paused = false;
  document.getElementById('live').hidden = false;
  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', paused);
    state.textContent = paused ? 'paused' : '';
  });
  const put = text => {
    const open = [...main.querySelectorAll('details[open]')].map(d => d.id);
    const focus = document.activeElement && main.contains(document.activeElement) &&
      (document.activeElement.id || document.activeElement.closest('[id]').id);
    main.innerHTML = new DOMParser().parseFromString(text, 'text/html').getElementById('main').innerHTML;
    for (const id of open) document.getElementById(id)?.setAttribute('open', '');
    if (focus) {
      const at = document.getElementById(focus);
      (at?.matches('details') ? at.querySelector('summary') : at)?.focus({preventScroll: true});
    }
  };
  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(location.href, {cache: 'no-store', headers: shown ? {'If-None-Match': shown} : {}});
        if (answer.status === 401) { location.reload(); return; }
        if (answer.status !== 304) {
          if (!answer.ok) throw new Error(await answer.text());
          put(await answer.text());
          shown = answer.headers.get('ETag');
        }
        state.textContent = 'live';
      } catch (wrong) {
        state.textContent = 'not live: ' + wrong.message;
      }
    }
    setTimeout(look, every);
  };
  setTimeout(look, every);
})();
