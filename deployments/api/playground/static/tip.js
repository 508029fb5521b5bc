// The one tooltip of the page: what a token is, above it or, where there is no room, below.

const MARGIN = 8;

export function showTip(anchor, nodes) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...nodes);
  tip.hidden = false;
  const at = anchor.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(MARGIN, at.left), innerWidth - own.width - MARGIN);
  const above = at.top - own.height - MARGIN;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 0 ? above : at.bottom + MARGIN}px`;
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}
